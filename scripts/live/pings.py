"""Whether the service still hides pings, which an old client sent over another protocol.

A ping lives for a second. So whoever should not see it waits with credit before it is sent, and behind it follows a
marker: if the marker comes first, the ping was hidden, and has not merely expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.pairing.core import Pairing
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.ping import PING_CONTENT_TYPE, PING_SESSION, ping, ping_message
from twinbus.pairing.policy import Cause, cause_of
from twinbus.pairing.sending._async.link import Link

from .checks import Seen, check, described
from .drill import Drill, Exchange, Listener, Site
from .messages import Raw, encoded

MARKER = "marker"
PING_LIFE = 1.0


async def send_ping(site: Site, path: str, **options: Any) -> Pairing:
    """Ping an entity as a pairing does; returns the pairing, which knows what it has learned."""
    pairing = Pairing(SendAvailabilityOptions(attempt_timeout=site.times.answer, **options), "drill")
    async with opened(site, path) as link:
        await ping(pairing, pairing.entity(path), link)
    return pairing


@asynccontextmanager
async def opened(site: Site, path: str) -> AsyncIterator[Link]:
    link = Link(site.client.get_queue_sender(path), path)
    try:
        yield link
    finally:
        await link.close()


@check(
    "a ping to a queue is hidden",
    "from a waiting receiver and from peek, in no count, and it leaves no dead letter",
)
async def queue(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("ping", dead_lettering_on_message_expiration=True)
    async with site.exchange(path) as exchange:
        listener = await exchange.listen(credit=10)
        await send_ping(site, path)
        await _only_marker(exchange, listener, seen)


@check(
    "a ping to a session queue is hidden",
    "one without a session id is refused for its arguments; one with is hidden from a receiver of its session,"
    " and makes no session",
)
async def session_queue(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("ping-sessions", requires_session=True)
    async with opened(site, path) as link:
        await link.open(site.times.answer)
        try:
            await link.call(link.sender.send_messages, ping_message(), seconds=site.times.answer)
            seen.that(False, "refused without a session id")
        except ServiceBusError as error:
            seen.that(
                type(error) is ServiceBusError and cause_of(error) is Cause.CALLER,
                f"without a session id: {described(error)}",
            )
    pairing = await send_ping(site, path)
    seen.that(pairing.entity(path).needs_session, "the ping was sent again with a session id")
    sessions = [one async for one in site.client.list_queue_sessions(path)]
    seen.value("sessions", sessions, [])
    wait = site.times.answer
    async with (
        site.client.get_queue_receiver(
            path, session_id=PING_SESSION, prefetch_count=10, max_wait_time=wait
        ) as receiver,
        site.client.get_queue_sender(path) as sender,
    ):
        await send_ping(site, path)
        await sender.send_messages(ServiceBusMessage(b"", message_id=MARKER, session_id=PING_SESSION))
        received = await receiver.receive_messages(10)
        seen.value("received", [one.message_id for one in received], [MARKER])
        seen.value("counted", (await site.counts(path, least=1)).total, 1)


@check("a ping to a topic is hidden", "from a waiting receiver of a subscription and from peek, in no count")
async def topic(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.topic("ping-topic", "all")
    subscription = f"{path}/Subscriptions/all"
    async with site.exchange(path) as exchange:
        listener = await exchange.listen(credit=10, path=subscription)
        await send_ping(site, path)
        await _only_marker(exchange, listener, seen, "all")


async def _only_marker(exchange: Exchange, listener: Listener, seen: Seen, subscription: str | None = None) -> None:
    """A ping was sent just now: see that nobody sees it."""
    site, path = exchange.site, exchange.path
    seen.value("peeked", len(await exchange.peek(path=listener.receiver.path)), 0)
    await exchange.send(encoded(message_id=MARKER))
    first = await listener.take()
    raw = Raw.of(first.payload)
    seen.that(raw.properties[6] != PING_CONTENT_TYPE, f"received first: {raw.message_id}, number {raw.sequence_number}")
    seen.value("counted", (await site.counts(path, subscription, least=1)).total, 1)
    await listener.settle(first)
    await asyncio.sleep(2 * PING_LIFE)
    seen.value("dead letters", (await site.counts(path, subscription)).dead, 0)


@check('probe="link"', "a link to a queue or topic opens and nothing arrives; one to an unknown entity is refused")
async def probe_link(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path, other = await site.queue("probe"), await site.topic("probe-topic")
    for one in (path, other):
        await send_ping(site, one, probe="link")
    seen.note("both opened")
    seen.value("counted", (await site.counts(path)).total, 0)
    try:
        await send_ping(site, f"{path}-missing", probe="link")
        seen.that(False, "an unknown entity is refused")
    except ServiceBusError as error:
        seen.that(cause_of(error) is Cause.NOT_FOUND, f"unknown entity: {described(error)}")


CHECKS = (queue, session_queue, topic, probe_link)
