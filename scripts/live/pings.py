"""Checks that the service still hides pings, which an old client sent over another protocol.

A ping lives for a second. So a receiver waits with credit before it is sent, and a marker follows: if the marker
arrives first, the ping was hidden, not just expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.pairing.failover.error_classification import Cause, cause_of
from twinbus.pairing.failover.ping import PING_CONTENT_TYPE, PING_SESSION, ping, ping_message
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.pairing_state import Pairing
from twinbus.pairing.sending._async.link import Link

from .checks import Findings, check, describe
from .drill import Drill, Exchange, Listener, Site
from .messages import Raw, encode_message

MARKER = "marker"
PING_SECONDS = 1.0


async def send_ping(site: Site, path: str, **options: Any) -> Pairing:
    """Ping an entity as a pairing does; return the pairing with what it learned."""
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
    "from a waiting receiver, from peek and from counts, and it leaves no dead letter",
)
async def queue(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("ping", dead_lettering_on_message_expiration=True)
    async with site.exchange(path) as exchange:
        listener = await exchange.listen(credit=10)
        await send_ping(site, path)
        await _only_marker(exchange, listener, findings)


@check(
    "a ping to a session queue is hidden",
    "refused without a session id; with one it is hidden from a receiver of its session, and creates no session",
)
async def session_queue(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("ping-sessions", requires_session=True)
    async with opened(site, path) as link:
        await link.open(site.times.answer)
        try:
            await link.call(link.sender.send_messages, ping_message(), seconds=site.times.answer)
            findings.expect(False, "refused without a session id")
        except ServiceBusError as error:
            findings.expect(
                type(error) is ServiceBusError and cause_of(error) is Cause.CALLER,
                f"without a session id: {describe(error)}",
            )
    pairing = await send_ping(site, path)
    findings.expect(pairing.entity(path).needs_session, "the ping was sent again with a session id")
    sessions = [session async for session in site.client.list_queue_sessions(path)]
    findings.expect_equal("sessions", sessions, [])
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
        findings.expect_equal("received", [message.message_id for message in received], [MARKER])
        findings.expect_equal("counted", (await site.counts(path, least=1)).total, 1)


@check("a ping to a topic is hidden", "from a waiting receiver of a subscription, from peek and from counts")
async def topic(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.topic("ping-topic", "all")
    subscription = f"{path}/Subscriptions/all"
    async with site.exchange(path) as exchange:
        listener = await exchange.listen(credit=10, path=subscription)
        await send_ping(site, path)
        await _only_marker(exchange, listener, findings, "all")


async def _only_marker(
    exchange: Exchange, listener: Listener, findings: Findings, subscription: str | None = None
) -> None:
    """Check that the ping just sent is not visible to any receiver."""
    site, path = exchange.site, exchange.path
    findings.expect_equal("peeked", len(await exchange.peek(path=listener.receiver.path)), 0)
    await exchange.send(encode_message(message_id=MARKER))
    first = await listener.take()
    raw = Raw.of(first.payload)
    findings.expect(
        raw.properties[6] != PING_CONTENT_TYPE, f"received first: {raw.message_id}, number {raw.sequence_number}"
    )
    findings.expect_equal("counted", (await site.counts(path, subscription, least=1)).total, 1)
    await listener.settle(first)
    await asyncio.sleep(2 * PING_SECONDS)
    findings.expect_equal("dead letters", (await site.counts(path, subscription)).dead, 0)


@check('probe="link"', "a link to a queue or topic opens without a message; a link to an unknown entity is refused")
async def probe_link(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path, other = await site.queue("probe"), await site.topic("probe-topic")
    for entity in (path, other):
        await send_ping(site, entity, probe="link")
    findings.note("both opened")
    findings.expect_equal("counted", (await site.counts(path)).total, 0)
    try:
        await send_ping(site, f"{path}-missing", probe="link")
        findings.expect(False, "an unknown entity is refused")
    except ServiceBusError as error:
        findings.expect(cause_of(error) is Cause.NOT_FOUND, f"unknown entity: {describe(error)}")


CHECKS = (queue, session_queue, topic, probe_link)
