"""What Spark's tasks of a reconciliation do: sort out slices of the ledger, then judge messages by ranges of keys.

They read and write files themselves, with Arrow: rows never go through Java, which would take many times as long
(docs/decisions/014). A task that is repeated writes files of other names, and only names that were handed over count.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from twinbus.ledger.layout import DAY_US, end_of_day_us
from twinbus.ledger.reading import LedgerFile
from twinbus.ledger.schema import pa, pq
from twinbus.ledger.store import Store

from .codes import Array
from .events import PATHS, Gathering
from .facts import ACCEPTED, COLUMNS, EVENTS, OPEN, RECEIVED, SETTLED, plain
from .judging import Rules, by_destination, judge
from .places import DayPlaces
from .results import Results
from .settling import sort_out
from .slices import Slice

#: So many keys are compared at a time.
KEYS = 1_000_000
#: What comes of all tasks: a JSON object for each slice or range.
FOUND = "found string"

_ROW_GROUP = 65_536
_REPEATING = ["destination", "subscription", "sends", "moves", "scheduled", "stage", "operation", "outcome", "day"]
_LEAST, _KEYS = -(2**63), 2**64

Tasks = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Made:
    """What a task has made of a slice."""

    day: str
    #: What was written, by kind, as paths below the results.
    files: Mapping[str, str]
    places: DayPlaces

    def to_json(self) -> dict[str, Any]:
        return {"day": self.day, "files": self.files, "places": self.places.to_json()}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Made:
        return cls(given["day"], given["files"], DayPlaces.from_json(given["places"]))


def sorting(ledger: Store, results: Results, folder: str, slices: Sequence[Slice]) -> Tasks:
    """The function for `mapInArrow` that sorts out slices: each row that it is given is the number of one."""

    def sort(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(numbers):
            yield _found(sort_slice(ledger, results, folder, slices[number]).to_json())

    return sort


def sort_slice(ledger: Store, results: Results, folder: str, one: Slice) -> Made:
    """Sort out one slice, and write what is kept of it."""
    gathering = Gathering(one.times)
    for name in one.files:
        with LedgerFile(ledger, one.folder, name, encoded=PATHS) as file:
            for table in file.tables(COLUMNS, within=one.times):
                gathering.add(table)
    found = sort_out(gathering.events(), gathering.paths, number_of(one.day))
    tables = {**found.settled, OPEN: [found.open]}
    files = {
        kind: _write(results, f"{folder}/{one.day}/{kind}", parts)
        for kind, parts in tables.items()
        if any(map(len, parts))
    }
    places = DayPlaces(tuple(found.places), gathering.paths.spelt, gathering.cancelled, gathering.dropped)
    return Made(one.day, files, places)


def _write(results: Results, start: str, parts: Sequence[pa.Table]) -> str:
    path, file = f"{start}-{uuid.uuid4().hex}.parquet", BytesIO()
    repeating = [name for name in _REPEATING if name in parts[0].schema.names]
    with pq.ParquetWriter(
        file, parts[0].schema, compression="zstd", compression_level=1, use_dictionary=repeating, store_schema=False
    ) as writer:
        for table in parts:
            writer.write_table(table, _ROW_GROUP)
    results.write_bytes(path, file.getbuffer())
    return path


def number_of(day: str) -> int:
    """Days since the epoch at the end of a day, given as 2026-11-16."""
    return end_of_day_us(day) // DAY_US


# ---- ranges of keys ----


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of all slices, and what of it is to be judged."""

    results: Results
    #: The files of each slice, by kind.
    slices: Sequence[Mapping[str, str]]
    #: Days, by number, and destinations whose accepted messages are to be judged though they are settled.
    doubtful: Set[tuple[int, str]]
    rules: Rules


def judging(kept: Kept, folder: str, ranges: int) -> Tasks:
    """The function for `mapInArrow` that judges messages: each row that it is given is the number of a key range."""

    def judge_ranges(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(numbers):
            bounds = _LEAST + _KEYS * number // ranges, _LEAST + _KEYS * (number + 1) // ranges - 1
            yield _found(judge_range(kept, folder, *bounds))

    return judge_ranges


def judge_range(kept: Kept, folder: str, least: int, most: int) -> dict[str, Any]:
    """Judge the messages with keys from `least` to `most`: `Counts`, and the file of `anomalies`, if there are any."""
    several = _keys_of_several(kept, least, most)
    events = _rows(kept, OPEN, least, most, EVENTS)
    received = _rows(kept, RECEIVED, least, most, SETTLED, lambda table: _has_key(table, several))
    accepted = _rows(
        kept, ACCEPTED, least, most, SETTLED, lambda table: _has_key(table, several) | _is_in(table, kept.doubtful)
    )
    counts, anomalies = judge(events, pa.concat_tables([received, accepted]), kept.rules)
    counts.accepted = by_destination(accepted.filter(pa.array(~_is_in(accepted, kept.doubtful))))
    file = _write(kept.results, f"{folder}/part", [anomalies]) if len(anomalies) else None
    return {**counts.to_json(), "anomalies": file}


def _keys_of_several(kept: Kept, least: int, most: int) -> Array:
    """The keys of settled messages of which several slices tell.

    That slices have a key in common means that their messages must be compared, not that they are the same.
    """
    keys, slices, settled = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, bool)]
    for number, files in enumerate(kept.slices):
        for kind, path in files.items():
            for table in _row_groups(kept.results, path, ["message_key"], least, most):
                found = table["message_key"].to_numpy()
                found = found[(least <= found) & (found <= most)]
                keys.append(found)
                slices.append(np.full(len(found), number))
                settled.append(np.full(len(found), kind != OPEN))
    return of_several(*(np.concatenate(one) for one in (keys, slices, settled)))


def of_several(keys: Array, slices: Array, is_settled: Array) -> Array:
    """The keys that several slices have, and under which one of them has a settled message."""
    if not len(keys):
        return keys
    order = np.argsort(keys)
    keys, slices = keys[order], slices[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    differ = np.minimum.reduceat(slices, starts) != np.maximum.reduceat(slices, starts)
    found: Array = keys[starts][differ & np.logical_or.reduceat(is_settled[order], starts)]
    return found


def _rows(
    kept: Kept,
    kind: str,
    least: int,
    most: int,
    schema: pa.Schema,
    is_wanted: Callable[[pa.Table], Array] | None = None,
) -> pa.Table:
    """The rows of all slices of one kind with keys from `least` to `most`, of these those that are wanted."""
    found = [plain(schema).empty_table()]
    for files in kept.slices:
        if kind in files:
            for table in _row_groups(kept.results, files[kind], schema.names, least, most):
                keys = table["message_key"].to_numpy()
                is_here = (least <= keys) & (keys <= most)
                rows = np.flatnonzero(is_here if is_wanted is None else is_here & is_wanted(table))
                found.append(table.take(pa.array(rows)).cast(plain(schema)))
    return pa.concat_tables(found)


def _has_key(table: pa.Table, keys: Array) -> Array:
    return np.isin(table["message_key"].to_numpy(), keys)


def _is_in(table: pa.Table, doubtful: Set[tuple[int, str]]) -> Array:
    """Whether the day and the destination of a row are among these."""
    if not doubtful:
        return np.zeros(len(table), bool)
    rows = zip(table["day"].to_pylist(), table["destination"].to_pylist(), strict=True)
    return np.fromiter((row in doubtful for row in rows), bool, len(table))


def _row_groups(results: Results, path: str, columns: Sequence[str], least: int, most: int) -> Iterator[pa.Table]:
    """The row groups of a file that may have keys from `least` to `most`."""
    with results.open_file(path) as opened:
        file = pq.ParquetFile(opened)
        at = file.schema_arrow.get_field_index("message_key")
        for number in range(file.num_row_groups):
            known = file.metadata.row_group(number).column(at).statistics
            if known.min <= most and least <= known.max:
                yield file.read_row_group(number, columns=columns)


def _numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _found(what: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"found": [json.dumps(what, ensure_ascii=False)]})
