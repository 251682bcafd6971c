"""Makes few large files of many small ones, while others read and write.

A compacted file names the files whose rows it holds. From the moment it is there readers leave those out, so no row is
ever seen twice or not at all; they are removed a day later, when nobody can still be reading them. Other readers than
ours may see a row in both files for that day: `op_id` tells them. Two compactions at once do no harm (`layout.select`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from . import layout
from .errors import LedgerError
from .reading import Day, LedgerFile, NotALedgerFile, SetAside, survey
from .schema import new_file_writer, pa, pc
from .store import Store, open_store
from .writer import OLD_TEMP_US

SETTLE_SECONDS = 3600.0
KEEP_SECONDS = 86_400.0
TARGET_ROWS = 1_000_000
#: A compacted file names all of them, in metadata that every reader loads.
MOST_INPUTS = 5_000
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
    set_aside: list[SetAside] = field(default_factory=list)


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
        LedgerNotFound: There is nothing at this place.
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
    done = Compaction(set_aside=found.set_aside)
    for day in found.days:
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
    # Void ones first: they must not outlive the file that made them void.
    old = [name for name, by in day.selection.replaced.items() if _is_older(by, terms.started_us - terms.keep_us)]
    for name in (*day.selection.void, *old):
        store.delete(day.folder, name)
        done.removed_files += 1
    done.removed_files += store.remove_temporaries(day.folder, terms.started_us - OLD_TEMP_US)


def _is_older(name: str, time_us: int) -> bool:
    parsed = layout.FileName.parse(name)
    return parsed is not None and parsed.written_us < time_us


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
        except NotALedgerFile as error:
            done.set_aside.append(SetAside(f"{day.folder}/{name}", str(error)))
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
        except NotALedgerFile as error:
            done.set_aside.append(SetAside(f"{day.folder}/{name}", str(error)))
        except FileNotFoundError:
            return  # another compaction was here: the next one sees what is left
        else:
            inputs.append(name)
    if len(inputs) < 2:
        return
    # Files that an input has replaced, and that are still there, would come to life again when the input is removed.
    covered = {name for name, by in day.selection.replaced.items() if by in inputs}
    rows = _each_once(pa.concat_tables(tables)).sort_by("ts")
    data = BytesIO()
    with new_file_writer(data, covered.union(inputs)) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP)
    # Its name says when the day was looked at. What appears when others already remove by newer names is a danger.
    if terms.now_us() - terms.started_us > terms.keep_us // 2:
        raise LedgerError(f"compacting {day.folder} took too long")
    done.new_files += 1
    new = layout.FileName(terms.started_us, terms.random_bytes(8).hex(), os.getpid(), done.new_files, is_compacted=True)
    store.put(day.folder, str(new), data.getvalue())
    done.replaced_files += len(inputs)
    done.rows += rows.num_rows


def _each_once(rows: pa.Table) -> pa.Table:
    """Without rows that are there again: readers need not compare the rows of one file with each other."""
    if pc.count_distinct(rows["op_id"]).as_py() == rows.num_rows:
        return rows
    numbered = rows.select(["op_id"]).append_column("number", pa.array(range(rows.num_rows), pa.int64()))
    return rows.take(numbered.group_by("op_id").aggregate([("number", "min")])["number_min"])
