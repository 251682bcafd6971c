"""Asking a primary entity whether it is back: by an empty message that no receiver ever sees, or by opening a link."""

from __future__ import annotations

import time
from datetime import timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage

from .core import Entity, Pairing
from .envelope import encoded_size
from .policy import Cause, cause_of
from .recording import record, recorded
from .sending._async.link import Link

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
PING_TIME_TO_LIVE = timedelta(seconds=1)
#: For entities that take no message without a session.
PING_SESSION = "twinbus-ping"


def is_ping(message: ServiceBusMessage) -> bool:
    """Whether a received message is a ping, which no application should see."""
    return message.content_type == PING_CONTENT_TYPE


def ping_message(session_id: str | None = None) -> ServiceBusMessage:
    """A ping; it needs a session id where the entity needs one."""
    return ServiceBusMessage(b"", content_type=PING_CONTENT_TYPE, time_to_live=PING_TIME_TO_LIVE, session_id=session_id)


async def ping(pairing: Pairing, entity: Entity, link: Link) -> None:
    """Ask an entity through a link that was not opened yet; returns if it has answered.

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
        # It never got as far as the entity and costs nothing, but it shows that the entity was away.
        asked = OperationKind.PING, Stage.PING, NamespaceRole.PRIMARY, entity.path
        record(pairing, *asked, started, error, outcome=Outcome.FAILED)
        raise
    if not entity.needs_session:
        try:
            return await _send(pairing, entity, link, ping_message(), ends)
        except ServiceBusError as error:
            # A missing session id has no condition of its own: see whether the ping is refused with one, too.
            if type(error) is not ServiceBusError or cause_of(error) is not Cause.CALLER:
                raise
    await _send(pairing, entity, link, ping_message(PING_SESSION), ends)
    entity.needs_session = True


async def _send(pairing: Pairing, entity: Entity, link: Link, message: ServiceBusMessage, ends: float) -> None:
    size = encoded_size(message)
    with recorded(pairing, OperationKind.PING, Stage.PING, NamespaceRole.PRIMARY, entity.path, bytes=size):
        await link.call(link.sender.send_messages, message, seconds=ends - pairing.clock())
