"""What tasks of a reconciliation do: sort out slices of the ledger, then judge messages by ranges of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from twinbus.ledger.layout import DAY_US, end_of_day_us
from twinbus.ledger.reading import LedgerFile
from twinbus.ledger.schema import pa, pc, pq
from twinbus.ledger.store import Store

from .codes import Array
from .events import PATHS, Gathering
from .facts import ACCEPTED, COLUMNS, EVENTS, OPEN, RECEIVED, SETTLED, plain
from .judging import Rules, by_destination, judge
from .places import DayPlaces
from .results import Results
from .settling import sort_out
from .slices import Slice
from .tasks import Task, write_table

#: So many keys are compared at a time.
KEYS = 1_000_000
_ROW_GROUP = 65_536
_REPEATING = ["destination", "subscription", "sends", "moves", "scheduled", "stage", "operation", "outcome", "day"]
_LEAST, _KEYS = -(2**63), 2**64

#: Reads some columns of a row group.
Read = Callable[[Sequence[str]], pa.Table]


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


def sorting(ledger: Store, results: Results, folder: str, slices: Sequence[Slice]) -> Task:
    """The task that sorts out a slice, by its number, as `Made` in JSON's types."""
    return lambda number: sort_slice(ledger, results, folder, slices[number]).to_json()


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


def _write(results: Results, folder: str, parts: Sequence[pa.Table]) -> str:
    """Write what is kept: quickly, and so that a range of keys is found in it."""
    repeating = [name for name in _REPEATING if name in parts[0].schema.names]
    return write_table(results, folder, parts, rows=_ROW_GROUP, compression_level=1, use_dictionary=repeating)


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


def judging(kept: Kept, folder: str, ranges: int) -> Task:
    """The task that judges the messages of a range of keys, by its number."""

    def judge_one(number: int) -> dict[str, Any]:
        return judge_range(kept, folder, _LEAST + _KEYS * number // ranges, _LEAST + _KEYS * (number + 1) // ranges - 1)

    return judge_one


def judge_range(kept: Kept, folder: str, least: int, most: int) -> dict[str, Any]:
    """Judge the messages with keys from `least` to `most`: `Counts`, and the file of `anomalies`, if there are any."""
    several = _keys_of_several(kept, least, most)
    events = _rows(kept, OPEN, EVENTS, least, most, lambda keys, read: np.ones(len(keys), bool))
    received = _rows(kept, RECEIVED, SETTLED, least, most, lambda keys, read: np.isin(keys, several))
    accepted = _rows(
        kept,
        ACCEPTED,
        SETTLED,
        least,
        most,
        lambda keys, read: np.isin(keys, several) | _is_in(read(["day", "destination"]), kept.doubtful),
    )
    counts, anomalies = judge(events, pa.concat_tables([received, accepted]), kept.rules)
    counts.accepted = by_destination(accepted.filter(pa.array(~_is_in(accepted, kept.doubtful))))
    file = write_table(kept.results, folder, [anomalies]) if len(anomalies) else None
    return {**counts.to_json(), "anomalies": file}


def _keys_of_several(kept: Kept, least: int, most: int) -> Array:
    """The keys of settled messages of which several slices tell.

    That slices have a key in common means that their messages must be compared, not that they are the same.
    """
    keys, slices, settled = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, bool)]
    for number, files in enumerate(kept.slices):
        for kind, path in files.items():
            for found, _ in _row_groups(kept.results, path, least, most):
                chosen = found[(least <= found) & (found <= most)]
                keys.append(chosen)
                slices.append(np.full(len(chosen), number))
                settled.append(np.full(len(chosen), kind != OPEN))
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
    kept: Kept, kind: str, schema: pa.Schema, least: int, most: int, is_wanted: Callable[[Array, Read], Array]
) -> pa.Table:
    """The rows of all slices of one kind with keys from `least` to `most`, of these those that are wanted."""
    schema = plain(schema)
    found = [schema.empty_table()]
    for files in kept.slices:
        if kind in files:
            for keys, read in _row_groups(kept.results, files[kind], least, most):
                rows = np.flatnonzero((least <= keys) & (keys <= most) & is_wanted(keys, read))
                if len(rows):
                    found.append(read(schema.names).take(pa.array(rows)).cast(schema))
    return pa.concat_tables(found)


def _is_in(rows: pa.Table, doubtful: Set[tuple[int, str]]) -> Array:
    """Whether the day and the destination of a row are among these."""
    found = np.zeros(len(rows), bool)
    for day in {day for day, _ in doubtful}:
        names = pa.array([name for one, name in doubtful if one == day], pa.string())
        is_there = pc.and_(pc.equal(rows["day"], day), pc.is_in(rows["destination"], names))
        found |= is_there.to_numpy()
    return found


def _row_groups(results: Results, path: str, least: int, most: int) -> Iterator[tuple[Array, Read]]:
    """The keys of each row group that may have some from `least` to `most`, and what reads its other columns."""
    with results.open_file(path) as opened:
        file = pq.ParquetFile(opened)
        at = file.schema_arrow.get_field_index("message_key")
        for number in range(file.num_row_groups):
            known = file.metadata.row_group(number).column(at).statistics
            if known.min <= most and least <= known.max:
                read = partial(file.read_row_group, number)
                yield read(["message_key"])["message_key"].to_numpy(), read
