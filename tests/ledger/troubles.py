"""Simulates failures of a ledger's store that begin and end on demand: full, read-only, slow, gone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.ledger.stores import Obstinate

#: No user can create a folder here, not even root.
READ_ONLY = "/sys"


class Full:
    """A store without free space."""

    def __init__(self, folder: Path) -> None:
        self.url = Obstinate.reset()

    def begin(self) -> None:
        Obstinate.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def end(self) -> None:
        Obstinate.error = None


class Slow:
    """A store whose writes hang."""

    def __init__(self, folder: Path) -> None:
        self.url = Obstinate.reset()

    def begin(self) -> None:
        Obstinate.let_go.clear()

    def end(self) -> None:
        Obstinate.let_go.set()


class Linked:
    """A folder behind a symbolic link, which stands for a mounted folder."""

    def __init__(self, folder: Path) -> None:
        self._link, self._real, self._away = folder / "ledger", folder / "real", folder / "away"
        self._real.mkdir()
        self._link.symlink_to(self._real)
        self.url = str(self._link)

    def _point_to(self, target: str | Path) -> None:
        new_link = self._link.with_name("new_link")
        new_link.symlink_to(target)
        new_link.replace(self._link)


class ReadOnly(Linked):
    """A read-only file system."""

    def begin(self) -> None:
        self._point_to(READ_ONLY)

    def end(self) -> None:
        self._point_to(self._real)


class Gone(Linked):
    """A folder that disappears and comes back."""

    def begin(self) -> None:
        self._real.rename(self._away)

    def end(self) -> None:
        self._away.rename(self._real)


Trouble = Full | Slow | ReadOnly | Gone
TROUBLES: list[type[Full] | type[Slow] | type[ReadOnly] | type[Gone]] = [Full, ReadOnly, Slow, Gone]
