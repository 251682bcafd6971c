"""Records the syphon's operations in the ledger: a row for each billed operation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from twinbus.amqp.client.errors import AmqpError, DeliveryFailedError, MessageTooLargeError, RequestFailedError
from twinbus.ledger.recorder import (
    NamespaceRole,
    NullRecorder,
    Operation,
    OperationKind,
    Outcome,
    Recorder,
    Stage,
    send_operation,
)

from .facts import Fact, fact_of

if TYPE_CHECKING:
    from .moves import Move


# Three rows per moved message, and each enum lookup takes half a microsecond.
_PRIMARY, _SECONDARY = NamespaceRole.PRIMARY, NamespaceRole.SECONDARY
_SEND, _RECEIVE = OperationKind.SEND, OperationKind.RECEIVE
_PRIMARY_SEND, _BACKLOG_RECEIVE = Stage.PRIMARY_SEND, Stage.BACKLOG_RECEIVE
_DONE = Outcome.DONE


class OperationLog:
    """Records the operations of one backlog queue, and passes the `Fact` of each settled message to `on_fact`."""

    def __init__(
        self,
        recorder: Recorder,
        pairing: str,
        client: str,
        queue: str,
        on_fact: Callable[[Fact], None] | None = None,
        broker_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._record = recorder.record
        self._pairing = pairing
        self._client = client
        self._queue = queue
        self._on_fact = on_fact
        self._broker_ms = broker_ms
        #: Whether nothing is recorded, so that no rows need be made.
        self.is_disabled = isinstance(recorder, NullRecorder)

    def received(self, move: Move) -> None:
        """A message was received from the backlog under a lock."""
        if not self.is_disabled:
            self._record_move(move, _RECEIVE, None, size=move.size)

    def sent(self, move: Move, error: AmqpError | None, latency: float) -> None:
        """A send to the primary ended, with or without an outcome."""
        if self.is_disabled:
            return
        restored = move.restored
        self._record(
            send_operation(
                self._pairing,
                self._client,
                _PRIMARY,
                restored.destination,
                _SEND,
                _PRIMARY_SEND,
                _DONE if error is None else outcome_of(error),
                restored.message_id,
                restored.destination,
                self._queue,
                move.attempts,
                len(restored.payload),
                name_of(error),
                int(latency * 1e6),
                restored.sequence_number,
                restored.delivery_count,
            )
        )

    def settled(self, move: Move, kind: OperationKind, error: AmqpError | None) -> None:
        """A message of the backlog was completed, deferred, dead-lettered or abandoned."""
        if self._on_fact is not None:
            self._on_fact(fact_of(self._queue, move, kind, error, self._broker_ms()))
        if not self.is_disabled:
            self._record_move(move, kind, error, reason=move.reason if kind is OperationKind.DEAD_LETTER else None)

    def planned_dead_letter(self, move: Move) -> None:
        """A message is about to be dead-lettered. If the syphon is killed now, the ledger knows where it may be."""
        if not self.is_disabled:
            self._record_move(move, OperationKind.DEAD_LETTER, None, reason=move.reason, outcome=Outcome.PLANNED)

    def renewed(self, moves: Collection[Move], error: AmqpError | None) -> None:
        """Locks were renewed: each is an operation."""
        if not self.is_disabled:
            for move in moves:
                self._record_move(move, OperationKind.RENEW, error)

    def polled(self) -> None:
        """A receive ended without a message."""
        self._record_queue(OperationKind.POLL, Stage.POLL, Outcome.EMPTY)

    def returned(self, size: int) -> None:
        """A message was received only to see that there is one, and abandoned."""
        self._record_queue(OperationKind.RECEIVE, Stage.BACKLOG_RECEIVE, Outcome.DONE, 1, size)
        self._record_queue(OperationKind.ABANDON, Stage.BACKLOG_RECEIVE, Outcome.DONE, 1)

    def peeked(self, count: int, size: int, error: AmqpError | None) -> None:
        """Messages of the queue were peeked."""
        outcome = outcome_of(error) if error is not None or count else Outcome.EMPTY
        self._record_queue(OperationKind.PEEK, Stage.MANAGE, outcome, count, size, error)

    def fetch_failed(self, count: int, error: AmqpError) -> None:
        """Receiving deferred messages failed."""
        self._record_queue(OperationKind.RECEIVE, Stage.BACKLOG_RECEIVE, outcome_of(error), count, 0, error)

    def _record_move(
        self,
        move: Move,
        kind: OperationKind,
        error: AmqpError | None,
        size: int = 0,
        reason: str | None = None,
        outcome: Outcome = _DONE,
    ) -> None:
        restored = move.restored
        self._record(
            send_operation(
                self._pairing,
                self._client,
                _SECONDARY,
                self._queue,
                kind,
                _BACKLOG_RECEIVE,
                outcome if error is None else outcome_of(error),
                restored.message_id,
                restored.destination or None,
                self._queue,
                1,
                size,
                name_of(error) or reason,
                None,
                restored.sequence_number,
                restored.delivery_count,
            )
        )

    def _record_queue(
        self,
        kind: OperationKind,
        stage: Stage,
        outcome: Outcome,
        count: int = 0,
        size: int = 0,
        error: AmqpError | None = None,
    ) -> None:
        if self.is_disabled:
            return
        self._record(
            Operation(
                pairing=self._pairing,
                client=self._client,
                namespace=NamespaceRole.SECONDARY,
                entity=self._queue,
                operation=kind,
                stage=stage,
                outcome=outcome,
                backlog_queue=self._queue,
                bytes=size,
                count=count,
                error=name_of(error),
            )
        )


class Pings:
    """Records the pings that a syphon sends to silent destinations."""

    def __init__(self, recorder: Recorder, pairing: str, client: str) -> None:
        self._recorder = recorder
        self._pairing = pairing
        self._client = client

    def record(self, path: str, error: AmqpError | None, seconds: float, size: int) -> None:
        """A ping ended."""
        self._recorder.record(
            Operation(
                pairing=self._pairing,
                client=self._client,
                namespace=NamespaceRole.PRIMARY,
                entity=path,
                operation=OperationKind.PING,
                stage=Stage.PING,
                outcome=outcome_of(error),
                bytes=size,
                error=name_of(error),
                latency_us=int(seconds * 1e6),
            )
        )


def outcome_of(error: AmqpError | None) -> Outcome:
    """Whether the operation was done, failed, or is unknown."""
    if error is None:
        return Outcome.DONE
    return (
        Outcome.FAILED
        if isinstance(error, (DeliveryFailedError, RequestFailedError, MessageTooLargeError))
        else Outcome.UNKNOWN
    )


def name_of(error: AmqpError | None) -> str | None:
    """The ledger's name for an error: the peer's condition, else the class. Never its text."""
    return None if error is None else error.condition or type(error).__name__
