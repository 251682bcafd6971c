"""Connections that have not shown yet that they may be here: silent ones, half a handshake, no token.

They cost the namespace memory and file handles and need prove nothing for it, so they are bounded together. When there
are too many, the one that has made no progress for longest is cut, however far it came: so nobody can take all places
for long, and whoever says at once what it wants gets through.
"""

from __future__ import annotations

from collections.abc import Callable

MOST = 1000


class Newcomers:
    """Who is still to show a right, in the order of their last step."""

    def __init__(self) -> None:
        self._most = MOST
        self._cuts: dict[object, Callable[[], object]] = {}
        self.cut = 0

    def __len__(self) -> int:
        return len(self._cuts)

    def enter(self, who: object, cut: Callable[[], object]) -> None:
        """Someone new, or someone who has come a step further; `cut` ends its connection."""
        self.leave(who)
        self._cuts[who] = cut
        if len(self._cuts) > self._most:
            oldest = next(iter(self._cuts))
            self.cut += 1
            self._cuts.pop(oldest)()

    def leave(self, who: object) -> None:
        """It has shown a right, is someone else's now, or is gone."""
        self._cuts.pop(who, None)
