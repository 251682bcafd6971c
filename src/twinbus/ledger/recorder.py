"""What happened at a broker, and who is told of it.

The numbers of the enums are stored: a number is never used again for something else, and new ones go at the end.
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
    """Which of the two namespaces of a pairing."""

    PRIMARY = 1
    SECONDARY = 2
    #: No broker was asked: the row is about the ledger itself.
    NEITHER = 3


@unique
class OperationKind(IntEnum):
    """What was asked of the broker."""

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
    #: Management of entities: made, looked at, listed.
    CREATE = 13
    GET = 14
    LIST = 15
    #: No operation: `count` rows of the pairing and client never got into the ledger; `error` says why.
    DROPPED = 16
    #: The state of a session, read and written.
    GET_STATE = 17
    SET_STATE = 18


@unique
class Stage(IntEnum):
    """What it was for; `DIRECT` is a send that went to the primary as if there were no pairing."""

    DIRECT = 1
    BACKLOG_SEND = 2
    BACKLOG_RECEIVE = 3
    PRIMARY_SEND = 4
    PRIMARY_RECEIVE = 5
    PING = 6
    POLL = 7
    MANAGE = 8
    #: About the ledger itself; no broker was asked, and nothing is billed.
    LEDGER = 9


@unique
class Outcome(IntEnum):
    """How it ended."""

    #: The broker did it and said so.
    DONE = 1
    #: The broker said no, or could not be asked: it was not done.
    FAILED = 2
    #: No answer came: it may have been done.
    UNKNOWN = 3
    #: A receive or poll that ended without a message.
    EMPTY = 4
    #: It was about to be asked for: whoever finds no other row knows that it may have been. Never billed.
    PLANNED = 5


#: The `error` of a dead letter of the backlog whose time to live was over, and the reason it is given there.
EXPIRED_IN_BACKLOG = "ExpiredInBacklog"

# Ids are numbers of 128 bits: the upper half is random for each process, the lower half counts. Between two sends,
# where nothing is warm, a text would take 2 µs to make, a random id more.
_next_id: Callable[[], int]


def _start_ids_anew() -> None:
    global _next_id
    _next_id = count(int.from_bytes(os.urandom(8), "big") << 64).__next__


_start_ids_anew()
if hasattr(os, "register_at_fork"):  # a forked process must not go on with its parent's ids
    os.register_at_fork(after_in_child=_start_ids_anew)


def op_id_of(text: str) -> int:
    """The id that a text stands for: 32 hexadecimal digits for their number, any other for 16 bytes of its BLAKE2b."""
    if len(text) == 32:
        try:
            stored = bytes.fromhex(text)
        except ValueError:
            stored = b""
        if len(stored) == 16:
            return int.from_bytes(stored, "big")
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


class _Columns(NamedTuple):
    """What an operation is made of, in the order of the ledger's columns."""

    #: Alone makes two rows the same: two moves of one message are two rows. Below 2 to the power of 128.
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
    #: Where the message is to arrive in the end.
    destination: str | None
    backlog_queue: str | None
    sequence_number: int | None
    delivery_count: int | None
    #: The how-manieth try of the same thing, from 1.
    attempt: int
    #: Size on the wire, all properties included.
    bytes: int
    #: How many messages.
    count: int  # type: ignore[assignment]  # tuples have a method of this name, which nobody needs here
    outcome: Outcome
    #: The name of the error's class or its AMQP condition; None if there was none.
    error: str | None
    latency_us: int | None


class Operation(_Columns):
    """One operation at a broker. Never a body, never a key.

    A tuple, because one is made on the way of every send (`send_operation`): a frozen dataclass takes far longer.
    On Python 3.11 each `Stage.DIRECT` and the like takes half a microsecond: where it matters keep them in variables.
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
        """Without `op_id` and `ts`: a new id, and now. A text is taken for the id that `op_id_of` tells."""
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
        """For copies and pickles."""
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
    """An operation on one message that has just ended, for the way of every send and every move.

    Call it by position: between two sends, where nothing is warm, that takes 5 µs and `Operation(pairing=…)` 13.
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
    """Is told of every operation.

    A client calls it on a helper thread, in the order in which operations ended; it may wait and raise without harm to
    a send. `prompt` marks a `record` that is called at once.
    """

    def record(self, operation: Operation) -> None:
        """Take note of it."""


_Record = TypeVar("_Record", bound=Callable[..., None])


def prompt(record: _Record) -> _Record:
    """Marks the `record` of a recorder that never waits and never raises: it needs no helper thread."""
    record.is_prompt = True  # type: ignore[attr-defined]
    return record


def is_prompt(recorder: Recorder) -> bool:
    """Whether a recorder's `record` is marked as `prompt`; a method that overrides a marked one is not."""
    return getattr(recorder.record, "is_prompt", False) is True


@runtime_checkable
class DurableRecorder(Recorder, Protocol):
    """A recorder that can say when rows are stored for good: `twinbus.ledger.writer.LedgerWriter`."""

    #: Rows that could not be stored because of a value in them.
    unfit_rows: int

    def offer(self, operation: Operation) -> bool:
        """As `record`; false if the row had to be dropped."""

    def request_flush(self) -> Future[None]:
        """Ends when everything that was recorded before is durable, and not before. Cancel it to stop waiting."""

    @property
    def last_error(self) -> BaseException | None:
        """Why nothing could be stored when that was last tried; None if it could."""


def trouble_of(recorder: DurableRecorder) -> str | None:
    """What keeps a durable recorder from storing rows, in a few words; None if nothing does."""
    found = getattr(recorder, "trouble", None)
    error = recorder.last_error
    return str(found) if found else None if error is None else reason_of(error)


class NullRecorder:
    """Forgets everything."""

    @prompt
    def record(self, operation: Operation) -> None:
        """Do nothing."""


class MemoryRecorder:
    """Keeps the newest `capacity` operations in memory. Safe to use from several threads.

    Raises:
        ValueError: `capacity` is less than 1.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity!r}")
        self._lock = threading.Lock()
        self._kept: deque[Operation] = deque(maxlen=capacity)
        self._recorded = 0

    @prompt
    def record(self, operation: Operation) -> None:
        with self._lock:
            self._kept.append(operation)
            self._recorded += 1

    @property
    def operations(self) -> list[Operation]:
        """What is kept, oldest first."""
        with self._lock:
            return list(self._kept)

    @property
    def forgotten(self) -> int:
        """How many were pushed out by newer ones."""
        with self._lock:
            return self._recorded - len(self._kept)
