"""Creates database files that only their owner can read."""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger("twinbus.emulator.storage.store")

_MODE = 0o600
_OTHERS = 0o077


def keep_private(database: Path) -> None:
    """Create a database file that only its owner can read, or make an existing one and its companions so.

    New files that SQLite creates beside it, such as its log, get the database's mode. Raises `OSError`.
    """
    os.close(os.open(database, os.O_RDWR | os.O_CREAT, _MODE))
    for path in (database, Path(f"{database}-wal"), database.with_suffix(".removed")):
        if path.is_file() and path.stat().st_mode & _OTHERS:
            _hide(path)


def _hide(path: Path) -> None:
    try:
        path.chmod(_MODE)
    except OSError as error:  # owned by another user, or on a file system without owners
        logger.warning("making %s private failed, other users may be able to read it: %s", path, error.strerror)
