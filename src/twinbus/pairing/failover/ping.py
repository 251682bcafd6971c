"""Pings a primary entity with an empty message that no receiver sees, or by opening a link.

`entity_failover` decides when to ping.
"""

from __future__ import annotations

import time
from datetime import timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.envelope.wrapping import encoded_size
from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage

from ..operation_recording import record, recorded
from ..pairing_state import Entity, Pairing
from ..sending._async.link import Link
from .error_classification import Cause, cause_of

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
PING_TIME_TO_LIVE = timedelta(seconds=1)
#: The session id of pings to entities that require one.
PING_SESSION = "twinbus-ping"


def is_ping(message: ServiceBusMessage) -> bool:
    """Return whether a received message is a ping, which no application should see."""
    return message.content_type == PING_CONTENT_TYPE


def ping_message(session_id: str | None = None) -> ServiceBusMessage:
    """Return a ping message; an entity that requires sessions needs a session id."""
    return ServiceBusMessage(b"", content_type=PING_CONTENT_TYPE, time_to_live=PING_TIME_TO_LIVE, session_id=session_id)


async def ping(pairing: Pairing, entity: Entity, link: Link) -> None:
    """Ping an entity over a link that is not open yet; return if it answers.

    With the option `probe="link"` the link is opened and nothing is sent.

    Raises:
        AttemptTimeoutError: no answer within the option `attempt_timeout`.
        azure.servicebus.exceptions.ServiceBusError: the entity cannot be reached, or refuses the ping.
    """
    ends = pairing.clock() + pairing.options.attempt_timeout
    if pairing.options.probe == "link":
        await link.open(pairing.options.attempt_timeout)
        return
    started = time.perf_counter()
    try:
        await link.open(pairing.options.attempt_timeout)
    except Exception as error:
        # Nothing reached the entity, so nothing is billed; the row shows that the entity was down.
        operation = OperationKind.PING, Stage.PING, NamespaceRole.PRIMARY, entity.path
        record(pairing, *operation, started, error, outcome=Outcome.FAILED)
        raise
    if not entity.needs_session:
        try:
            return await _send(pairing, entity, link, ping_message(), ends)
        except ServiceBusError as error:
            # A missing session id has no condition of its own: find out by sending a ping that has one.
            if type(error) is not ServiceBusError or cause_of(error) is not Cause.CALLER:
                raise
    await _send(pairing, entity, link, ping_message(PING_SESSION), ends)
    entity.needs_session = True


async def _send(pairing: Pairing, entity: Entity, link: Link, message: ServiceBusMessage, ends: float) -> None:
    size = encoded_size(message)
    with recorded(pairing, OperationKind.PING, Stage.PING, NamespaceRole.PRIMARY, entity.path, bytes=size):
        await link.call(link.sender.send_messages, message, seconds=ends - pairing.clock())
