"""What the recorder is told by the receivers of the primary."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType

from twinbus.ledger.recorder import NamespaceRole, NullRecorder, OperationKind, Outcome, Stage
from twinbus.pairing.core import Pairing
from twinbus.pairing.recording import record, recorded


class Receipts:
    """Notes what one receiver does. Costs nothing where nobody records."""

    def __init__(self, pairing: Pairing, entity: str) -> None:
        self._pairing = pairing
        self._entity = entity
        self._is_recording = not isinstance(pairing.recorder, NullRecorder)

    def received(self, messages: Sequence[ServiceBusReceivedMessage], started: float) -> None:
        """A receive has ended that began at `started` of `time.perf_counter`: with messages, or without any."""
        if not self._is_recording:
            return
        stage = Stage.PRIMARY_RECEIVE, NamespaceRole.PRIMARY, self._entity, started
        if not messages:
            record(self._pairing, OperationKind.RECEIVE, *stage, outcome=Outcome.EMPTY, count=0)
        for message in messages:
            record(
                self._pairing,
                OperationKind.RECEIVE,
                *stage,
                message_id=message.message_id,
                sequence_number=message.sequence_number,
                delivery_count=message.delivery_count,
                bytes=_body_size(message),
            )

    def noted(
        self, kind: OperationKind, message: ServiceBusReceivedMessage | None = None
    ) -> AbstractContextManager[None]:
        """Around anything else that a receiver asks the broker for."""
        if not self._is_recording:
            return nullcontext()
        columns: dict[str, Any] = {}
        if message is not None:
            columns = {"message_id": message.message_id, "sequence_number": message.sequence_number}
        stage = Stage.PRIMARY_RECEIVE, NamespaceRole.PRIMARY, self._entity
        return recorded(self._pairing, kind, *stage, **columns)


def _body_size(message: ServiceBusReceivedMessage) -> int:
    """The bytes of the body; the SDK does not tell the size of a message it has received, nor of its other parts."""
    is_data = message.body_type is AmqpMessageBodyType.DATA
    return sum(map(len, message.body)) if is_data else len(str(message))
