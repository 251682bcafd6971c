"""The rows of a slice that tell of messages, as arrays: millions of rows become numbers, and few texts are touched.

Paths are the same in small and capital letters. They are made small once for each path that a file has, not for each
row: Parquet keeps them as numbers into a list, and so do we.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np

from twinbus.ledger.recorder import OperationKind, Outcome, Stage
from twinbus.ledger.schema import message_key, pa, pc

from .codes import Array, codes_of, table_of
from .facts import COLUMNS, NO_NUMBER
from .overlaps import Interval

#: Columns whose texts repeat, so that Parquet keeps numbers for them.
PATHS = ("destination", "entity")
#: Stands for the subscription where there is none.
NOWHERE = -1

_SUBSCRIPTIONS = "/subscriptions/"
#: Dead letters are no arrivals: whoever reads them had his chance before.
_SUB_QUEUE = "/$"
_OF_SENDERS = {
    (stage, kind)
    for stage in (Stage.DIRECT, Stage.BACKLOG_SEND)
    for kind in (OperationKind.SEND, OperationKind.SCHEDULE)
}
_OF_SYPHON = {
    (Stage.BACKLOG_RECEIVE, OperationKind.RECEIVE),
    (Stage.BACKLOG_RECEIVE, OperationKind.COMPLETE),
    (Stage.BACKLOG_RECEIVE, OperationKind.DEAD_LETTER),
    (Stage.PRIMARY_SEND, OperationKind.SEND),
}

RECEIVES = table_of(lambda *code: code == (Stage.PRIMARY_RECEIVE, OperationKind.RECEIVE, Outcome.DONE))
_EVENTS = RECEIVES | table_of(lambda stage, kind, _: (stage, kind) in _OF_SENDERS | _OF_SYPHON)
_CANCELLED = table_of(lambda _, kind, outcome: kind is OperationKind.CANCEL and outcome is Outcome.DONE)
_DROPPED = table_of(lambda _, kind, __: kind is OperationKind.DROPPED)


class Paths:
    """Numbers for paths in small letters."""

    def __init__(self) -> None:
        self.names: list[str] = []
        #: How paths with capital letters are written, by the path in small ones.
        self.spelt: dict[str, str] = {}
        self._numbers: dict[str, int] = {}

    def number(self, path: str) -> int:
        small = path.lower()
        if small != path:
            self.spelt[small] = min(path, self.spelt.get(small, path))
        found = self._numbers.get(small)
        if found is None:
            found = self._numbers[small] = len(self.names)
            self.names.append(small)
        return found

    def place(self, path: str) -> tuple[int, int]:
        """The destination and the subscription that a receiver's path is about."""
        at = path.lower().find(_SUBSCRIPTIONS)
        return (self.number(path), NOWHERE) if at < 0 else (self.number(path[:at]), self.number(path))

    def hashes(self) -> Array:
        """Sixteen bits for each path, to tell messages at different ones apart."""
        return np.array([zlib.crc32(one.encode()) & 0xFFFF for one in self.names], np.int64)


@dataclass(frozen=True, slots=True)
class Events:
    """Rows that tell of messages, by column. `ids` are the message ids, an array of Arrow."""

    ops: Array
    ids: pa.Array
    key: Array
    ts: Array
    code: Array
    destination: Array
    subscription: Array
    #: The sequence number where a receiver got the message; `NO_NUMBER` if its row has none, and of all other rows.
    number: Array

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: Array) -> Events:
        """Those at these places."""
        return Events(
            self.ops[rows],
            self.ids.take(pa.array(rows)),
            *(one[rows] for one in (self.key, self.ts, self.code, self.destination, self.subscription, self.number)),
        )

    def without_repeated(self) -> Events:
        """Each row once: a row that is there twice has the same `op_id`."""
        rows = _first_rows(self.ops)
        return self if len(rows) == len(self) else self.take(rows)


@dataclass(slots=True)
class Gathering:
    """Gathers the events of a slice from tables of the ledger, and what else must be known of it."""

    times: Interval
    paths: Paths = field(default_factory=Paths)
    _parts: list[Events] = field(default_factory=list)
    #: By `op_id`, for rows may be there twice: requests to cancel, and how many rows the ledger lacks.
    _cancelled: set[bytes] = field(default_factory=set)
    _dropped: dict[bytes, int] = field(default_factory=dict)

    @property
    def cancelled(self) -> int:
        """Requests to cancel scheduled messages."""
        return len(self._cancelled)

    @property
    def dropped(self) -> int:
        """Rows that the ledger says it lacks."""
        return sum(self._dropped.values())

    def add(self, table: pa.Table) -> None:
        """Take the events of a table with `COLUMNS`."""
        column = {name: table[name].unify_dictionaries().combine_chunks() for name in COLUMNS}
        ts = column["ts"].cast(pa.int64()).to_numpy()
        code = codes_of(table)
        here = (self.times.first <= ts) & (ts <= self.times.last)
        self._count_gaps(column, code, here)
        encoded = {name: _encoded(column[name]) for name in PATHS}
        entity, destination = (
            encoded[name].indices.fill_null(NOWHERE).to_numpy() for name in ("entity", "destination")
        )
        names = {name: one.dictionary.to_pylist() for name, one in encoded.items()}
        is_receive = RECEIVES[code]
        is_dead = np.array([_SUB_QUEUE in one for one in names["entity"]] + [False])
        here &= _EVENTS[code] & ~(is_receive & is_dead[entity]) & column["message_id"].is_valid().to_numpy(False)
        rows = np.flatnonzero(here)
        is_receive, entity, destination = is_receive[rows], entity[rows], destination[rows]
        of_senders = np.where(
            destination >= 0, self._numbers(names["destination"])[destination], self._numbers(names["entity"])[entity]
        )
        of_receivers = np.array([self.paths.place(one) for one in names["entity"]] + [(NOWHERE, NOWHERE)], np.int32)[
            entity
        ]
        ids = column["message_id"].take(pa.array(rows))
        numbers = column["sequence_number"].fill_null(NO_NUMBER).to_numpy()[rows]
        self._parts.append(
            Events(
                _fixed(column["op_id"])[rows],
                ids,
                self._keys(column["message_key"].take(pa.array(rows)), ids),
                ts[rows],
                code[rows],
                np.where(is_receive, of_receivers[:, 0], of_senders).astype(np.int32),
                np.where(is_receive, of_receivers[:, 1], NOWHERE).astype(np.int32),
                np.where(is_receive, numbers, NO_NUMBER),
            )
        )

    def events(self) -> Events:
        """All of them. What was gathered is given away: there is memory for one copy only."""
        parts, self._parts = self._parts, []
        if not parts:
            nothing = np.empty(0, np.int64)
            return Events(np.empty(0, "V16"), pa.array([], pa.string()), *([nothing] * 3), *([nothing] * 3))
        ids = pa.concat_arrays([one.ids for one in parts])
        arrays = ("key", "ts", "code", "destination", "subscription", "number")
        joined = {name: np.concatenate([getattr(one, name) for one in parts]) for name in ("ops", *arrays)}
        return Events(joined["ops"], ids, *(joined[name] for name in arrays))

    def _numbers(self, names: list[str]) -> Array:
        # One more for rows that have none.
        return np.array([*(self.paths.number(one) for one in names), NOWHERE], np.int32)

    def _keys(self, keys: pa.Array, ids: pa.Array) -> Array:
        if keys.null_count:  # a file of somebody else's
            keys = pc.coalesce(keys, pa.array([message_key(one) for one in ids.to_pylist()], pa.int64()))
        found: Array = keys.to_numpy()
        return found

    def _count_gaps(self, column: dict[str, pa.Array], code: Array, here: Array) -> None:
        for row in np.flatnonzero(here & (_CANCELLED[code] | _DROPPED[code])).tolist():
            op_id = column["op_id"][row].as_py()
            if _DROPPED[code[row]]:
                self._dropped[op_id] = column["count"][row].as_py()
            else:
                self._cancelled.add(op_id)


def _encoded(paths: pa.Array) -> pa.DictionaryArray:
    return paths if pa.types.is_dictionary(paths.type) else paths.dictionary_encode()  # a column that a file lacks


def _fixed(ids: pa.FixedSizeBinaryArray) -> Array:
    """Sixteen bytes for each row, without a copy."""
    whole = np.frombuffer(ids.buffers()[1], "V16") if len(ids) else np.empty(0, "V16")
    return whole[ids.offset : ids.offset + len(ids)]


def first_rows(op_ids: pa.FixedSizeBinaryArray) -> Array:
    """The places of all rows that are no repetition of another, in order."""
    return _first_rows(_fixed(op_ids))


def _first_rows(op_ids: Array) -> Array:
    halves = np.ascontiguousarray(op_ids).view(np.uint64).reshape(-1, 2)
    order = np.lexsort((halves[:, 0], halves[:, 1]))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (halves[order][1:] != halves[order][:-1]).any(axis=1)
    return np.sort(order[is_first])
