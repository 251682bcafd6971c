"""What a sender tells the recorder: one row for each message of each attempt, for each is billed."""

from __future__ import annotations

import logging
import time

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.ledger.recorder import NamespaceRole, NullRecorder, OperationKind, Outcome, Stage, send_operation

from .core import Pairing
from .envelope import encoded_size
from .parcel import Parcel, Payload
from .recording import outcome_of

logger = logging.getLogger("twinbus.pairing")

# To name a member of an enum takes half a microsecond on Python 3.11, and these are on the way of every send.
_PRIMARY, _SECONDARY = NamespaceRole.PRIMARY, NamespaceRole.SECONDARY
_SEND, _SCHEDULE = OperationKind.SEND, OperationKind.SCHEDULE
_DIRECT, _BACKLOG_SEND = Stage.DIRECT, Stage.BACKLOG_SEND
_DONE = Outcome.DONE

now = time.perf_counter


class SendRecords:
    """Notes the attempts of one sender."""

    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing
        self._record = pairing.recorder.record
        #: Whether anybody wants to know.
        self.is_on = not isinstance(pairing.recorder, NullRecorder)

    def attempted(
        self,
        parcel: Parcel,
        payload: Payload | None,
        queue: str | None,
        started: float,
        error: BaseException | None = None,
    ) -> None:
        """An attempt that began at `started` of `now` has ended, with an error or without.

        `payload` is what the SDK's sender was given, None if it was to schedule the parcel's messages; `queue` is the
        backlog queue, None at the primary.
        """
        latency = int((now() - started) * 1e6)
        pairing = self._pairing
        outcome, name = (_DONE, None) if error is None else (outcome_of(error), type(error).__name__)
        message_ids = parcel.message_ids
        if queue is not None:  # the backlog may be given them in parts
            count = len(payload) if isinstance(payload, list) else 1
            message_ids = message_ids[parcel.stored : parcel.stored + count]
        sizes = _sizes(parcel, payload, len(message_ids))
        for message_id, size in zip(message_ids, sizes, strict=True):
            self._record(
                send_operation(  # by position: on the way of a send each step is felt
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

    Does not raise, so that recording never turns a send that succeeded into one that failed: 0 for each message if
    they cannot be encoded, and so were not carried.
    """
    try:
        if isinstance(payload, (ServiceBusMessage, AmqpAnnotatedMessage)):
            return [encoded_size(payload)]
        return [encoded_size(one) for one in payload] if isinstance(payload, list) else parcel.sizes()
    except Exception as error:
        # Not the text of the error, which may have parts of the message in it.
        logger.warning("Measuring a message to %s failed: %s", parcel.destination, type(error).__name__)
        return [0] * count
