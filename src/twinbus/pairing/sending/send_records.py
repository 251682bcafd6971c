"""Records sends: one ledger row per message and attempt, because each attempt is billed."""

from __future__ import annotations

import logging
import time

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.envelope.wrapping import encoded_size
from twinbus.ledger.recorder import NamespaceRole, NullRecorder, OperationKind, Outcome, Stage, send_operation

from ..operation_recording import outcome_of
from ..pairing_state import Pairing
from .parcel import Parcel, Payload

logger = logging.getLogger("twinbus.pairing")

# Enum member access takes half a microsecond on Python 3.11, and every send needs these.
_PRIMARY, _SECONDARY = NamespaceRole.PRIMARY, NamespaceRole.SECONDARY
_SEND, _SCHEDULE = OperationKind.SEND, OperationKind.SCHEDULE
_DIRECT, _BACKLOG_SEND = Stage.DIRECT, Stage.BACKLOG_SEND
_DONE = Outcome.DONE

now = time.perf_counter


class SendRecords:
    """Records the attempts of one sender."""

    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing
        self._record = pairing.recorder.record
        #: Whether a recorder is set.
        self.is_on = not isinstance(pairing.recorder, NullRecorder)

    def attempted(
        self,
        parcel: Parcel,
        payload: Payload | None,
        queue: str | None,
        started: float,
        error: BaseException | None = None,
    ) -> None:
        """Record an attempt that began at `started` of `now` and has ended, with or without an error.

        `payload` is what the SDK's sender was given, None if it scheduled the parcel's messages; `queue` is the backlog
        queue, None at the primary.
        """
        latency = int((now() - started) * 1e6)
        pairing = self._pairing
        outcome, name = (_DONE, None) if error is None else (outcome_of(error), type(error).__name__)
        message_ids = parcel.message_ids
        if queue is not None:  # the backlog may store them in parts
            count = len(payload) if isinstance(payload, list) else 1
            message_ids = message_ids[parcel.stored : parcel.stored + count]
        sizes = _sizes(parcel, payload, len(message_ids))
        for message_id, size in zip(message_ids, sizes, strict=True):
            self._record(
                send_operation(  # positional arguments: faster, and this runs for every send
                    pairing.name,
                    pairing.client,
                    _PRIMARY if queue is None else _SECONDARY,
                    queue or parcel.destination,
                    _SCHEDULE if payload is None else _SEND,
                    _DIRECT if queue is None else _BACKLOG_SEND,
                    outcome,
                    message_id,
                    parcel.destination,
                    queue,
                    parcel.attempts,
                    size,
                    name,
                    latency,
                )
            )


def _sizes(parcel: Parcel, payload: Payload | None, count: int) -> list[int]:
    """Return the bytes of each message of an attempt.

    Does not raise, so that recording never fails a send that succeeded: returns 0 for each message if they cannot be
    encoded, and so were not sent.
    """
    try:
        if isinstance(payload, (ServiceBusMessage, AmqpAnnotatedMessage)):
            return [encoded_size(payload)]
        return [encoded_size(one) for one in payload] if isinstance(payload, list) else parcel.sizes()
    except Exception as error:
        # Not the text of the error, which may contain parts of the message.
        logger.warning("Measuring a message to %s failed: %s", parcel.destination, type(error).__name__)
        return [0] * count
