"""What a recorder is told by receivers."""

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
from twinbus.pairing.foreign_calls import ForeignCalls
from twinbus.pairing.message_size import received_size
from twinbus.pairing.ping import is_ping
from twinbus.pairing.recording import Records, record, recorded


def new_client_name() -> str:
    """What the ledger calls this process if nobody says otherwise."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class Scribe:
    """Who tells a recorder, where there is no pairing that does."""

    name: str
    client: str
    recorder: Recorder

    @classmethod
    def named(cls, host: str, recorder: Recorder, name: str, client: str) -> Scribe:
        """With names made from the namespace's host and this process where none are given.

        Raises:
            TypeError: it is no recorder.
        """
        if not callable(getattr(recorder, "record", None)):
            raise TypeError(
                f"recorder must have a method record, such as a LedgerWriter, not {type(recorder).__name__}"
            )
        if not is_prompt(recorder):
            recorder = ForeignCalls().recorder(recorder)
        return cls(name or host.partition(".")[0], client or new_client_name(), recorder)


class Receipts:
    """Notes what one receiver does. Costs nothing where nobody records."""

    def __init__(self, records: Records, entity: str) -> None:
        self._records = records
        self._entity = entity
        self.is_recording = not isinstance(records.recorder, NullRecorder)

    def received(self, messages: Sequence[ServiceBusReceivedMessage], started: float) -> None:
        """A receive has ended that began at `started` of `time.perf_counter`: with messages, or without any."""
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
                # A ping is no message of anybody, though a service may give it an id.
                message_id=None if is_ping(message) else message.message_id,
                sequence_number=message.sequence_number,
                delivery_count=message.delivery_count,
                bytes=received_size(message.raw_amqp_message),
            )

    def noted(
        self, kind: OperationKind, message: ServiceBusReceivedMessage | None = None
    ) -> AbstractContextManager[None]:
        """Around anything else that a receiver asks the broker for."""
        if not self.is_recording:
            return nullcontext()
        columns: dict[str, Any] = {}
        if message is not None:
            columns = {"message_id": message.message_id, "sequence_number": message.sequence_number}
        stage = Stage.PRIMARY_RECEIVE, NamespaceRole.PRIMARY, self._entity
        return recorded(self._records, kind, *stage, **columns)
