"""Tells the messages of a slice that are done with from those that are not, with arrays.

A message is *settled* if it was sent once, acknowledged, accepted once, and received once if there are receivers that
record: nothing but a row of another slice could change what is said of it, so a few numbers are kept of it. Of all
other messages, the *open* ones, every row is kept.

All rows of a message get one number and are sorted by it, so that a message is a run of neighbours, and what is asked
of it a sum or an extreme of the run. What looks like one message and is not (two ids may share a key) is open, where
ids are compared. A row that is there twice (docs/ledger.md) can make a message open, but never settled: so only open
ones are looked through for repeated rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from twinbus.ledger.recorder import OperationKind, Outcome, Stage
from twinbus.ledger.schema import pa, pc

from .codes import Array, operations, outcomes, stages, table_of
from .events import NOWHERE, RECEIVES, Events, Paths
from .facts import ACCEPTED, EVENTS, OPEN, RECEIVED, SETTLED
from .places import Place

#: How many rows of a run are of each sort: ten bits for each sum, all in one number, which is added up once.
_BITS = 10
_SENT, _ACKNOWLEDGED, _TAKEN, _MOVED, _SCHEDULED, _RECEIVED = (1 << _BITS * at for at in range(6))
_MOST = (1 << _BITS) - 1
_PLAIN = _SENT | _ACKNOWLEDGED | _TAKEN


def _weight(stage: Stage, operation: OperationKind, outcome: Outcome) -> int:
    """What a row adds to the sums of its message."""
    is_done, is_sent = outcome is Outcome.DONE, stage in (Stage.DIRECT, Stage.BACKLOG_SEND)
    return (
        _SENT * is_sent
        + _ACKNOWLEDGED * (is_sent and is_done)
        + _TAKEN * (stage in (Stage.DIRECT, Stage.PRIMARY_SEND) and is_done)
        + _MOVED * (stage is Stage.PRIMARY_SEND and is_done)
        + _SCHEDULED * (operation is OperationKind.SCHEDULE)
    )


_WEIGHTS = table_of(_weight, np.int64) + RECEIVES * _RECEIVED


@dataclass(frozen=True, slots=True)
class Sorted:
    """The messages of a slice."""

    #: What is kept of settled ones, by kind, in parts that are sorted by key; `SETTLED` is the schema.
    settled: dict[str, list[pa.Table]]
    #: The rows of open ones, each once; `EVENTS` is the schema.
    open: pa.Table
    places: list[Place]


def sort_out(events: Events, paths: Paths, day: int) -> Sorted:
    """Sort out the messages of a slice; `day` is the number of its day."""
    first = _Runs(events, paths)
    rest = first.rows_of_open()
    unique = rest.without_repeated()
    parts = [first]
    if len(unique) < len(rest):
        parts.append(_Runs(unique, paths))
        unique = parts[-1].rows_of_open()
    settled: dict[str, list[pa.Table]] = {RECEIVED: [], ACCEPTED: []}
    places: list[Place] = []
    for part in parts:
        for kind, table in part.settled(day):
            settled[kind].append(table)
            places += _places(kind, table)
    rows = _rows(unique, paths, day)
    # Receivers have reported there, whatever became of the message.
    received = pc.if_else(rows["number"].is_valid(), rows["ts"], None)
    reports = rows.append_column("received_ts", received).append_column(
        "accepted_ts", pa.nulls(len(rows), SETTLED.field("accepted_ts").type)
    )
    return Sorted(settled, rows, [*places, *_places(OPEN, reports)])


class _Runs:
    """Events sorted so that those of a message are neighbours."""

    def __init__(self, events: Events, paths: Paths) -> None:
        # The upper bits stay those of the message's key, so that what is written is sorted by them.
        number = events.key ^ paths.hashes()[events.destination] if len(events) else events.key
        self._order = np.argsort(number)
        self._events = events.take(self._order)
        self._paths = paths
        number = number[self._order]
        self._is_start = np.ones(len(number), bool)
        self._is_start[1:] = number[1:] != number[:-1]
        self._starts = np.flatnonzero(self._is_start)
        self._run_of = np.cumsum(self._is_start) - 1
        weights = _WEIGHTS[self._events.code]
        self._sums = self._added(weights)
        self._is_receive = weights >= _RECEIVED
        self._sort()

    def _sort(self) -> None:
        receives = self._sums >> 5 * _BITS
        is_plain = (self._sums & (_PLAIN * _MOST)) == _PLAIN
        lengths = np.diff(self._starts, append=len(self._events))
        settled = is_plain & ~self._is_mixed() & (lengths <= _MOST)
        self._at_subscriptions = self._greatest(self._events.subscription) > NOWHERE
        settled[self._runs_with_copies(settled & (receives > 1))] = False
        self._is_received = settled & (receives > 0)
        self._is_accepted = settled & (receives == 0) & (self._sum(_SCHEDULED) == 0)
        self._is_open = ~(self._is_received | self._is_accepted)

    def _is_mixed(self) -> Array:
        """Whether a run has rows of several messages."""
        rows, found = self._events, np.zeros(len(self._starts), bool)
        if not len(rows):
            return found
        differ = (rows.key[1:] != rows.key[:-1]) | (rows.destination[1:] != rows.destination[:-1])
        differ |= pc.not_equal(rows.ids[1:], rows.ids[:-1]).to_numpy(zero_copy_only=False)
        found[self._run_of[1:][differ & ~self._is_start[1:]]] = True
        return found

    def _runs_with_copies(self, chosen: Array) -> Array:
        """Of runs with several receives, those that got the message under several numbers at one place."""
        rows = np.flatnonzero(self._is_receive & chosen[self._run_of])
        run, place, number = self._run_of[rows], self._events.subscription[rows], self._events.number[rows]
        order = np.lexsort((number, place, run))
        run, place, number = run[order], place[order], number[order]
        same_run = run[1:] == run[:-1]
        is_copy = same_run & (place[1:] == place[:-1]) & (number[1:] != number[:-1])
        # A queue has no subscriptions: what seems to be both is left to those who compare.
        is_odd = same_run & (place[1:] != place[:-1]) & (place[:-1] == NOWHERE)
        found: Array = run[1:][is_copy | is_odd]
        return found

    def rows_of_open(self) -> Events:
        return self._events.take(np.flatnonzero(self._is_open[self._run_of])) if len(self._events) else self._events

    def settled(self, day: int) -> Iterator[tuple[str, pa.Table]]:
        """What is kept of settled messages, by kind."""
        for kind, chosen in ((RECEIVED, self._is_received), (ACCEPTED, self._is_accepted)):
            runs = np.flatnonzero(chosen)
            if len(runs):
                yield kind, self._of_messages(runs, day)
        rows = np.flatnonzero(self._is_receive & (self._is_received & self._at_subscriptions)[self._run_of])
        if len(rows):
            yield RECEIVED, self._of_subscriptions(rows, day)

    def _of_messages(self, runs: Array, day: int) -> pa.Table:
        """One row for each of these; for those of queues it says when and under which number they arrived."""
        rows, at = self._events, self._starts[runs]
        weights = _WEIGHTS[rows.code]
        of_queue = (self._sums[runs] >= _RECEIVED) & ~self._at_subscriptions[runs]
        received = self._greatest(np.where(self._is_receive, rows.ts, -1))[runs]
        accepted = self._greatest(np.where((weights & (_TAKEN * _MOST)) > 0, rows.ts, -1))[runs]
        columns = {
            "message_key": rows.key[at],
            "message_id": rows.ids.take(pa.array(at)),
            "destination": _named(rows.destination[at], self._paths),
            "subscription": pa.nulls(len(at), pa.string()),
            "sends": np.ones(len(at), np.int64),
            "moves": self._sum(_MOVED)[runs],
            "scheduled": self._sum(_SCHEDULED)[runs],
            "number": pa.array(self._greatest(rows.number)[runs], mask=~of_queue),
            "first_ts": self._least(rows.ts)[runs],
            "last_ts": self._greatest(rows.ts)[runs],
            "accepted_ts": accepted,
            "received_ts": pa.array(received, mask=~of_queue),
            "day": np.full(len(at), day, np.int32),
        }
        return _table(columns, SETTLED)

    def _of_subscriptions(self, rows: Array, day: int) -> pa.Table:
        """One row for each of these messages and each subscription that got it."""
        run, place = self._run_of[rows], self._events.subscription[rows]
        order = np.lexsort((self._events.ts[rows], place, run))
        is_last = np.ones(len(order), bool)
        is_last[:-1] = (run[order][1:] != run[order][:-1]) | (place[order][1:] != place[order][:-1])
        at = rows[order[is_last]]
        events, nothing = self._events, np.zeros(int(is_last.sum()), np.int64)
        columns = {
            "message_key": events.key[at],
            "message_id": events.ids.take(pa.array(at)),
            "destination": _named(events.destination[at], self._paths),
            "subscription": _named(events.subscription[at], self._paths),
            "sends": nothing,
            "moves": nothing,
            "scheduled": nothing,
            "number": events.number[at],
            "first_ts": events.ts[at],
            "last_ts": events.ts[at],
            "accepted_ts": pa.nulls(len(at), pa.int64()),
            "received_ts": events.ts[at],
            "day": np.full(len(at), day, np.int32),
        }
        return _table(columns, SETTLED)

    def _sum(self, weight: int) -> Array:
        found: Array = self._sums // weight & _MOST
        return found

    def _added(self, values: Array) -> Array:
        return np.add.reduceat(values, self._starts) if len(values) else values

    def _least(self, values: Array) -> Array:
        return np.minimum.reduceat(values, self._starts) if len(values) else values

    def _greatest(self, values: Array) -> Array:
        return np.maximum.reduceat(values, self._starts) if len(values) else values


def _named(numbers: Array, paths: Paths) -> pa.Array:
    """The paths of these numbers."""
    indices = pa.array(numbers.astype(np.int32), mask=numbers == NOWHERE)
    return pa.DictionaryArray.from_arrays(indices, pa.array(paths.names, pa.string()))


def _table(columns: dict[str, pa.Array | Array], schema: pa.Schema) -> pa.Table:
    arrays = [one if isinstance(one, pa.Array) else pa.array(one) for one in columns.values()]
    # Whole numbers become times without a copy.
    cast = [one if one.type == kind else one.cast(kind) for one, kind in zip(arrays, schema.types, strict=True)]
    return pa.Table.from_arrays(cast, schema=schema)


def _rows(events: Events, paths: Paths, day: int) -> pa.Table:
    columns = {
        "op_id": pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(events), [None, pa.py_buffer(events.ops)]),
        "message_key": events.key,
        "message_id": events.ids,
        "destination": _named(events.destination, paths),
        "subscription": _named(events.subscription, paths),
        "ts": events.ts,
        "stage": stages(events.code),
        "operation": operations(events.code),
        "outcome": outcomes(events.code),
        "number": pa.array(events.number, mask=~RECEIVES[events.code]),
        "day": np.full(len(events), day, np.int32),
    }
    return _table(columns, EVENTS)


def _places(kind: str, table: pa.Table) -> list[Place]:
    """How many rows of a table each place has, and when the messages were accepted and received."""
    names = ["accepted_ts", "received_ts"]
    rows = table.select(["destination", "subscription", *names])
    for name in names:
        rows = rows.set_column(rows.schema.get_field_index(name), name, rows[name].cast(pa.int64()))
    sums = rows.group_by(["destination", "subscription"]).aggregate(
        [([], "count_all"), ("accepted_ts", "max"), ("received_ts", "min"), ("received_ts", "max")]
    )
    found = ("destination", "subscription", "count_all", "accepted_ts_max", "received_ts_min", "received_ts_max")
    return [Place(kind, *(row[name] for name in found)) for row in sums.to_pylist()]
