"""Merges many small files of past days into a few large ones.

Readers and writers may work meanwhile. A sidecar lists the files whose rows a compacted file holds. It is written first
and takes effect when the compacted file appears, so readers never see a row twice or miss one. Replaced files are
removed a day later, when no process still reads them. Until then, readers that ignore sidecars see rows twice and must
remove duplicates by `op_id`. Concurrent compactions are safe (`layout.select`).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from . import layout
from .expiry import is_expired
from .ledger_errors import LedgerError, LedgerFilesChangedError
from .ledger_reader import Day, LedgerFile, NotALedgerFileError, UnreadableFile, claims_of, survey
from .schema import new_file_writer, pa, pc
from .store import Store, open_store

SETTLE_SECONDS = 3600.0
KEEP_SECONDS = 86_400.0
TARGET_ROWS = 1_000_000
#: Most files merged into one: the sidecar lists them all, and every reader loads it.
MOST_INPUTS = 5_000
#: Most names that a sidecar takes over from the sidecars of its inputs.
MOST_INHERITED = 100_000
ROW_GROUP = 131_072


@dataclass(slots=True)
class Compaction:
    """What a compaction has done."""

    #: Files that were merged, the files that replace them, and their rows.
    replaced_files: int = 0
    new_files: int = 0
    rows: int = 0
    #: Files that were removed: replaced long ago, void, or left behind by killed processes.
    removed_files: int = 0
    unreadable: list[UnreadableFile] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """The settings of one compaction, with the time at which it looked at a day."""

    started_us: int
    keep_us: int
    target_rows: int
    now_us: Callable[[], int]
    random_bytes: Callable[[int], bytes]


def compact(
    url: str | os.PathLike[str],
    *,
    settle_seconds: float = SETTLE_SECONDS,
    keep_seconds: float = KEEP_SECONDS,
    target_rows: int = TARGET_ROWS,
    storage_options: Mapping[str, Any] | None = None,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Compaction:
    """Compact past days, and remove files that earlier compactions have replaced.

    Args:
        settle_seconds: How long to wait after the end of a day before compacting it, for late rows.
        keep_seconds: How long replaced files are kept. Must be longer than any read or compaction takes.
        target_rows: Rows of a compacted file, roughly. Files with at least half as many are not merged.

    Raises:
        ValueError: An argument is out of bounds.
        LedgerNotFoundError: There is no ledger at this folder or URL.
        LedgerError: A day took longer than half of `keep_seconds`, so its result was discarded; no rows are lost.
    """
    if settle_seconds < 0:
        raise ValueError(f"settle_seconds must be at least 0, not {settle_seconds!r}")
    if keep_seconds <= 0:
        raise ValueError(f"keep_seconds must be more than 0, not {keep_seconds!r}")
    if target_rows < 1:
        raise ValueError(f"target_rows must be at least 1, not {target_rows!r}")
    store = open_store(url, storage_options)
    contents = survey(store)
    result = Compaction(unreadable=contents.unreadable)
    for day in contents.days:
        if is_expired(store, day.folder):
            continue  # its files arrived late or are being removed
        started_us = now_us()
        settings = _Settings(
            started_us=started_us,
            keep_us=int(keep_seconds * 1e6),
            target_rows=target_rows,
            now_us=now_us,
            random_bytes=random_bytes,
        )
        _remove_old_files(store, day, settings, result)
        day_name = layout.day_of(day.folder)
        assert day_name is not None
        if layout.end_of_day_us(day_name) + settle_seconds * 1e6 <= started_us:
            _compact_day(store, day, settings, result)
    return result


def _remove_old_files(store: Store, day: Day, settings: _Settings, result: Compaction) -> None:
    """Remove void files, old replaced files, old orphaned sidecars and old temporary files."""
    before_us = settings.started_us - settings.keep_us
    replaced_by: dict[str, list[str]] = defaultdict(list)
    for name, replacement in day.selection.replaced.items():
        if _is_older(replacement, before_us):
            replaced_by[replacement].append(name)
    replaced = [
        name for replacement, names in replaced_by.items() if _is_readable(store, day, replacement) for name in names
    ]
    # Void files first: they must not outlive the file that made them void.
    for name in (*day.selection.void, *replaced):
        store.delete(day.folder, name)
        if layout.is_compacted(name):  # the sidecar goes last: without it, the compacted file would be live
            store.delete(day.folder, layout.sidecar_name(name))
        result.removed_files += 1
    # A new sidecar may still get its compacted file.
    for sidecar in day.orphans:
        parsed = layout.parse_sidecar(sidecar)
        if parsed is not None and parsed.written_us < before_us:
            store.delete(day.folder, sidecar)
            result.removed_files += 1
    result.removed_files += store.remove_temporaries(day.folder, settings.started_us - layout.OLD_TEMP_US)


def _is_older(name: str, time_us: int) -> bool:
    parsed = layout.FileName.parse(name)
    return parsed is not None and parsed.written_us < time_us


def _is_readable(store: Store, day: Day, name: str) -> bool:
    """Return whether a compacted file is readable; if not, the files that it replaces are kept."""
    try:
        LedgerFile(store, day.folder, name).close()
    except (NotALedgerFileError, FileNotFoundError):
        return False
    return True


def _compact_day(store: Store, day: Day, settings: _Settings, result: Compaction) -> None:
    """Merge the small files of a day, in groups of about `target_rows` rows."""
    group: list[str] = []
    group_rows = 0
    for name, rows in _small_files(store, day, settings, result):
        group.append(name)
        group_rows += rows
        if group_rows >= settings.target_rows or len(group) == MOST_INPUTS:
            _merge(store, day, group, settings, result)
            group, group_rows = [], 0
    _merge(store, day, group, settings, result)


def _small_files(store: Store, day: Day, settings: _Settings, result: Compaction) -> Iterable[tuple[str, int]]:
    """Yield the name and the rows of each live file with less than half of `target_rows`."""
    for name in day.selection.live:
        try:
            with LedgerFile(store, day.folder, name) as file:
                rows = file.rows
        except NotALedgerFileError as error:
            result.unreadable.append(UnreadableFile(f"{day.folder}/{name}", str(error)))
        except FileNotFoundError:
            continue  # another compaction removed it
        else:
            if 2 * rows < settings.target_rows:
                yield name, rows


def _merge(store: Store, day: Day, group: list[str], settings: _Settings, result: Compaction) -> None:
    """Write one compacted file with the rows of a group, and its sidecar. Does nothing for fewer than two files."""
    tables, inputs = [], []
    for name in group:
        try:
            with LedgerFile(store, day.folder, name) as file:
                tables += list(file.tables())
        except NotALedgerFileError as error:
            result.unreadable.append(UnreadableFile(f"{day.folder}/{name}", str(error)))
        except FileNotFoundError:
            return  # another compaction removed it: the next run compacts the remaining files
        else:
            inputs.append(name)
    if len(inputs) < 2:
        return
    # Files that an input has replaced would be live again once that input is removed.
    claims = {name for name, replacement in day.selection.replaced.items() if replacement in inputs}
    # The pipeline may have read files that have been compacted twice since, and must find where their rows are now.
    claims |= _inherited_claims(store, day, inputs)
    rows = _without_duplicates(pa.concat_tables(tables)).sort_by("ts")
    data = BytesIO()
    with new_file_writer(data) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP)
    writer_id, number = settings.random_bytes(8).hex(), result.new_files + 1
    new_name = str(layout.FileName(settings.started_us, writer_id, os.getpid(), number, is_compacted=True))
    sidecar = layout.sidecar_name(new_name)
    store.put(day.folder, sidecar, layout.encode_claims(claims.union(inputs)))
    # The name holds the time of the survey. If the file came late, another compaction could already remove its inputs.
    if settings.now_us() - settings.started_us > settings.keep_us // 2:
        store.delete(day.folder, sidecar)
        raise LedgerError(
            f"compacting {day.folder} took too long: expected at most {settings.keep_us / 2e6:g} s, half of"
            f" keep_seconds; no rows of the ledger at {store.place} are lost; run it again, or increase keep_seconds"
        )
    if is_expired(store, day.folder):  # it expired after the survey
        store.delete(day.folder, sidecar)
        return
    store.put(day.folder, new_name, data.getvalue())
    result.new_files += 1
    result.replaced_files += len(inputs)
    result.rows += rows.num_rows


def _inherited_claims(store: Store, day: Day, inputs: Iterable[str]) -> set[str]:
    """Return the files that compacted inputs replace; none if there are too many."""
    inherited: set[str] = set()
    for name in filter(layout.is_compacted, inputs):
        try:
            claims = claims_of(store, day.folder, name)
        except (NotALedgerFileError, LedgerFilesChangedError):
            continue
        inherited.update(claim for claim in claims if layout.FileName.parse(claim) is not None)
    return inherited if len(inherited) <= MOST_INHERITED else set()


def _without_duplicates(rows: pa.Table) -> pa.Table:
    """Return the rows without repeated `op_id`s, so that readers need not look for duplicates within a file."""
    if pc.count_distinct(rows["op_id"]).as_py() == rows.num_rows:
        return rows
    numbered = rows.select(["op_id"]).append_column("number", pa.array(range(rows.num_rows), pa.int64()))
    return rows.take(numbered.group_by("op_id").aggregate([("number", "min")])["number_min"])
