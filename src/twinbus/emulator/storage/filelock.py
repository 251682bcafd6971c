"""Locks a file against other processes; the operating system releases the lock when the process ends."""

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

    Closing the file releases the lock.
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
    """Lock a data folder against a second server; None if another process holds the lock."""
    file = open(folder / "lock", "ab")  # noqa: SIM115 - stays open while the lock is held
    if not try_lock(file):
        file.close()
        return None
    return file
