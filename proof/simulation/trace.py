"""Records the events of a run, as text and as a digest to compare runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from .virtual_time import START


class Trace:
    """Records events if switched on; off by default, because recording slows runs down."""

    def __init__(self, clock: Callable[[], float], is_on: bool) -> None:
        self._clock = clock
        self._is_on = is_on
        self.lines: list[str] = []

    def __call__(self, *fields: str) -> None:
        if self._is_on:
            self.lines.append(f"{self._clock() - START:10.4f} {' '.join(field for field in fields if field)}")

    def digest(self) -> str:
        return hashlib.blake2b("\n".join(self.lines).encode(), digest_size=8).hexdigest()
