"""Checks idle links with `LONG=1`, in parallel, for about a quarter of an hour."""

from __future__ import annotations

import asyncio
import time

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError

from twinbus import Route
from twinbus.aio import PairedServiceBusClient
from twinbus.pairing.events import Diverted, Event, FailedOver, Suspected
from twinbus.syphon import AmqpError

from .administration import options_for
from .checks import Findings, check, describe
from .drill import Drill, Times
from .messages import encode_message


def _idle(times: Times) -> float:
    return times.idle[1] + times.check


def _standing(times: Times) -> float:
    return times.standing + times.check


@check("an idle sender link is detached", "after 10 minutes, with amqp:link:detach-forced", _idle)
async def detached(drill: Drill, findings: Findings) -> None:
    site, (least, most) = drill.at_primary, drill.times.idle
    path = await site.queue("idle")
    ended: asyncio.Future[AmqpError] = asyncio.get_running_loop().create_future()
    async with site.connect() as connection:
        sender = await connection.attach_sender(path, on_end=ended.set_result)
        await sender.deliver(encode_message(), site.times.answer)
        started = time.monotonic()
        await asyncio.wait({ended}, timeout=most)
        waited = time.monotonic() - started
        if not ended.done():
            findings.expect(False, f"detached within {most:g} s")
            return
        findings.expect(waited >= least, f"detached after {waited:.1f} s")
        findings.expect_equal("with", ended.result().condition, "amqp:link:detach-forced")
        findings.note(f"the connection {'is open' if connection.error is None else 'is closed, too'}")


@check(
    "the SDK's next send over a detached link",
    "without retries it fails with ServiceBusConnectionError within a second or two; the one after succeeds",
    _idle,
)
async def next_send(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    async with site.client.get_queue_sender(await site.queue("idle-sdk")) as sender:
        await sender.send_messages(ServiceBusMessage(b"1"))
        await asyncio.sleep(drill.times.idle[1])
        started = time.monotonic()
        try:
            await sender.send_messages(ServiceBusMessage(b"2"))
            findings.expect(False, "the send fails")
        except ServiceBusError as error:
            waited = time.monotonic() - started
            findings.expect(type(error) is ServiceBusConnectionError, f"{describe(error)} after {waited:.2f} s")
        await sender.send_messages(ServiceBusMessage(b"3"))
        findings.note("the next send was accepted")


@check(
    "our sender after an idle detach",
    "the next send is accepted by the primary: no suspicion, no failover, nothing diverted",
    _idle,
)
async def paired_sender(drill: Drill, findings: Findings) -> None:
    site, name = drill.at_primary, f"{drill.prefix}-idle"
    path = await site.queue("idle-paired")
    drill.at_secondary.backlog(name, 1)
    events: list[Event] = []
    async with PairedServiceBusClient(drill.primary, drill.secondary, options_for(drill, name)) as client:
        client.on_event(events.append)
        sender = client.get_queue_sender(path)
        await sender.send_messages(ServiceBusMessage(b"1"))
        await asyncio.sleep(drill.times.idle[1])
        receipt = await sender.send_messages(ServiceBusMessage(b"2"))
        findings.expect(receipt.route is Route.PRIMARY, f"accepted by the primary, attempts: {receipt.attempts}")
        alarms = [type(event).__name__ for event in events if isinstance(event, (Suspected, FailedOver, Diverted))]
        findings.expect_equal("events", alarms, [])
    async with site.exchange(path) as exchange:
        findings.expect_equal("arrived", len(await exchange.peek()), 2)


@check(
    "a receiver with standing credit stays alive",
    "after 15 idle minutes a message still arrives on the same link",
    _standing,
)
async def standing_credit(drill: Drill, findings: Findings) -> None:
    site = drill.at_secondary
    path = await site.queue("standing")
    async with site.exchange(path) as exchange:
        listener = await exchange.listen(credit=1)
        lost = asyncio.create_task(exchange.connection.wait_lost())
        try:
            await asyncio.wait({lost}, timeout=drill.times.standing)
        finally:
            lost.cancel()
        findings.expect(exchange.connection.error is None, "the connection is open")
        error = listener.receiver.error
        findings.expect(error is None, "the link is open" if error is None else f"the link is open ({describe(error)})")
        # On another connection, so that sending does not keep the receiver's connection alive.
        async with site.exchange(path) as other:
            await other.send()
        await listener.take_raw()
        findings.note(f"a message arrived after {drill.times.standing:g} s")


CHECKS = (detached, next_send, paired_sender, standing_credit)
