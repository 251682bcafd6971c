"""A lock on a file that no other process can take, and that ends with the process that holds it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


def try_lock(file: IO[bytes]) -> bool:
    """Lock an open file; false if another process, or another open file of this one, holds the lock.

    Closing the file gives the lock back.
    """
    try:
        if sys.platform == "win32":
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def lock_folder(folder: Path) -> IO[bytes] | None:
    """A lock that two servers with one data folder cannot both have; None if another process holds it."""
    file = open(folder / "lock", "ab")  # noqa: SIM115 - held until it is given back
    if not try_lock(file):
        file.close()
        return None
    return file
