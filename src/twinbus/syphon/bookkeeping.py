"""The syphon's rows for the ledger: one for each operation that is billed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

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

from .errors import AmqpError, DeliveryFailed, MessageTooLarge, RequestFailed
from .facts import Fact, fact_of

if TYPE_CHECKING:
    from .moves import Move


# Three rows for each message that is moved: each of these names takes half a microsecond to look up in its enum.
_PRIMARY, _SECONDARY = NamespaceRole.PRIMARY, NamespaceRole.SECONDARY
_SEND, _RECEIVE = OperationKind.SEND, OperationKind.RECEIVE
_PRIMARY_SEND, _BACKLOG_RECEIVE = Stage.PRIMARY_SEND, Stage.BACKLOG_RECEIVE
_DONE = Outcome.DONE


class Book:
    """What the pump of one backlog queue tells the recorder, and `tell` if somebody wants the facts of each message."""

    def __init__(
        self,
        recorder: Recorder,
        pairing: str,
        client: str,
        queue: str,
        tell: Callable[[Fact], None] | None = None,
        broker_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._record = recorder.record
        self._pairing = pairing
        self._client = client
        self._queue = queue
        self._tell = tell
        self._broker_ms = broker_ms
        #: Nobody reads: the rows need not be made.
        self.is_blank = isinstance(recorder, NullRecorder)

    def received(self, move: Move) -> None:
        """A message came from the backlog, under a lock."""
        if not self.is_blank:
            self._of(move, _RECEIVE, None, size=move.size)

    def sent(self, move: Move, error: AmqpError | None, latency: float) -> None:
        """The primary said what became of a message, or did not."""
        if self.is_blank:
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
        """A message of the backlog was completed, deferred, dead-lettered or given back."""
        if self._tell is not None:
            self._tell(fact_of(self._queue, move, kind, error, self._broker_ms()))
        if not self.is_blank:
            self._of(move, kind, error, reason=move.reason if kind is OperationKind.DEAD_LETTER else None)

    def condemned(self, move: Move) -> None:
        """A message is to be dead-lettered: if nobody lives to say that it was, the ledger knows where it may be."""
        if not self.is_blank:
            self._of(move, OperationKind.DEAD_LETTER, None, reason=move.reason, outcome=Outcome.PLANNED)

    def renewed(self, moves: Collection[Move], error: AmqpError | None) -> None:
        """Locks were started anew: each is an operation."""
        if not self.is_blank:
            for move in moves:
                self._of(move, OperationKind.RENEW, error)

    def polled(self) -> None:
        """A receive has waited as long as it may, and got nothing."""
        self._about_queue(OperationKind.POLL, Stage.POLL, Outcome.EMPTY)

    def returned(self, size: int) -> None:
        """A message was received only to learn that there is one, and given back."""
        self._about_queue(OperationKind.RECEIVE, Stage.BACKLOG_RECEIVE, Outcome.DONE, 1, size)
        self._about_queue(OperationKind.ABANDON, Stage.BACKLOG_RECEIVE, Outcome.DONE, 1)

    def peeked(self, count: int, size: int, error: AmqpError | None) -> None:
        """The queue was looked through."""
        outcome = outcome_of(error) if error is not None or count else Outcome.EMPTY
        self._about_queue(OperationKind.PEEK, Stage.MANAGE, outcome, count, size, error)

    def fetch_failed(self, count: int, error: AmqpError) -> None:
        """Deferred messages were asked for, and did not come."""
        self._about_queue(OperationKind.RECEIVE, Stage.BACKLOG_RECEIVE, outcome_of(error), count, 0, error)

    def _of(
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

    def _about_queue(
        self,
        kind: OperationKind,
        stage: Stage,
        outcome: Outcome,
        count: int = 0,
        size: int = 0,
        error: AmqpError | None = None,
    ) -> None:
        if self.is_blank:
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
    """Records the pings that a syphon sends to destinations which have left messages without an answer."""

    def __init__(self, recorder: Recorder, pairing: str, client: str) -> None:
        self._recorder = recorder
        self._pairing = pairing
        self._client = client

    def record(self, path: str, error: AmqpError | None, seconds: float, size: int) -> None:
        """A ping has ended."""
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
    """Done, not done, or nobody knows."""
    if error is None:
        return Outcome.DONE
    return Outcome.FAILED if isinstance(error, (DeliveryFailed, RequestFailed, MessageTooLarge)) else Outcome.UNKNOWN


def name_of(error: AmqpError | None) -> str | None:
    """What the ledger calls an error: the peer's condition if there is one. Never its text."""
    return None if error is None else error.condition or type(error).__name__
