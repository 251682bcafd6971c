"""Makes few large files of many small ones, while others read and write.

A sidecar names the files whose rows a compacted file holds. It is written first and counts from the moment the
compacted file is there, so no row is ever seen twice or not at all. Replaced files are removed a day later, when no one
can still be reading them. Readers that ignore sidecars may see a row in both files for that day: `op_id` tells them.
Two compactions at once do no harm (`layout.select`).
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
#: A sidecar names all of them, and every reader loads it.
MOST_INPUTS = 5_000
#: Names that it may take over from the sidecars of its inputs.
MOST_INHERITED = 100_000
ROW_GROUP = 131_072


@dataclass(slots=True)
class Compaction:
    """What was done."""

    #: Files that were read and replaced, and the files that replace them.
    replaced_files: int = 0
    new_files: int = 0
    rows: int = 0
    #: Files that were removed: replaced long ago, void, or left behind by killed writers.
    removed_files: int = 0
    unreadable: list[UnreadableFile] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
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
    """Compact the days that are over, and remove what earlier compactions have replaced.

    Args:
        settle_seconds: How long after its end a day is left alone: late rows come then.
        keep_seconds: How long replaced files are kept. Longer than anybody reads, and than a compaction takes.
        target_rows: Files get about as many rows; those with half as many are left as they are.

    Raises:
        ValueError: Names the argument and its bound.
        LedgerNotFoundError: There is nothing at this place.
        LedgerError: It took so long that its result might be taken for an old one; nothing is lost.
    """
    if settle_seconds < 0:
        raise ValueError(f"settle_seconds must be at least 0, not {settle_seconds!r}")
    if keep_seconds <= 0:
        raise ValueError(f"keep_seconds must be more than 0, not {keep_seconds!r}")
    if target_rows < 1:
        raise ValueError(f"target_rows must be at least 1, not {target_rows!r}")
    store = open_store(url, storage_options)
    found = survey(store)
    done = Compaction(unreadable=found.unreadable)
    for day in found.days:
        if is_expired(store, day.folder):
            continue  # what is there comes late, or is being removed
        started = now_us()
        terms = _Terms(
            started_us=started,
            keep_us=int(keep_seconds * 1e6),
            target_rows=target_rows,
            now_us=now_us,
            random_bytes=random_bytes,
        )
        _sweep(store, day, terms, done)
        name = layout.day_of(day.folder)
        assert name is not None
        if layout.end_of_day_us(name) + settle_seconds * 1e6 <= started:
            _compact_day(store, day, terms, done)
    return done


def _sweep(store: Store, day: Day, terms: _Terms, done: Compaction) -> None:
    """Remove what nobody needs any more."""
    before_us = terms.started_us - terms.keep_us
    old: dict[str, list[str]] = defaultdict(list)
    for name, by in day.selection.replaced.items():
        if _is_older(by, before_us):
            old[by].append(name)
    replaced = [name for by, names in old.items() if _is_readable(store, day, by) for name in names]
    # Void ones first: they must not outlive the file that made them void.
    for name in (*day.selection.void, *replaced):
        store.delete(day.folder, name)
        if layout.is_compacted(name):  # a compacted file without its sidecar would count: the sidecar goes last
            store.delete(day.folder, layout.sidecar_name(name))
        done.removed_files += 1
    # A young one may be waiting for its compacted file.
    for sidecar in day.orphans:
        parsed = layout.parse_sidecar(sidecar)
        if parsed is not None and parsed.written_us < before_us:
            store.delete(day.folder, sidecar)
            done.removed_files += 1
    done.removed_files += store.remove_temporaries(day.folder, terms.started_us - layout.OLD_TEMP_US)


def _is_older(name: str, time_us: int) -> bool:
    parsed = layout.FileName.parse(name)
    return parsed is not None and parsed.written_us < time_us


def _is_readable(store: Store, day: Day, name: str) -> bool:
    """Whether the file that replaces others can stand in for them; if not, they are kept."""
    try:
        LedgerFile(store, day.folder, name).close()
    except (NotALedgerFileError, FileNotFoundError):
        return False
    return True


def _compact_day(store: Store, day: Day, terms: _Terms, done: Compaction) -> None:
    group: list[str] = []
    rows = 0
    for name, count in _small_files(store, day, terms, done):
        group.append(name)
        rows += count
        if rows >= terms.target_rows or len(group) == MOST_INPUTS:
            _merge(store, day, group, terms, done)
            group, rows = [], 0
    _merge(store, day, group, terms, done)


def _small_files(store: Store, day: Day, terms: _Terms, done: Compaction) -> Iterable[tuple[str, int]]:
    for name in day.selection.live:
        try:
            with LedgerFile(store, day.folder, name) as file:
                rows = file.rows
        except NotALedgerFileError as error:
            done.unreadable.append(UnreadableFile(f"{day.folder}/{name}", str(error)))
        except FileNotFoundError:
            continue  # another compaction was here
        else:
            if 2 * rows < terms.target_rows:
                yield name, rows


def _merge(store: Store, day: Day, group: list[str], terms: _Terms, done: Compaction) -> None:
    """Write one file with the rows of the group."""
    tables, inputs = [], []
    for name in group:
        try:
            with LedgerFile(store, day.folder, name) as file:
                tables += list(file.tables())
        except NotALedgerFileError as error:
            done.unreadable.append(UnreadableFile(f"{day.folder}/{name}", str(error)))
        except FileNotFoundError:
            return  # another compaction was here: the next one sees what is left
        else:
            inputs.append(name)
    if len(inputs) < 2:
        return
    # Files that an input has replaced, and that are still there, would come to life again when the input is removed.
    covered = {name for name, by in day.selection.replaced.items() if by in inputs}
    # The pipeline may have read files that were compacted twice since: it must find out where their rows are.
    covered |= _inherited(store, day, inputs)
    rows = _each_once(pa.concat_tables(tables)).sort_by("ts")
    data = BytesIO()
    with new_file_writer(data) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP)
    writer_id, number = terms.random_bytes(8).hex(), done.new_files + 1
    new = str(layout.FileName(terms.started_us, writer_id, os.getpid(), number, is_compacted=True))
    store.put(day.folder, layout.sidecar_name(new), layout.encode_claims(covered.union(inputs)))
    # Its name says when the day was looked at. What appears when others already remove by newer names is a danger.
    if terms.now_us() - terms.started_us > terms.keep_us // 2:
        store.delete(day.folder, layout.sidecar_name(new))
        raise LedgerError(f"compacting {day.folder} took too long")
    if is_expired(store, day.folder):  # since it was read
        store.delete(day.folder, layout.sidecar_name(new))
        return
    store.put(day.folder, new, data.getvalue())
    done.new_files += 1
    done.replaced_files += len(inputs)
    done.rows += rows.num_rows


def _inherited(store: Store, day: Day, inputs: Iterable[str]) -> set[str]:
    """What compacted inputs replace themselves."""
    found: set[str] = set()
    for name in filter(layout.is_compacted, inputs):
        try:
            claims = claims_of(store, day.folder, name)
        except (NotALedgerFileError, LedgerFilesChangedError):
            continue
        found.update(one for one in claims if layout.FileName.parse(one) is not None)
    return found if len(found) <= MOST_INHERITED else set()


def _each_once(rows: pa.Table) -> pa.Table:
    """Without rows that are there again: readers need not compare the rows of one file with each other."""
    if pc.count_distinct(rows["op_id"]).as_py() == rows.num_rows:
        return rows
    numbered = rows.select(["op_id"]).append_column("number", pa.array(range(rows.num_rows), pa.int64()))
    return rows.take(numbered.group_by("op_id").aggregate([("number", "min")])["number_min"])
