"""What Spark's tasks of a reconciliation do: read slices of the ledger, write what is kept of them, and compare keys.

They read and write files themselves, with Arrow: rows never go through Java, which would take many times as long
(docs/decisions/014). A task that is repeated writes files of other names, and only names that were handed over count.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from twinbus.ledger.layout import DAY_US, end_of_day_us
from twinbus.ledger.reading import LedgerFile
from twinbus.ledger.schema import pa, pq
from twinbus.ledger.store import Store

from .events import PATHS, Array, Gathering
from .facts import ACCEPTED, COLUMNS, OPEN, RECEIVED, SETTLED, ddl
from .places import DayPlaces
from .results import Results
from .settling import sort_out
from .slices import Slice

#: So many keys are compared at a time.
KEYS = 1_000_000
#: What comes of `sorting`: a JSON object for each slice.
MADE = "made string"
#: What comes of `crossing`.
CROSSING = f"{ddl(SETTLED)}, kind string"

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

    def to_json(self) -> str:
        return json.dumps({"day": self.day, "files": self.files, "places": self.places.to_json()}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Made:
        given = json.loads(text)
        return cls(given["day"], given["files"], DayPlaces.from_json(given["places"]))


def sorting(ledger: Store, results: Results, folder: str, slices: Sequence[Slice]) -> Tasks:
    """The function for `mapInArrow` that sorts out slices: each row that it is given is the number of one."""

    def sort(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(numbers):
            made = sort_slice(ledger, results, folder, slices[number]).to_json()
            yield pa.RecordBatch.from_pydict({"made": [made]})

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


# ---- messages of several slices ----


def crossing(results: Results, kept: Sequence[Mapping[str, str]], parts: int) -> Tasks:
    """The function for `mapInArrow` that finds settled messages of which several slices tell.

    Keys are compared, in so many parts; each row that the function is given is the number of a part. That two slices
    have a key in common means that their messages must be compared, not that they are the same.

    Args:
        kept: The files of each slice, by kind.
    """

    def cross(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(numbers):
            bounds = _LEAST + _KEYS * number // parts, _LEAST + _KEYS * (number + 1) // parts - 1
            yield from cross_part(results, kept, *bounds)

    return cross


def cross_part(results: Results, kept: Sequence[Mapping[str, str]], least: int, most: int) -> Iterator[pa.RecordBatch]:
    """The settled messages with keys from `least` to `most` of which several slices tell."""
    keys: list[Array] = []
    slices: list[Array] = []
    settled: list[Array] = []
    for number, files in enumerate(kept):
        for kind, path in files.items():
            for table in _row_groups(results, path, ["message_key"], least, most):
                found = table["message_key"].to_numpy()
                found = np.unique(found[(least <= found) & (found <= most)])
                keys.append(found)
                slices.append(np.full(len(found), number, np.int32))
                settled.append(np.full(len(found), kind != OPEN))
    several = of_several(*(np.concatenate(one) for one in (keys, slices, settled))) if keys else np.empty(0, np.int64)
    if not len(several):
        return
    for files in kept:
        for kind in (RECEIVED, ACCEPTED):
            if kind in files:
                for table in _row_groups(results, files[kind], SETTLED.names, least, most):
                    rows = np.flatnonzero(np.isin(table["message_key"].to_numpy(), several))
                    chosen = table.take(pa.array(rows)).append_column("kind", pa.array([kind] * len(rows), pa.string()))
                    yield from chosen.to_batches()


def of_several(keys: Array, slices: Array, is_settled: Array) -> Array:
    """The keys that several slices have, and under which one of them has a settled message."""
    order = np.argsort(keys)
    keys, slices = keys[order], slices[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    differ = np.minimum.reduceat(slices, starts) != np.maximum.reduceat(slices, starts)
    found: Array = keys[starts][differ & np.logical_or.reduceat(is_settled[order], starts)]
    return found


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
