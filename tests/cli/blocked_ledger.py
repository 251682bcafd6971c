"""A ledger that takes no row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path


def block(folder: Path) -> None:
    """Make a ledger whose folders of today and tomorrow cannot be made: something lies there."""
    folder.mkdir()
    for days in (0, 1):
        day = datetime.now(UTC) + timedelta(days=days)
        (folder / f"day={day.date().isoformat()}").write_text("in the way")
