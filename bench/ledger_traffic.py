"""Generates the rows of a ledger: messages in blocks with Arrow, all other rows one by one."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator
from itertools import count
from typing import Any

from bench.ledger_shape import (
    DAY,
    DRAIN_PART,
    FAILOVER,
    HOUR,
    PING,
    POLL,
    SECOND,
    Expected,
    OutageOfEntity,
    Shape,
    Window,
)

from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import SCHEMA, pa, pc
from twinbus.tables.billed_units import SIZED

PAIRING = "contoso"
SYPHON = "syphon-1"
PRIMARY, SECONDARY = NamespaceRole.PRIMARY, NamespaceRole.SECONDARY
NO_ANSWER = "ServiceBusConnectionError"


class Dice:
    """Generates random columns from a seed."""

    def __init__(self, *seed: int) -> None:
        self._random = random.Random(":".join(map(str, seed)))
        self._process = self._random.randbytes(8)
        self._next_id = 0x1000_0000_0000_0000

    def below(self, count: int, most: int) -> pa.Array:
        """Random integers from 0 to `most` - 1."""
        bits = pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(self._random.randbytes(4 * count))])
        scaled = pc.multiply(bits.cast(pa.uint64()), pa.scalar(most, pa.uint64()))
        return pc.shift_right(scaled, pa.scalar(32, pa.uint64())).cast(pa.int64())

    def op_ids(self, count: int) -> pa.Array:
        """Operation ids as `twinbus.ledger.recorder` makes them: one half identifies the process, the other counts."""
        first, self._next_id = self._next_id, self._next_id + count
        data = b"".join(self._process + number.to_bytes(8, "big") for number in range(first, first + count))
        return pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(data)])

    def message_ids(self, count: int) -> tuple[pa.Array, pa.Array]:
        """Ids of 32 digits, and their keys as `twinbus.ledger.schema.message_key` computes them."""
        digits = self._random.randbytes(16 * count).hex().encode()
        offsets = pa.array(range(0, 32 * count + 1, 32), pa.int32())
        ids = pa.StringArray.from_buffers(count, offsets.buffers()[1], pa.py_buffer(digits))
        md5 = hashlib.md5
        keys = b"".join([md5(digits[at : at + 32]).digest()[:8] for at in range(0, 32 * count, 32)])
        return ids, pa.array(struct.unpack(f">{count}q", keys), pa.int64())


def _any(*masks: pa.Array) -> pa.Array:
    result = masks[0]
    for mask in masks[1:]:
        result = pc.or_(result, mask)
    return result


def in_range(values: pa.Array, least: int, below: int) -> pa.Array:
    return pc.and_(pc.greater_equal(values, least), pc.less(values, below))


class Block:
    """A block of messages and the rows about them."""

    def __init__(self, shape: Shape, number: int) -> None:
        self.shape = shape
        self.dice = Dice(shape.seed, number)
        self.first = number * shape.block
        self.count = min(shape.block, shape.messages - self.first)
        self.rows: list[pa.Table] = []
        self.expected = Expected()
        self.entities = pa.array([f"queue-{number:04}" for number in range(shape.entities)])
        self.clients = pa.array([f"client-{number + 1}" for number in range(shape.clients)])
        self.queues = pa.array([f"{PAIRING}/x-servicebus-transfer/{index}" for index in range(shape.backlog_queues)])
        self.messages = self._messages()

    def _messages(self) -> pa.Table:
        dice, count, shape = self.dice, self.count, self.shape
        step = shape.days * DAY // shape.messages
        number = pa.array(range(self.first, self.first + count), pa.int64())
        at = pc.add(pc.add(pc.multiply(number, step), dice.below(count, max(1, step))), shape.start_us)
        # Most messages are small; one in a hundred has several units of 64 KB.
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
        messages: pa.Table,
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
        """Add one row for each of the messages."""
        count = messages.num_rows
        if not count:
            return
        is_backlog = stage in (Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE)
        is_move = stage in (Stage.BACKLOG_RECEIVE, Stage.PRIMARY_SEND)
        entity = self.entities.take(messages["entity"].combine_chunks())
        nothing = pa.nulls(count, pa.string())
        columns = {
            "op_id": self.dice.op_ids(count),
            "ts": at,
            "pairing": pa.repeat(PAIRING, count),
            "client": pa.repeat(SYPHON, count) if is_move else messages["client"],
            "namespace": _repeat(SECONDARY if is_backlog else PRIMARY, count),
            "entity": messages["queue"] if is_backlog else entity,
            "operation": _repeat(kind, count),
            "stage": _repeat(stage, count),
            "message_id": messages["id"],
            "message_key": messages["key"],
            "destination": nothing if stage is Stage.PRIMARY_RECEIVE else entity,
            "backlog_queue": messages["queue"] if is_backlog or is_move else nothing,
            "sequence_number": pa.nulls(count, pa.int64()) if sequence is None else sequence,
            "delivery_count": pa.nulls(count, pa.int64()) if delivery is None else pa.repeat(delivery, count),
            "attempt": pa.repeat(attempt, count),
            "bytes": messages["size"] if kind in SIZED else pa.repeat(0, count),
            "count": pa.repeat(1, count),
            "outcome": _repeat(outcome, count),
            "error": nothing if error is None else pa.repeat(error, count),
            "latency_us": pc.add(400, self.dice.below(count, 8_000)),
        }
        self.rows.append(pa.table([pc.cast(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA))

    def receive(self, messages: pa.Table, at: pa.Array, *, twice: bool = False) -> None:
        """Add arrivals at the receiver; `twice`: as two messages with two sequence numbers."""
        for copy in range(2 if twice else 1):
            when = pc.add(at, 40_000 + copy * SECOND)
            sequence = pc.add(pc.multiply(messages["number"], 2), copy + 1)
            # Some are abandoned once and redelivered with the same sequence number.
            is_redelivered = in_range(messages["roll"], 900_000, 900_000 + self.shape.trouble)
            back, back_at = messages.filter(is_redelivered), pc.filter(when, is_redelivered)
            numbers = pc.filter(sequence, is_redelivered)
            self.add(back, back_at, OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, delivery=0, sequence=numbers)
            self.add(back, pc.add(back_at, 2_000), OperationKind.ABANDON, Stage.PRIMARY_RECEIVE, sequence=numbers)
            if not copy:
                self.expected.redelivered += back["id"].to_pylist()
            last = pc.add(when, 5_000)
            for delivery, chosen in ((1, is_redelivered), (0, pc.invert(is_redelivered))):
                part, part_at, numbers = messages.filter(chosen), pc.filter(last, chosen), pc.filter(sequence, chosen)
                stage = Stage.PRIMARY_RECEIVE
                self.add(part, part_at, OperationKind.RECEIVE, stage, delivery=delivery, sequence=numbers)
                self.add(part, pc.add(part_at, 3_000), OperationKind.COMPLETE, stage, sequence=numbers)
        self.expected.ok += messages.num_rows
        if twice:
            self.expected.duplicated += messages["id"].to_pylist()

    # ---- without outage ----

    def direct(self, messages: pa.Table) -> None:
        """Add sends to the primary, messages of them with trouble."""
        trouble, roll = self.shape.trouble, messages["roll"]
        kinds = [in_range(roll, number * trouble, (number + 1) * trouble) for number in range(4)]
        self._sent_again(messages.filter(kinds[0]), arrived=True)
        self._sent_again(messages.filter(kinds[1]), arrived=False)
        # The caller got an error: the first kind arrived anyway, the second did not.
        recovered, gone = messages.filter(kinds[2]), messages.filter(kinds[3])
        for part in (recovered, gone):
            self.add(part, part["at"], OperationKind.SEND, Stage.DIRECT, Outcome.UNKNOWN, error=NO_ANSWER)
        self.expected.recovered += recovered["id"].to_pylist()
        self.receive(recovered, recovered["at"])
        plain = messages.filter(pc.invert(_any(*kinds)))
        self.add(plain, plain["at"], OperationKind.SEND, Stage.DIRECT)
        self.expected.acknowledged += plain.num_rows
        self._arrive_or_not(plain, plain["at"])

    def _sent_again(self, messages: pa.Table, *, arrived: bool) -> None:
        """Add sends whose first attempt got no answer."""
        self.add(messages, messages["at"], OperationKind.SEND, Stage.DIRECT, Outcome.UNKNOWN, error=NO_ANSWER)
        retried_at = pc.add(messages["at"], SECOND)
        self.add(messages, retried_at, OperationKind.SEND, Stage.DIRECT, attempt=2)
        self.expected.acknowledged += messages.num_rows
        self.receive(messages, retried_at, twice=arrived)

    def _arrive_or_not(self, messages: pa.Table, at: pa.Array) -> None:
        shape = self.shape
        numbers = [(2 * index + 1) * shape.messages // (2 * shape.lost) for index in range(shape.lost)]
        is_lost = pc.is_in(messages["number"], pa.array(numbers, pa.int64()))
        self.expected.lost += messages.filter(is_lost)["id"].to_pylist()
        has_arrived = pc.invert(is_lost)
        self.receive(messages.filter(has_arrived), pc.filter(at, has_arrived))

    # ---- outages ----

    def divert(self, messages: pa.Table, window: Window) -> None:
        """Add messages that were diverted, and moved after the outage."""
        tried = pc.less(messages["at"], window.began + FAILOVER)
        failed = messages.filter(tried)
        self.add(failed, failed["at"], OperationKind.SEND, Stage.DIRECT, Outcome.UNKNOWN, error=NO_ANSWER)
        self.add(messages, pc.add(messages["at"], 20_000), OperationKind.SEND, Stage.BACKLOG_SEND)
        self.expected.acknowledged += messages.num_rows
        moved_at = pc.add(pc.divide(pc.subtract(messages["at"], window.began), DRAIN_PART), window.recovered)
        is_moved = pc.less(moved_at, self.shape.moves_until(window))
        moved, moved_at = messages.filter(is_moved), pc.filter(moved_at, is_moved)
        self.expected.in_flight += messages.filter(pc.invert(is_moved))["id"].to_pylist()
        # Some unanswered attempts had arrived. (Messages of the first minute are always moved.)
        is_late = pc.filter(pc.and_(pc.equal(messages["trial"], 0), tried), is_moved)
        done = self._move(moved, moved_at, is_late)
        self._expect_outage(window, messages, failed, moved, done)

    def _move(self, messages: pa.Table, at: pa.Array, is_late: pa.Array) -> pa.Array:
        """Add the moves to the destinations; return the completion times."""
        is_unsure = in_range(messages["roll"], 0, self.shape.trouble)
        back, again = Stage.BACKLOG_RECEIVE, pc.filter(at, is_unsure)
        unsure, numbers = messages.filter(is_unsure), messages["number"]
        first = pc.filter(numbers, is_unsure)
        self.add(unsure, again, OperationKind.RECEIVE, back, delivery=0, sequence=first)
        kind, stage, sent_at = OperationKind.SEND, Stage.PRIMARY_SEND, pc.add(again, 5_000)
        self.add(unsure, sent_at, kind, stage, Outcome.UNKNOWN, error="amqp:connection:forced", sequence=first)
        self.add(unsure, pc.add(again, 9_000), OperationKind.ABANDON, back, delivery=0, sequence=first)
        last = pc.if_else(is_unsure, pc.add(at, 3 * SECOND), at)
        for delivery, chosen in ((1, is_unsure), (0, pc.invert(is_unsure))):
            part, part_at, sequence = messages.filter(chosen), pc.filter(last, chosen), pc.filter(numbers, chosen)
            delivered: dict[str, Any] = {"delivery": delivery, "sequence": sequence}
            self.add(part, part_at, OperationKind.RECEIVE, back, **delivered)
            self.add(part, pc.add(part_at, 5_000), kind, stage, attempt=delivery + 1, **delivered)
            self.add(part, pc.add(part_at, 12_000), OperationKind.COMPLETE, back, **delivered)
        is_twice = pc.or_(is_unsure, is_late)
        self.receive(messages.filter(is_twice), pc.filter(last, is_twice), twice=True)
        once = pc.invert(is_twice)
        self._arrive_or_not(messages.filter(once), pc.filter(last, once))
        return pc.add(last, 12_000)

    def _expect_outage(
        self, window: Window, messages: pa.Table, failed: pa.Table, moved: pa.Table, done: pa.Array
    ) -> None:
        by_entity: dict[int, dict[str, Any]] = {}
        for table, name, how in (
            (messages, "diverted", "count"),
            (failed, "suspected", "min"),
            (moved.append_column("done", done), "moved", "count"),
            (moved.set_column(1, "at", done), "drained", "max"),
        ):
            for row in table.group_by("entity").aggregate([("at", how)]).to_pylist():
                by_entity.setdefault(row["entity"], {})[name] = row[f"at_{how}"]
        for entity, values in by_entity.items():
            name = self.entities[entity].as_py()
            self.expected.outages[window.number, name] = OutageOfEntity(name, **values)

    def make(self) -> pa.Table:
        """All rows, ordered by time."""
        rest = self.messages
        self.expected.attempted += rest.num_rows
        for window in self.shape.windows:
            within = in_range(rest["at"], window.began, window.recovered)
            hit = pc.is_in(rest["entity"], pa.array(self.shape.hits(window), pa.int64()))
            chosen = pc.and_(within, hit)
            if pc.any(chosen).as_py():
                self.divert(rest.filter(chosen), window)
                rest = rest.filter(pc.invert(chosen))
        self.direct(rest)
        return pa.concat_tables(self.rows).sort_by("ts")


def _repeat(code: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(int(code), pa.int8()), count)


def rest_operations(shape: Shape, expected: Expected) -> Iterator[Operation]:
    """Yield polls, pings, management operations, unexpected arrivals and dropped rows."""
    dice = random.Random(f"{shape.seed}:rest")
    process, numbers = dice.randbytes(8).hex(), count(10**15)

    def make_operation(kind: OperationKind, stage: Stage, entity: str, ts: int, **columns: Any) -> Operation:
        values: dict[str, Any] = {"client": SYPHON, "namespace": SECONDARY, "outcome": Outcome.DONE}
        op_id = f"{process}{next(numbers)}"
        return Operation(
            op_id=op_id, pairing=PAIRING, operation=kind, stage=stage, entity=entity, ts=ts, **{**values, **columns}
        )

    start = shape.start_us
    for index in range(shape.backlog_queues):
        queue = f"{PAIRING}/x-servicebus-transfer/{index}"
        yield make_operation(OperationKind.GET, Stage.MANAGE, queue, start, client="client-1")
        yield make_operation(OperationKind.CREATE, Stage.MANAGE, queue, start + 30_000, client="client-1")
        for at in range(start + POLL - 1, start + shape.days * DAY, POLL):
            yield make_operation(
                OperationKind.POLL, Stage.POLL, queue, at, outcome=Outcome.EMPTY, count=0, backlog_queue=queue
            )
    for window in shape.windows:
        for entity in (f"queue-{number:04}" for number in shape.hits(window)):
            first = window.began + FAILOVER
            key = window.number, entity
            expected.outages[key] = OutageOfEntity(entity, failed_over=first, recovered=window.recovered)
            for at in range(first, window.recovered + 1, PING):
                failed = {} if at >= window.ended else {"outcome": Outcome.UNKNOWN, "error": "OperationTimeoutError"}
                for client in range(shape.clients):
                    columns = {"client": f"client-{client + 1}", "namespace": PRIMARY, **failed}
                    yield make_operation(OperationKind.PING, Stage.PING, entity, at, **columns)
    for number in range(shape.unexpected):
        at = start + dice.randrange(shape.days * DAY - SECOND)
        facts = {"message_id": f"unsent-{shape.seed}-{number}", "sequence_number": 2 * shape.messages + 10 + number}
        facts |= {"namespace": PRIMARY, "client": "client-1"}
        stage = Stage.PRIMARY_RECEIVE
        yield make_operation(OperationKind.RECEIVE, stage, "queue-0000", at, bytes=500, delivery_count=0, **facts)
        yield make_operation(OperationKind.COMPLETE, stage, "queue-0000", at + 3_000, **facts)
        expected.unexpected.append(str(facts["message_id"]))
    expected.dropped = 17
    gap = {"namespace": NamespaceRole.NEITHER, "client": "client-1", "outcome": Outcome.FAILED, "error": "BufferFull"}
    yield make_operation(OperationKind.DROPPED, Stage.LEDGER, "", start + HOUR, count=17, **gap)
