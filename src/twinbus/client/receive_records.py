"""Records the operations of receivers."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage

from twinbus.ledger.recorder import NamespaceRole, NullRecorder, OperationKind, Outcome, Recorder, Stage, is_prompt
from twinbus.pairing.failover.ping import is_ping
from twinbus.pairing.foreign_calls import ForeignCalls
from twinbus.pairing.operation_recording import Records, record, recorded
from twinbus.servicebus.message_size import received_size


def new_client_name() -> str:
    """Return the default name of this process in the ledger."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class Scribe:
    """Names and recorder of a receiver without a pairing."""

    name: str
    client: str
    recorder: Recorder

    @classmethod
    def named(cls, host: str, recorder: Recorder, name: str, client: str) -> Scribe:
        """Make defaults from the namespace's host and this process for names that are missing.

        Raises:
            TypeError: `recorder` cannot record.
        """
        if not callable(getattr(recorder, "record", None)):
            raise TypeError(
                f"recorder must have a method record, such as a LedgerWriter, not {type(recorder).__name__}"
            )
        if not is_prompt(recorder):
            recorder = ForeignCalls().recorder(recorder)
        return cls(name or host.partition(".")[0], client or new_client_name(), recorder)


class Receipts:
    """Records the operations of one receiver. Costs nothing without a recorder."""

    def __init__(self, records: Records, entity: str) -> None:
        self._records = records
        self._entity = entity
        self.is_recording = not isinstance(records.recorder, NullRecorder)

    def received(self, messages: Sequence[ServiceBusReceivedMessage], started: float) -> None:
        """Record a receive that began at `started` of `time.perf_counter`, with its messages or none."""
        if not self.is_recording:
            return
        stage = Stage.PRIMARY_RECEIVE, NamespaceRole.PRIMARY, self._entity, started
        if not messages:
            record(self._records, OperationKind.RECEIVE, *stage, outcome=Outcome.EMPTY, count=0)
        for message in messages:
            record(
                self._records,
                OperationKind.RECEIVE,
                *stage,
                # A ping is not an application's message, though a service may give it an id.
                message_id=None if is_ping(message) else message.message_id,
                sequence_number=message.sequence_number,
                delivery_count=message.delivery_count,
                bytes=received_size(message.raw_amqp_message),
            )

    def noted(
        self, kind: OperationKind, message: ServiceBusReceivedMessage | None = None
    ) -> AbstractContextManager[None]:
        """Wrap any other request of a receiver to the broker."""
        if not self.is_recording:
            return nullcontext()
        columns: dict[str, Any] = {}
        if message is not None:
            columns = {"message_id": message.message_id, "sequence_number": message.sequence_number}
        stage = Stage.PRIMARY_RECEIVE, NamespaceRole.PRIMARY, self._entity
        return recorded(self._records, kind, *stage, **columns)
