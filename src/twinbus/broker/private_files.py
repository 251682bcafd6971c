"""Files that nobody but their owner may read."""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger("twinbus.broker.store")

_MODE = 0o600
_OTHERS = 0o077


def keep_private(database: Path) -> None:
    """Make an empty file for a database of SQLite that only its owner can read; one that is there becomes so.

    Its log and what SQLite makes beside it take the mode of the database, unless they are there already. Raises
    `OSError`.
    """
    os.close(os.open(database, os.O_RDWR | os.O_CREAT, _MODE))
    for path in (database, Path(f"{database}-wal"), database.with_suffix(".removed")):
        if path.is_file() and path.stat().st_mode & _OTHERS:
            _hide(path)


def _hide(path: Path) -> None:
    try:
        path.chmod(_MODE)
    except OSError as error:  # somebody else's, or on a disk that has no owners
        logger.warning("others may be able to read %s: %s", path, error.strerror)
