"""Makes ledgers to measure and test with: weeks of traffic with outages, from a seed, millions of rows in seconds.

    python bench/ledgers.py /tmp/ledger --rows 20_000_000 --seed 7

What is in it is known: `generate` returns what a right report must say (`Expected`). The same seed makes the same rows.
Rows are made a block of messages at a time, in Arrow; each block has random numbers of its own, so that several
processes can make one ledger. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from twinbus.ledger.layout import FileName, day_of, folder_of
from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import SCHEMA, new_file_writer, pa, pc, to_batch
from twinbus.ledger.store import open_store
from twinbus.pipeline.usage import BILLED, SIZED, UNIT_BYTES, Usage, is_transferred

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000  # microseconds
FAILOVER, PING, POLL = MINUTE, MINUTE, 15 * MINUTE
BLOCK = 100_000  # messages
ROW_GROUP = 131_072
#: Of the time in which messages were diverted.
DRAIN_PART = 4
PAIRING = "contoso"
SYPHON = "syphon-1"
PRIMARY, SECONDARY = NamespaceRole.PRIMARY, NamespaceRole.SECONDARY


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a ledger looks like.

    Raises:
        ValueError: Names the field and the bound.
    """

    #: About as many.
    rows: int = 1_000_000
    seed: int = 1
    entities: int = 20
    clients: int = 4
    backlog_queues: int = 10
    start: date = date(2026, 11, 1)
    days: int = 7
    #: At even distances; every second one hits only the entities with an even number.
    outages: int = 3
    outage_minutes: int = 40
    #: Of a million messages so many have each kind of trouble: an acknowledgement lost, a redelivery, …
    trouble: int = 200
    #: Accepted messages that never arrive, and messages that arrive though nobody sent them.
    lost: int = 0
    unexpected: int = 0
    #: False: the ledger ends in the middle of the last drain.
    is_drained: bool = True
    #: Of a thousand rows so many are in a second file, too.
    repeats: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("rows", 1, 10**10),
            ("entities", 1, 100_000),
            ("clients", 1, 10_000),
            ("backlog_queues", 1, 1_000),
            ("days", 1, 3_650),
            ("outages", 0, 10_000),
            ("outage_minutes", 2, 600),
            ("trouble", 0, 100_000),
            ("lost", 0, self.messages),
            ("unexpected", 0, 100_000),
            ("repeats", 0, 1_000),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from {least} to {most}, not {getattr(self, name)}")
        if self.outages * 2 * self.outage_minutes * MINUTE > self.days * DAY:
            raise ValueError(f"outages must fit into {self.days} days twice, not {self.outages}")

    @property
    def messages(self) -> int:
        return max(1, self.rows // 3)

    @property
    def start_us(self) -> int:
        return int(datetime(self.start.year, self.start.month, self.start.day, tzinfo=UTC).timestamp()) * SECOND

    @property
    def windows(self) -> list[Window]:
        gap = self.days * DAY // (self.outages + 1)
        length = self.outage_minutes * MINUTE
        # With the failover the first ping, then one a minute; the first after the end gets through.
        return [
            Window(number, at, at + length, at + -(-length // PING) * PING)
            for number in range(self.outages)
            for at in [self.start_us + gap * (number + 1)]
        ]

    def hits(self, window: Window) -> list[int]:
        """The entities that an outage takes away."""
        return [one for one in range(self.entities) if window.number % 2 == 0 or one % 2 == 0]

    def moves_until(self, window: Window) -> int:
        """When the syphon stops to move what the outage has diverted."""
        if self.is_drained or window.number < self.outages - 1:
            return window.recovered + window.diverting + HOUR
        return window.recovered + window.diverting // DRAIN_PART // 2


class Window(NamedTuple):
    """An outage."""

    number: int
    began: int
    ended: int
    #: When a ping got through.
    recovered: int

    @property
    def diverting(self) -> int:
        return self.recovered - self.began


@dataclass
class OutageOfEntity:
    """What an outage did to one entity. Times are microseconds since the epoch; None: never."""

    entity: str
    #: The first send that failed.
    suspected: int | None = None
    #: The first ping.
    failed_over: int | None = None
    recovered: int | None = None
    #: The last completed move.
    drained: int | None = None
    diverted: int = 0
    moved: int = 0


@dataclass
class Expected:
    """What a right report of the ledger says."""

    rows: int = 0
    #: With the repeats.
    rows_in_files: int = 0
    files: int = 0
    #: Rows by namespace, stage, operation and outcome.
    operations: Counter[tuple[NamespaceRole, Stage, OperationKind, Outcome]] = field(default_factory=Counter)
    #: Billed units, those without an answer, and bytes transferred, by day, namespace, entity and stage.
    usage: Counter[tuple[date, NamespaceRole, str, Stage, str]] = field(default_factory=Counter)
    attempted: int = 0
    acknowledged: int = 0
    #: Attempted and arrived.
    ok: int = 0
    #: Ids. Duplicated ones arrived twice, with two sequence numbers; recovered ones arrived though nobody said so.
    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    in_flight: list[str] = field(default_factory=list)
    #: Ids of messages that were received twice with the same sequence number: no duplicates.
    redelivered: list[str] = field(default_factory=list)
    #: Rows that the ledger says it lacks.
    dropped: int = 0
    outages: dict[tuple[int, str], OutageOfEntity] = field(default_factory=dict)

    def usages(self) -> list[Usage]:
        """What `twinbus.pipeline.usage.usage_of` counts in the ledger."""
        keys = sorted({key[:4] for key in self.usage})
        names = ("operations", "unanswered", "transferred")
        return [Usage(*key, *(self.usage[*key, name] for name in names)) for key in keys if self.usage[*key, names[0]]]

    def add(self, other: Expected) -> None:
        """Take in what another block has."""
        for name in ("rows", "rows_in_files", "files", "attempted", "acknowledged", "ok", "dropped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("lost", "unexpected", "duplicated", "recovered", "in_flight", "redelivered"):
            getattr(self, name).extend(getattr(other, name))
        self.operations.update(other.operations)
        self.usage.update(other.usage)
        for key, more in other.outages.items():
            mine = self.outages.setdefault(key, OutageOfEntity(more.entity))
            mine.diverted += more.diverted
            mine.moved += more.moved
            for name, choose in (("suspected", min), ("failed_over", min), ("recovered", max), ("drained", max)):
                known = [one for one in (getattr(mine, name), getattr(more, name)) if one is not None]
                setattr(mine, name, choose(known) if known else None)


def generate(folder: Path | str, shape: Shape, *, workers: int = 1) -> Expected:
    """Write a ledger; several `workers` are processes."""
    blocks = range(-(-shape.messages // BLOCK))
    expected = Expected()
    tasks = [(str(folder), shape, number) for number in blocks]
    if workers == 1:
        found: Iterable[Expected] = map(_write_block, tasks)
        for one in found:
            expected.add(one)
    else:
        with ProcessPoolExecutor(workers) as pool:
            for one in pool.map(_write_block, tasks):
                expected.add(one)
    expected.add(_write_rest(str(folder), shape))
    return expected


# ---- random numbers and columns ----


class Dice:
    """Random columns from a seed."""

    def __init__(self, *seed: int) -> None:
        self._random = random.Random(":".join(map(str, seed)))

    def below(self, count: int, most: int) -> pa.Array:
        """Whole numbers from 0 to `most` - 1."""
        bits = pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(self._random.randbytes(4 * count))])
        scaled = pc.multiply(bits.cast(pa.uint64()), pa.scalar(most, pa.uint64()))
        return pc.shift_right(scaled, pa.scalar(32, pa.uint64())).cast(pa.int64())

    def op_ids(self, count: int) -> pa.Array:
        data = pa.py_buffer(self._random.randbytes(16 * count))
        return pa.Array.from_buffers(pa.binary(16), count, [None, data])

    def message_ids(self, count: int) -> tuple[pa.Array, pa.Array]:
        """Ids of 32 digits, and their keys as `twinbus.ledger.schema.message_key` has them."""
        digits = self._random.randbytes(16 * count).hex().encode()
        offsets = pa.array(range(0, 32 * count + 1, 32), pa.int32())
        ids = pa.StringArray.from_buffers(count, offsets.buffers()[1], pa.py_buffer(digits))
        md5 = hashlib.md5
        keys = b"".join([md5(digits[at : at + 32]).digest()[:8] for at in range(0, 32 * count, 32)])
        return ids, pa.array(struct.unpack(f">{count}q", keys), pa.int64())


def _any(*masks: pa.Array) -> pa.Array:
    found = masks[0]
    for mask in masks[1:]:
        found = pc.or_(found, mask)
    return found


def _range(values: pa.Array, least: int, below: int) -> pa.Array:
    return pc.and_(pc.greater_equal(values, least), pc.less(values, below))


# ---- a block of messages ----


@dataclass
class Block:
    """Some messages, and the rows that they leave behind."""

    shape: Shape
    number: int

    def __post_init__(self) -> None:
        shape = self.shape
        self.dice = Dice(shape.seed, self.number)
        self.first = self.number * BLOCK
        self.count = min(BLOCK, shape.messages - self.first)
        self.rows: list[pa.Table] = []
        self.expected = Expected()
        self.entities = pa.array([f"queue-{one:04}" for one in range(shape.entities)])
        self.clients = pa.array([f"client-{one + 1}" for one in range(shape.clients)])
        self.queues = pa.array([f"{PAIRING}/x-servicebus-transfer/{one}" for one in range(shape.backlog_queues)])
        self.messages = self._messages()

    def _messages(self) -> pa.Table:
        dice, count, shape = self.dice, self.count, self.shape
        step = shape.days * DAY // shape.messages
        number = pa.array(range(self.first, self.first + count), pa.int64())
        at = pc.add(pc.add(pc.multiply(number, step), dice.below(count, max(1, step))), shape.start_us)
        # Most are small; one of a hundred has several units of 64 KB.
        small, large = dice.below(count, 3_000), dice.below(count, 200_000)
        size = pc.add(300, pc.if_else(pc.less(dice.below(count, 100), 1), large, small))
        ids, keys = dice.message_ids(count)
        return pa.table(
            {
                "number": number,
                "at": at,
                "entity": dice.below(count, shape.entities),
                "client": self.clients.take(dice.below(count, shape.clients)),
                "queue": self.queues.take(dice.below(count, shape.backlog_queues)),
                "size": size,
                "id": ids,
                "key": keys,
                "roll": dice.below(count, 1_000_000),
                "trial": dice.below(count, 8),
            }
        )

    # ---- rows ----

    def add(
        self,
        some: pa.Table,
        at: pa.Array,
        kind: OperationKind,
        stage: Stage,
        outcome: Outcome = Outcome.DONE,
        *,
        attempt: int = 1,
        delivery: int | None = None,
        error: str | None = None,
        sequence: pa.Array | None = None,
    ) -> None:
        """One row for each of the messages."""
        count = some.num_rows
        if not count:
            return
        is_backlog = stage in (Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE)
        is_move = stage in (Stage.BACKLOG_RECEIVE, Stage.PRIMARY_SEND)
        entity = self.entities.take(some["entity"].combine_chunks())
        nothing = pa.nulls(count, pa.string())
        columns = {
            "op_id": self.dice.op_ids(count),
            "ts": at,
            "pairing": pa.repeat(PAIRING, count),
            "client": pa.repeat(SYPHON, count) if is_move else some["client"],
            "namespace": _repeat(SECONDARY if is_backlog else PRIMARY, count),
            "entity": some["queue"] if is_backlog else entity,
            "operation": _repeat(kind, count),
            "stage": _repeat(stage, count),
            "message_id": some["id"],
            "message_key": some["key"],
            "destination": nothing if stage is Stage.PRIMARY_RECEIVE else entity,
            "backlog_queue": some["queue"] if is_backlog or is_move else nothing,
            "sequence_number": pa.nulls(count, pa.int64()) if sequence is None else sequence,
            "delivery_count": pa.nulls(count, pa.int64()) if delivery is None else pa.repeat(delivery, count),
            "attempt": pa.repeat(attempt, count),
            "bytes": some["size"] if kind in SIZED else pa.repeat(0, count),
            "count": pa.repeat(1, count),
            "outcome": _repeat(outcome, count),
            "error": nothing if error is None else pa.repeat(error, count),
            "latency_us": pc.add(400, self.dice.below(count, 8_000)),
        }
        self.rows.append(pa.table([pc.cast(columns[one.name], one.type) for one in SCHEMA], schema=SCHEMA))

    def receive(self, some: pa.Table, at: pa.Array, *, twice: bool = False) -> None:
        """They arrive at their receiver; `twice`: as two messages, with two sequence numbers."""
        for copy in range(2 if twice else 1):
            when = pc.add(at, 40_000 + copy * SECOND)
            sequence = pc.add(pc.multiply(some["number"], 2), copy + 1)
            # Some are given back once, and come again under the same number.
            again = _range(some["roll"], 900_000, 900_000 + self.shape.trouble)
            back, back_at = some.filter(again), pc.filter(when, again)
            numbers = pc.filter(sequence, again)
            self.add(back, back_at, OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, delivery=0, sequence=numbers)
            given = pc.add(back_at, 2_000)
            self.add(back, given, OperationKind.ABANDON, Stage.PRIMARY_RECEIVE, sequence=numbers)
            if not copy:
                self.expected.redelivered += back["id"].to_pylist()
            last = pc.add(when, 5_000)
            for delivery, chosen in ((1, again), (0, pc.invert(again))):
                part, part_at, numbers = some.filter(chosen), pc.filter(last, chosen), pc.filter(sequence, chosen)
                stage = Stage.PRIMARY_RECEIVE
                self.add(part, part_at, OperationKind.RECEIVE, stage, delivery=delivery, sequence=numbers)
                self.add(part, pc.add(part_at, 3_000), OperationKind.COMPLETE, stage, sequence=numbers)
        self.expected.ok += some.num_rows
        if twice:
            self.expected.duplicated += some["id"].to_pylist()

    # ---- healthy times ----

    def direct(self, some: pa.Table) -> None:
        """They went to the primary; some in trouble."""
        trouble, roll = self.shape.trouble, some["roll"]
        kinds = [_range(roll, number * trouble, (number + 1) * trouble) for number in range(4)]
        self._sent_again(some.filter(kinds[0]), arrived=True)
        self._sent_again(some.filter(kinds[1]), arrived=False)
        # The caller got an error: one arrived all the same, one did not.
        recovered, gone = some.filter(kinds[2]), some.filter(kinds[3])
        for part in (recovered, gone):
            error = "OperationTimeoutError"
            self.add(part, part["at"], OperationKind.SEND, Stage.DIRECT, Outcome.UNKNOWN, error=error)
        self.expected.recovered += recovered["id"].to_pylist()
        self.receive(recovered, recovered["at"])
        plain = some.filter(pc.invert(_any(*kinds)))
        self.add(plain, plain["at"], OperationKind.SEND, Stage.DIRECT)
        self.expected.acknowledged += plain.num_rows
        self._arrive_or_not(plain, plain["at"])

    def _sent_again(self, some: pa.Table, *, arrived: bool) -> None:
        """The answer to the first attempt was lost."""
        error = "ServiceBusConnectionError"
        self.add(some, some["at"], OperationKind.SEND, Stage.DIRECT, Outcome.UNKNOWN, error=error)
        again = pc.add(some["at"], SECOND)
        self.add(some, again, OperationKind.SEND, Stage.DIRECT, attempt=2)
        self.expected.acknowledged += some.num_rows
        self.receive(some, again, twice=arrived)

    def _arrive_or_not(self, some: pa.Table, at: pa.Array) -> None:
        shape = self.shape
        numbers = [(2 * one + 1) * shape.messages // (2 * shape.lost) for one in range(shape.lost)]
        is_lost = pc.is_in(some["number"], pa.array(numbers, pa.int64()))
        self.expected.lost += some.filter(is_lost)["id"].to_pylist()
        there = pc.invert(is_lost)
        self.receive(some.filter(there), pc.filter(at, there))

    # ---- outages ----

    def divert(self, some: pa.Table, window: Window) -> None:
        """They went to the backlog, and home when the outage was over."""
        tried = pc.less(some["at"], window.began + FAILOVER)
        failed = some.filter(tried)
        error = "ServiceBusConnectionError"
        self.add(failed, failed["at"], OperationKind.SEND, Stage.DIRECT, Outcome.UNKNOWN, error=error)
        self.add(some, pc.add(some["at"], 20_000), OperationKind.SEND, Stage.BACKLOG_SEND)
        self.expected.acknowledged += some.num_rows
        moved_at = pc.add(pc.divide(pc.subtract(some["at"], window.began), DRAIN_PART), window.recovered)
        is_moved = pc.less(moved_at, self.shape.moves_until(window))
        moved, moved_at = some.filter(is_moved), pc.filter(moved_at, is_moved)
        # An attempt that got no answer had arrived now and then.
        is_late = pc.and_(pc.equal(some["trial"], 0), tried)
        left = some.filter(pc.invert(is_moved))
        late_left = pc.filter(is_late, pc.invert(is_moved))
        self.expected.in_flight += left.filter(pc.invert(late_left))["id"].to_pylist()
        early = left.filter(late_left)
        self.receive(early, early["at"])
        done = self._move(moved, moved_at, pc.filter(is_late, is_moved))
        self._note(window, some, failed, moved, done)

    def _move(self, some: pa.Table, at: pa.Array, is_late: pa.Array) -> pa.Array:
        """Bring them home; answers when each was completed."""
        is_unsure = _range(some["roll"], 0, self.shape.trouble)
        back, again = Stage.BACKLOG_RECEIVE, pc.filter(at, is_unsure)
        unsure, numbers = some.filter(is_unsure), some["number"]
        first = pc.filter(numbers, is_unsure)
        self.add(unsure, again, OperationKind.RECEIVE, back, delivery=0, sequence=first)
        kind, stage, sent_at = OperationKind.SEND, Stage.PRIMARY_SEND, pc.add(again, 5_000)
        self.add(unsure, sent_at, kind, stage, Outcome.UNKNOWN, error="amqp:connection:forced", sequence=first)
        self.add(unsure, pc.add(again, 9_000), OperationKind.ABANDON, back, delivery=0, sequence=first)
        last = pc.if_else(is_unsure, pc.add(at, 3 * SECOND), at)
        for delivery, chosen in ((1, is_unsure), (0, pc.invert(is_unsure))):
            part, part_at, sequence = some.filter(chosen), pc.filter(last, chosen), pc.filter(numbers, chosen)
            known: dict[str, Any] = {"delivery": delivery, "sequence": sequence}
            self.add(part, part_at, OperationKind.RECEIVE, back, **known)
            self.add(part, pc.add(part_at, 5_000), kind, stage, attempt=delivery + 1, **known)
            self.add(part, pc.add(part_at, 12_000), OperationKind.COMPLETE, back, **known)
        is_twice = pc.or_(is_unsure, is_late)
        self.receive(some.filter(is_twice), pc.filter(last, is_twice), twice=True)
        once = pc.invert(is_twice)
        self._arrive_or_not(some.filter(once), pc.filter(last, once))
        return pc.add(last, 12_000)

    def _note(self, window: Window, some: pa.Table, failed: pa.Table, moved: pa.Table, done: pa.Array) -> None:
        found: dict[int, dict[str, Any]] = {}
        for table, name, how in (
            (some, "diverted", "count"),
            (failed, "suspected", "min"),
            (moved.append_column("done", done), "moved", "count"),
            (moved.set_column(1, "at", done), "drained", "max"),
        ):
            for row in table.group_by("entity").aggregate([("at", how)]).to_pylist():
                found.setdefault(row["entity"], {})[name] = row[f"at_{how}"]
        for entity, values in found.items():
            name = self.entities[entity].as_py()
            self.expected.outages[window.number, name] = OutageOfEntity(name, **values)

    def make(self) -> pa.Table:
        """All rows, in the order of their times."""
        rest = self.messages
        self.expected.attempted += rest.num_rows
        for window in self.shape.windows:
            within = _range(rest["at"], window.began, window.recovered)
            hit = pc.is_in(rest["entity"], pa.array(self.shape.hits(window), pa.int64()))
            chosen = pc.and_(within, hit)
            if pc.any(chosen).as_py():
                self.divert(rest.filter(chosen), window)
                rest = rest.filter(pc.invert(chosen))
        self.direct(rest)
        return pa.concat_tables(self.rows).sort_by("ts")


def _repeat(code: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(int(code), pa.int8()), count)


# ---- everything else ----


def _rest_operations(shape: Shape, expected: Expected) -> Iterator[Operation]:
    """Polls, pings, management, messages from nowhere, and a gap in the ledger."""
    dice = random.Random(f"{shape.seed}:rest")

    def an_operation(kind: OperationKind, stage: Stage, entity: str, ts: int, **columns: Any) -> Operation:
        given: dict[str, Any] = {"client": SYPHON, "namespace": SECONDARY, "outcome": Outcome.DONE}
        op_id = dice.randbytes(16).hex()
        return Operation(
            op_id=op_id, pairing=PAIRING, operation=kind, stage=stage, entity=entity, ts=ts, **{**given, **columns}
        )

    start = shape.start_us
    for index in range(shape.backlog_queues):
        queue = f"{PAIRING}/x-servicebus-transfer/{index}"
        yield an_operation(OperationKind.GET, Stage.MANAGE, queue, start, client="client-1")
        yield an_operation(OperationKind.CREATE, Stage.MANAGE, queue, start + 30_000, client="client-1")
        for at in range(start + POLL - 1, start + shape.days * DAY, POLL):
            yield an_operation(
                OperationKind.POLL, Stage.POLL, queue, at, outcome=Outcome.EMPTY, count=0, backlog_queue=queue
            )
    for window in shape.windows:
        for entity in (f"queue-{one:04}" for one in shape.hits(window)):
            first = window.began + FAILOVER
            key = window.number, entity
            expected.outages[key] = OutageOfEntity(entity, failed_over=first, recovered=window.recovered)
            for at in range(first, window.recovered + 1, PING):
                failed = {} if at >= window.ended else {"outcome": Outcome.UNKNOWN, "error": "OperationTimeoutError"}
                for client in range(shape.clients):
                    who = {"client": f"client-{client + 1}", "namespace": PRIMARY, **failed}
                    yield an_operation(OperationKind.PING, Stage.PING, entity, at, **who)
    for number in range(shape.unexpected):
        at = start + dice.randrange(shape.days * DAY - SECOND)
        facts = {"message_id": f"nobody-{shape.seed}-{number}", "sequence_number": 2 * shape.messages + 10 + number}
        facts |= {"namespace": PRIMARY, "client": "client-1"}
        stage = Stage.PRIMARY_RECEIVE
        yield an_operation(OperationKind.RECEIVE, stage, "queue-0000", at, bytes=500, delivery_count=0, **facts)
        yield an_operation(OperationKind.COMPLETE, stage, "queue-0000", at + 3_000, **facts)
        expected.unexpected.append(str(facts["message_id"]))
    expected.dropped = 17
    gap = {"namespace": NamespaceRole.NEITHER, "client": "client-1", "outcome": Outcome.FAILED, "error": "BufferFull"}
    yield an_operation(OperationKind.DROPPED, Stage.LEDGER, "", start + HOUR, count=17, **gap)


def _write_rest(folder: str, shape: Shape) -> Expected:
    expected = Expected()
    operations = list(_rest_operations(shape, expected))
    table = pa.Table.from_batches([to_batch(operations)]).sort_by("ts")
    _write(folder, shape, -1, table, expected)
    return expected


def _write_block(task: tuple[str, Shape, int]) -> Expected:
    folder, shape, number = task
    block = Block(shape, number)
    _write(folder, shape, number, block.make(), block.expected)
    return block.expected


def _write(folder: str, shape: Shape, number: int, table: pa.Table, expected: Expected) -> None:
    """Write the rows into the folders of their days, some of them twice, and count them."""
    dice = Dice(shape.seed, number, 2)
    times = table["ts"].cast(pa.int64())
    day = times[0].as_py() // DAY
    while day <= times[-1].as_py() // DAY:
        rows = table.filter(_range(times, day * DAY, (day + 1) * DAY))
        if rows.num_rows:
            _put(folder, shape, 2 * (number + 1), rows, expected)
            _count(rows, expected)
            expected.rows += rows.num_rows
            repeated = rows.filter(pc.less(dice.below(rows.num_rows, 1_000), shape.repeats))
            if repeated.num_rows:
                _put(folder, shape, 2 * (number + 1) + 1, repeated, expected)
        day += 1


def _put(folder: str, shape: Shape, number: int, rows: pa.Table, expected: Expected) -> None:
    data = pa.BufferOutputStream()
    with new_file_writer(data) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP)
    first, last = (rows["ts"][at].cast(pa.int64()).as_py() for at in (0, -1))
    name = FileName(last, f"{shape.seed & (2**64 - 1):016x}", 1, number)
    open_store(folder).put(folder_of(first), str(name), data.getvalue())
    expected.rows_in_files += rows.num_rows
    expected.files += 1


def _count(rows: pa.Table, expected: Expected) -> None:
    """Count the rows of one day, by code and by what is billed."""
    text = day_of(folder_of(rows["ts"][0].cast(pa.int64()).as_py()))
    assert text is not None
    day = date.fromisoformat(text)
    sized = pc.is_in(rows["operation"], pa.array([int(one) for one in SIZED], pa.int8()))
    units = pc.if_else(sized, pc.divide(pc.add(rows["bytes"], UNIT_BYTES - 1), UNIT_BYTES), 1)
    slim = rows.select(["namespace", "stage", "operation", "outcome", "bytes"])
    slim = slim.append_column("who", pc.coalesce(rows["destination"], rows["entity"]))
    slim = slim.append_column("units", pc.max_element_wise(units, 1))
    keys = ["namespace", "stage", "operation", "outcome", "who"]
    for row in slim.group_by(keys).aggregate([("units", "sum"), ("bytes", "sum"), ([], "count_all")]).to_pylist():
        role, stage = NamespaceRole(row["namespace"]), Stage(row["stage"])
        kind, outcome = OperationKind(row["operation"]), Outcome(row["outcome"])
        expected.operations[role, stage, kind, outcome] += row["count_all"]
        if stage is Stage.LEDGER or outcome not in BILLED:
            continue
        key = day, role, row["who"], stage
        expected.usage[*key, "operations"] += row["units_sum"]
        expected.usage[*key, "unanswered"] += row["units_sum"] if outcome is Outcome.UNKNOWN else 0
        expected.usage[*key, "transferred"] += row["bytes_sum"] if is_transferred(role, kind, outcome) else 0


def _main() -> None:
    parser = argparse.ArgumentParser(description="Write a ledger to measure and test with.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    for name in ("rows", "seed", "entities", "clients", "days", "outages", "trouble", "lost", "unexpected", "repeats"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Shape, name), help="default: %(default)s")
    given = vars(parser.parse_args())
    folder, workers = given.pop("folder"), given.pop("workers")
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty")
    started = time.perf_counter()
    found = generate(folder, Shape(**given), workers=workers)
    seconds = time.perf_counter() - started
    size = sum(file.stat().st_size for file in folder.rglob("*.parquet"))
    print(f"{found.rows:,} rows in {found.files:,} files, {size / 1e6:,.0f} MB, in {seconds:.1f} s")
    counts = {name: getattr(found, name) for name in ("rows", "rows_in_files", "files", "attempted", "acknowledged")}
    words = ("lost", "unexpected", "duplicated", "recovered", "in_flight", "redelivered")
    print(json.dumps({**counts, "ok": found.ok, **{name: len(getattr(found, name)) for name in words}}))


if __name__ == "__main__":
    _main()
