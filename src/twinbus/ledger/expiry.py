"""Removes the days of a ledger that are no longer wanted, and records that this was on purpose.

    <ledger>/expired.json    {"before": "2026-11-01"}

The marker is stored before the first file is removed and never moved back. Readers of the ledger take the days before
it for expired, not lost, and files that appear there later for late. An expiry that was killed is finished by the next.
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
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ExpiredDay:
    """A day whose files were removed, or would be."""

    day: date
    files: int
    bytes: int


@dataclass(slots=True)
class Expiry:
    """What was removed, or would be."""

    #: Days before this one are expired, now and by earlier expiries.
    before: date
    days: list[ExpiredDay] = field(default_factory=list)

    @property
    def files(self) -> int:
        return sum(day.files for day in self.days)

    @property
    def bytes(self) -> int:
        return sum(day.bytes for day in self.days)


def encode_marker(before: date) -> bytes:
    """The content of the marker."""
    return json.dumps({"before": before.isoformat()}).encode() + b"\n"


def decode_marker(content: bytes) -> date:
    """The day before which a ledger is expired. Raises ValueError."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{MARKER} must be JSON") from error
    if not isinstance(found, dict) or not isinstance(found.get("before"), str):
        raise ValueError(f'{MARKER} must be an object with "before"')
    return parse_day(found["before"])


def parse_day(text: str) -> date:
    """A day as 2026-11-16. Raises ValueError."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise ValueError(f"before must be a day such as 2026-11-16, not {text[:20]!r}")
    return day


def expired_before(store: Store) -> date | None:
    """The day before which the ledger is expired; None if nothing is.

    Raises:
        LedgerError: The marker cannot be understood.
    """
    try:
        with store.open("", MARKER) as file:
            content = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return None
    try:
        return decode_marker(content)
    except ValueError as error:
        raise LedgerError(f"the marker of expired days at {store.place} is damaged: {error}") from error


def is_expired(store: Store, folder: str) -> bool:
    """Whether a folder's day is expired. Raises LedgerError."""
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

    Files that are not the ledger's stay. Other processes may read, write and compact meanwhile.

    Args:
        dry_run: Only say what would be removed.
        force: Allow yesterday to be removed, too. Today never is: writers are at work there.

    Raises:
        ValueError: `before` is too late; names the bound.
        LedgerNotFoundError: There is nothing at this place.
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
    done = Expiry(max(before, expired_before(store) or before))
    if not dry_run:
        _record(store, before)
    for folder in store.folders():
        day = layout.day_of(folder)
        if day is not None and day < before.isoformat():
            removed = _expire_day(store, folder, date.fromisoformat(day), started_us, dry_run=dry_run)
            if removed.files:
                done.days.append(removed)
    if not dry_run:
        _record(store, before)  # another expiry, of fewer days, may have stored its marker at the same time
    return done


def _record(store: Store, before: date) -> None:
    """Store the marker, unless there is one of the same or a later day."""
    known = expired_before(store)
    if known is None or known < before:
        store.put("", MARKER, encode_marker(before))


def _expire_day(store: Store, folder: str, day: date, now_us: int, *, dry_run: bool) -> ExpiredDay:
    sizes = {name: size for name, size in sorted(store.sizes(folder).items()) if _is_removed(name, now_us)}
    if not dry_run:
        # By name a sidecar comes after its compacted file, which would count again without it.
        for name in sizes:
            store.delete(folder, name)
        store.remove_folder_if_empty(folder)
    return ExpiredDay(day, len(sizes), sum(sizes.values()))


def _is_removed(name: str, now_us: int) -> bool:
    if layout.FileName.parse(name) is not None or layout.parse_sidecar(name) is not None:
        return True
    temporary = layout.parse_temp(name)
    return temporary is not None and temporary.written_us < now_us - layout.OLD_TEMP_US
