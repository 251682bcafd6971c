"""What happened at a broker, and who is told of it.

The numbers of the enums are stored: a number is never used again for something else, and new ones go at the end.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import Protocol


@unique
class NamespaceRole(IntEnum):
    """Which of the two namespaces of a pairing."""

    PRIMARY = 1
    SECONDARY = 2


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


def _new_id() -> str:
    return uuid.uuid4().hex


def _now() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation at a broker. Never a body, never a key."""

    pairing: str
    client: str
    namespace: NamespaceRole
    entity: str
    operation: OperationKind
    stage: Stage
    outcome: Outcome
    #: Alone makes two rows the same: two moves of one message are two rows.
    op_id: str = field(default_factory=_new_id)
    #: Microseconds since the epoch, UTC.
    ts: int = field(default_factory=_now)
    message_id: str | None = None
    #: Where the message is to arrive in the end.
    destination: str | None = None
    backlog_queue: str | None = None
    sequence_number: int | None = None
    delivery_count: int | None = None
    #: The how-manieth try of the same thing, from 1.
    attempt: int = 1
    #: Size on the wire, all properties included.
    bytes: int = 0
    #: How many messages.
    count: int = 1
    #: The name of the error's class or its AMQP condition; None if there was none.
    error: str | None = None
    latency_us: int | None = None


class Recorder(Protocol):
    """Is told of every operation."""

    def record(self, operation: Operation) -> None:
        """Take note of it. Never raises and never waits: a send must not suffer from its own bookkeeping."""


class NullRecorder:
    """Forgets everything."""

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
