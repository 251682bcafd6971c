"""Defines operations, the rows of the ledger, and the recorders that receive them.

The ledger stores the numbers of the enums: never reuse a number; add new ones at the end.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import IntEnum, unique
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from .ledger_errors import reason_of


@unique
class NamespaceRole(IntEnum):
    """Which namespace of a pairing an operation went to."""

    PRIMARY = 1
    SECONDARY = 2
    #: No namespace: the row is about the ledger itself.
    NEITHER = 3


@unique
class OperationKind(IntEnum):
    """What the broker was asked to do."""

    SEND = 1
    RECEIVE = 2
    COMPLETE = 3
    ABANDON = 4
    DEFER = 5
    DEAD_LETTER = 6
    RENEW = 7
    PING = 8
    POLL = 9
    PEEK = 10
    SCHEDULE = 11
    CANCEL = 12
    #: Management of entities: create, get, list.
    CREATE = 13
    GET = 14
    LIST = 15
    #: Not an operation: `count` rows of this pairing and client were dropped; `error` says why.
    DROPPED = 16
    #: Get and set the state of a session.
    GET_STATE = 17
    SET_STATE = 18


@unique
class Stage(IntEnum):
    """What an operation was for. `DIRECT` is a normal send to the primary."""

    DIRECT = 1
    BACKLOG_SEND = 2
    BACKLOG_RECEIVE = 3
    PRIMARY_SEND = 4
    PRIMARY_RECEIVE = 5
    PING = 6
    POLL = 7
    MANAGE = 8
    #: About the ledger itself: no broker operation, never billed.
    LEDGER = 9


@unique
class Outcome(IntEnum):
    """How an operation ended."""

    #: The broker confirmed it.
    DONE = 1
    #: The broker refused it or could not be reached: it was not done.
    FAILED = 2
    #: No answer arrived: it may have been done.
    UNKNOWN = 3
    #: A receive or poll that ended without a message.
    EMPTY = 4
    #: It was about to start. Without a later row it may have been done. Never billed.
    PLANNED = 5


#: The `error`, and the dead-letter reason, of a backlog message whose time to live is over.
EXPIRED_IN_BACKLOG = "ExpiredInBacklog"

# Ids are 128-bit numbers: the upper half is random per process, the lower half counts. With the cold caches between
# two sends, a text would take 2 µs to make and a random id longer.
_next_id: Callable[[], int]


def _reset_ids() -> None:
    """Start a new sequence of ids with a random upper half."""
    global _next_id
    _next_id = count(int.from_bytes(os.urandom(8), "big") << 64).__next__


_reset_ids()
if hasattr(os, "register_at_fork"):  # a forked process must not reuse its parent's ids
    os.register_at_fork(after_in_child=_reset_ids)


def op_id_of(text: str) -> int:
    """Return the id for a text: the number of 32 hexadecimal digits, else 16 bytes of the text's BLAKE2b."""
    if len(text) == 32:
        try:
            digits = bytes.fromhex(text)
        except ValueError:
            digits = b""
        if len(digits) == 16:
            return int.from_bytes(digits, "big")
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


class _Columns(NamedTuple):
    """The fields of an operation, in the order of the ledger's columns."""

    #: Identifies the row: two rows are the same only if their ids are. Below 2 to the power of 128.
    op_id: int
    #: Microseconds since the epoch, UTC.
    ts: int
    pairing: str
    client: str
    namespace: NamespaceRole
    entity: str
    operation: OperationKind
    stage: Stage
    message_id: str | None
    #: Entity that the message is meant for.
    destination: str | None
    backlog_queue: str | None
    sequence_number: int | None
    delivery_count: int | None
    #: 1-based attempt number.
    attempt: int
    #: Encoded size, including all properties.
    bytes: int
    #: Number of messages.
    count: int  # type: ignore[assignment]  # hides the method of tuples, which is not needed
    outcome: Outcome
    #: Class name of the error, or its AMQP condition; None without an error.
    error: str | None
    latency_us: int | None


class Operation(_Columns):
    """One operation at a broker. Never contains a message body or a credential.

    A tuple, because one is created during every send (`send_operation`) and a frozen dataclass takes far longer. On
    Python 3.11 each enum access such as `Stage.DIRECT` takes half a microsecond: keep them in variables on hot paths.
    """

    __slots__ = ()

    def __new__(
        cls,
        *,
        pairing: str,
        client: str,
        namespace: NamespaceRole,
        entity: str,
        operation: OperationKind,
        stage: Stage,
        outcome: Outcome,
        op_id: int | str | None = None,
        ts: int | None = None,
        message_id: str | None = None,
        destination: str | None = None,
        backlog_queue: str | None = None,
        sequence_number: int | None = None,
        delivery_count: int | None = None,
        attempt: int = 1,
        bytes: int = 0,
        count: int = 1,
        error: str | None = None,
        latency_us: int | None = None,
    ) -> Operation:
        """`op_id` defaults to a new id, and `ts` to now. A text for `op_id` is converted by `op_id_of`."""
        if op_id is None:
            op_id = _next_id()
        elif isinstance(op_id, str):
            op_id = op_id_of(op_id)
        return tuple.__new__(
            cls,
            (
                op_id,
                time.time_ns() // 1000 if ts is None else ts,
                pairing,
                client,
                namespace,
                entity,
                operation,
                stage,
                message_id,
                destination,
                backlog_queue,
                sequence_number,
                delivery_count,
                attempt,
                bytes,
                count,
                outcome,
                error,
                latency_us,
            ),
        )

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        """Return the arguments for copy and pickle."""
        return (), self._asdict()


def send_operation(
    pairing: str,
    client: str,
    namespace: NamespaceRole,
    entity: str,
    operation: OperationKind,
    stage: Stage,
    outcome: Outcome,
    message_id: str | None,
    destination: str | None,
    backlog_queue: str | None,
    attempt: int,
    size: int,
    error: str | None,
    latency_us: int | None,
    sequence_number: int | None = None,
    delivery_count: int | None = None,
) -> Operation:
    """Return an operation on one message that has just ended; a fast path for every send and move.

    Pass arguments by position: with the cold caches between two sends that takes 5 µs, `Operation(pairing=…)` 13 µs.
    """
    return tuple.__new__(
        Operation,
        (
            _next_id(),
            time.time_ns() // 1000,
            pairing,
            client,
            namespace,
            entity,
            operation,
            stage,
            message_id,
            destination,
            backlog_queue,
            sequence_number,
            delivery_count,
            attempt,
            size,
            1,
            outcome,
            error,
            latency_us,
        ),
    )


class Recorder(Protocol):
    """Receives every operation.

    A client calls `record` on a helper thread, in the order in which operations ended. It may block or raise without
    affecting a send. If it is marked with `prompt`, the client calls it directly.
    """

    def record(self, operation: Operation) -> None:
        """Record an operation."""


_Record = TypeVar("_Record", bound=Callable[..., None])


def prompt(record: _Record) -> _Record:
    """Mark a `record` method that never blocks and never raises: it needs no helper thread."""
    record.is_prompt = True  # type: ignore[attr-defined]
    return record


def is_prompt(recorder: Recorder) -> bool:
    """Return whether a recorder's `record` is marked with `prompt`. An override must be marked itself."""
    return getattr(recorder.record, "is_prompt", False) is True


@runtime_checkable
class DurableRecorder(Recorder, Protocol):
    """A recorder that reports when rows are durable, such as `twinbus.ledger.writer.LedgerWriter`."""

    #: Number of rows with a value that does not fit its column.
    unfit_rows: int

    def offer(self, operation: Operation) -> bool:
        """Record an operation; return False if its row was dropped."""

    def request_flush(self) -> Future[None]:
        """Return a future that is done when everything recorded before is durable. Cancel it to stop waiting."""

    @property
    def last_error(self) -> BaseException | None:
        """The error of the last attempt to store rows; None if it succeeded."""


def trouble_of(recorder: DurableRecorder) -> str | None:
    """Return why a durable recorder stores no rows, in a few words; None if it does."""
    trouble = getattr(recorder, "trouble", None)
    error = recorder.last_error
    return str(trouble) if trouble else None if error is None else reason_of(error)


class NullRecorder:
    """Discards all operations."""

    @prompt
    def record(self, operation: Operation) -> None:
        """Discard the operation."""


class MemoryRecorder:
    """Keeps the newest `capacity` operations in memory. Safe to use from several threads.

    Raises:
        ValueError: `capacity` is less than 1.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity!r}")
        self._lock = threading.Lock()
        self._newest: deque[Operation] = deque(maxlen=capacity)
        self._recorded = 0

    @prompt
    def record(self, operation: Operation) -> None:
        """Keep the operation, and forget the oldest one if there are more than `capacity`."""
        with self._lock:
            self._newest.append(operation)
            self._recorded += 1

    @property
    def operations(self) -> list[Operation]:
        """The kept operations, oldest first."""
        with self._lock:
            return list(self._newest)

    @property
    def forgotten(self) -> int:
        """Number of operations that newer ones replaced."""
        with self._lock:
            return self._recorded - len(self._newest)
