"""What can be wrong with the place of a ledger, begun and ended on demand: full, read-only, slow, gone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.ledger.stores import Obstinate

#: No user can create a folder there, not even the superuser.
READ_ONLY = "/sys"


class Full:
    """A store without room for another file."""

    def __init__(self, folder: Path) -> None:
        self.url = Obstinate.reset()

    def begin(self) -> None:
        Obstinate.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def end(self) -> None:
        Obstinate.error = None


class Slow:
    """A store that does not answer for as long as it lasts."""

    def __init__(self, folder: Path) -> None:
        self.url = Obstinate.reset()

    def begin(self) -> None:
        Obstinate.let_go.clear()

    def end(self) -> None:
        Obstinate.let_go.set()


class Linked:
    """A folder that is reached by a link, as a mounted one."""

    def __init__(self, folder: Path) -> None:
        self._link, self._real, self._away = folder / "ledger", folder / "real", folder / "away"
        self._real.mkdir()
        self._link.symlink_to(self._real)
        self.url = str(self._link)

    def _point_to(self, target: str | Path) -> None:
        made = self._link.with_name("made")
        made.symlink_to(target)
        made.replace(self._link)


class ReadOnly(Linked):
    """A read-only file system."""

    def begin(self) -> None:
        self._point_to(READ_ONLY)

    def end(self) -> None:
        self._point_to(self._real)


class Gone(Linked):
    """A folder that has disappeared, and comes back."""

    def begin(self) -> None:
        self._real.rename(self._away)

    def end(self) -> None:
        self._away.rename(self._real)


Trouble = Full | Slow | ReadOnly | Gone
TROUBLES: list[type[Full] | type[Slow] | type[ReadOnly] | type[Gone]] = [Full, ReadOnly, Slow, Gone]
