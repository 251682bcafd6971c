"""Removes old days of a ledger, and records that they were removed on purpose.

    <ledger>/expired.json    {"before": "2026-11-01"}

The marker is stored before the first file is removed, and its day only increases. Readers report earlier days as
expired, not lost, and files that appear there later as late. If an expiry is killed, the next one finishes it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from . import layout
from .ledger_errors import LedgerError
from .store import Store, open_store, require_ledger

MARKER = layout.EXPIRED_MARKER
_MAX_MARKER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ExpiredDay:
    """A day whose files were removed, or would be in a dry run."""

    day: date
    files: int
    bytes: int


@dataclass(slots=True)
class Expiry:
    """What an expiry has removed, or would remove in a dry run."""

    #: Days before this one are expired, by this expiry or an earlier one.
    before: date
    days: list[ExpiredDay] = field(default_factory=list)

    @property
    def files(self) -> int:
        """Number of files of all days."""
        return sum(day.files for day in self.days)

    @property
    def bytes(self) -> int:
        """Size of the files of all days."""
        return sum(day.bytes for day in self.days)


def encode_marker(before: date) -> bytes:
    """Return the content of the marker."""
    return json.dumps({"before": before.isoformat()}).encode() + b"\n"


def decode_marker(content: bytes) -> date:
    """Return the day before which a ledger is expired. Raises `ValueError` for a damaged marker."""
    try:
        marker = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{MARKER} must be JSON") from error
    if not isinstance(marker, dict) or not isinstance(marker.get("before"), str):
        raise ValueError(f'{MARKER} must be an object with "before"')
    return parse_day(marker["before"])


def parse_day(text: str) -> date:
    """Parse a day such as "2026-11-16". Raises `ValueError`."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise ValueError(f"before must be a day such as 2026-11-16, not {text[:20]!r}")
    return day


def expired_before(store: Store) -> date | None:
    """Return the day before which the ledger is expired; None if no day is.

    Raises:
        LedgerError: The marker is damaged.
    """
    try:
        with store.open("", MARKER) as file:
            content = file.read(_MAX_MARKER_BYTES)
    except FileNotFoundError:
        return None
    try:
        return decode_marker(content)
    except ValueError as error:
        raise LedgerError(f"the marker of expired days at {store.place} is damaged: {error}") from error


def is_expired(store: Store, folder: str) -> bool:
    """Return whether a folder's day is expired. Raises `LedgerError` if the marker is damaged."""
    before, day = expired_before(store), layout.day_of(folder)
    return before is not None and day is not None and day < before.isoformat()


def expire(
    url: str | os.PathLike[str],
    before: date,
    *,
    dry_run: bool = False,
    force: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> Expiry:
    """Remove the files of all days before `before`, in UTC, oldest day first.

    Keeps files that are not the ledger's. Other processes may read, write and compact meanwhile.

    Args:
        dry_run: Only report what would be removed.
        force: Allow yesterday to be removed as well. Today never is: writers still add files.

    Raises:
        ValueError: `before` is later than allowed.
        LedgerNotFoundError: There is no ledger at this folder or URL.
        LedgerError: The marker of an earlier expiry is damaged.
    """
    started_us = now_us()
    today = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=started_us)).date()
    if before > today:
        raise ValueError(f"before must be at most {today}, which is today in UTC, not {before}")
    if before == today and not force:
        yesterday = today - timedelta(days=1)
        raise ValueError(f"before must be at most {yesterday}, which is yesterday in UTC, or {today} with --force")
    store = open_store(url, storage_options)
    require_ledger(store)
    result = Expiry(max(before, expired_before(store) or before))
    if not dry_run:
        _advance_marker(store, before)
    for folder in store.folders():
        day = layout.day_of(folder)
        if day is not None and day < before.isoformat():
            removed = _expire_day(store, folder, date.fromisoformat(day), started_us, dry_run=dry_run)
            if removed.files:
                result.days.append(removed)
    if not dry_run:
        _advance_marker(store, before)  # a concurrent expiry may have overwritten the marker with an earlier day
    return result


def _advance_marker(store: Store, before: date) -> None:
    """Store the marker unless it already has this day or a later one."""
    stored = expired_before(store)
    if stored is None or stored < before:
        store.put("", MARKER, encode_marker(before))


def _expire_day(store: Store, folder: str, day: date, now_us: int, *, dry_run: bool) -> ExpiredDay:
    """Remove the ledger's files of one day, and the folder if it is empty then."""
    sizes = {name: size for name, size in sorted(store.sizes(folder).items()) if _is_removable(name, now_us)}
    if not dry_run:
        # In name order a sidecar comes after its compacted file, which would be live without it.
        for name in sizes:
            store.delete(folder, name)
        store.remove_folder_if_empty(folder)
    return ExpiredDay(day, len(sizes), sum(sizes.values()))


def _is_removable(name: str, now_us: int) -> bool:
    """Return whether an expiry removes a file: a file of rows, a sidecar, or an old temporary file."""
    if layout.FileName.parse(name) is not None or layout.parse_sidecar(name) is not None:
        return True
    temporary = layout.parse_temp(name)
    return temporary is not None and temporary.written_us < now_us - layout.OLD_TEMP_US
