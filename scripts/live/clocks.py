"""Checks the broker's clock and the expiry of messages."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from azure.servicebus import ServiceBusMessage

from twinbus.syphon.receiving.broker_clock import BrokerClock

from .checks import Findings, check
from .drill import Drill, Exchange
from .messages import Raw, encode_message

LOCK = timedelta(minutes=1)  # as of a backlog queue
SLACK_MS = 2_000
TTL_MS = 600_000
SHORT_MS = 2_000
HOUR_MS = 3_600_000
MARKER = "marker"


@check(
    "locked-until minus the lock duration is the broker's clock",
    "it lies between the enqueued times of a message sent before and of one sent after the delivery",
)
async def broker_clock(drill: Drill, findings: Findings) -> None:
    site = drill.at_secondary
    async with site.exchange(await site.queue("clock", lock_duration=LOCK)) as exchange:
        await exchange.send()
        await asyncio.sleep(2)  # so that the lock starts clearly after the enqueued time
        listener = await exchange.listen(credit=1)
        delivery = await listener.take()
        clock = BrokerClock(int(LOCK.total_seconds() * 1000))
        clock.observe(delivery.payload, 0.0)
        broker_now = clock.now_ms(0.0)
        await listener.settle(delivery)
        await exchange.send()
        listener.receiver.add_credit(1)
        before = int(Raw.of(delivery.payload).annotations["x-opt-enqueued-time"])
        after = int((await listener.take_raw()).annotations["x-opt-enqueued-time"])
        since, until = broker_now - before, after - broker_now
        findings.expect(since >= 2_000 - SLACK_MS // 2, f"{since} ms after the message before")
        findings.expect(until >= -SLACK_MS // 2, f"{until} ms before the message after")
        findings.note(f"this machine's clock is off by {time.time() * 1000 - after:.0f} ms or less")


@check(
    "the SDK's time to live as a receiver sees it",
    "the header has it in full, expiry minus creation is the same",
)
async def sdk_ttl(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("ttl")
    async with site.client.get_queue_sender(path) as sender:
        await sender.send_messages(ServiceBusMessage(b"", time_to_live=timedelta(milliseconds=TTL_MS)))
    async with site.exchange(path) as exchange:
        listener = await exchange.listen(credit=1)
        raw = await listener.take_raw()
    findings.expect_equal("header", raw.ttl, TTL_MS)
    has_both = raw.expiry is not None and raw.created is not None
    findings.expect_equal("expiry minus creation", raw.expiry - raw.created if has_both else None, TTL_MS)
    if has_both:
        findings.note(f"creation is {raw.annotations['x-opt-enqueued-time'] - raw.created} ms before the enqueued time")


@check(
    "a header's time to live outranks the expiry time",
    "a message with an expiry in the past but a time to live in its header is delivered",
)
async def header_outranks(drill: Drill, findings: Findings) -> None:
    site, now = drill.at_primary, int(time.time() * 1000)
    async with site.exchange(await site.queue("ttl-header")) as exchange:
        await exchange.send(
            encode_message(message_id="old", ttl=TTL_MS, expiry=now - HOUR_MS, created=now - 2 * HOUR_MS)
        )
        raw = await _first(exchange)
        findings.expect_equal("received first:", raw.message_id, "old")
        if raw.message_id == "old":
            findings.note(f"header {raw.ttl} ms, expiry {(raw.expiry or 0) - now} ms from now")


@check("without a header's time to live, expiry minus creation counts", "the message is gone after that time")
async def expiry_alone(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    path = await site.queue("ttl-expiry", dead_lettering_on_message_expiration=True)
    async with site.exchange(path) as exchange:
        now = int(time.time() * 1000)
        await exchange.send(encode_message(message_id="short", expiry=now + SHORT_MS, created=now))
        await asyncio.sleep(2 * SHORT_MS / 1000)
        raw = await _first(exchange)
        findings.expect_equal("received first:", raw.message_id, MARKER)


@check(
    "without both, the queue's default time to live counts",
    "the service adds no time to live and no expiry time to a message in a backlog queue",
)
async def queue_default(drill: Drill, findings: Findings) -> None:
    site = drill.at_secondary
    async with site.exchange(await site.queue("ttl-none", default_message_time_to_live=timedelta(days=14))) as exchange:
        await exchange.send(encode_message(message_id="plain"))
        raw = await _first(exchange)
        findings.expect_equal("header", raw.ttl, None)
        findings.expect_equal("expiry", raw.expiry, None)
        findings.expect_equal("creation", raw.created, None)


async def _first(exchange: Exchange) -> Raw:
    """The first message that a receiver gets, after sending a marker as the last one."""
    await exchange.send(encode_message(message_id=MARKER))
    listener = await exchange.listen(credit=1)
    return await listener.take_raw()


CHECKS = (broker_clock, sdk_ttl, header_outranks, expiry_alone, queue_default)
