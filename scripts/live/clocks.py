"""The broker's clock, and how long it lets a message live."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from azure.servicebus import ServiceBusMessage

from twinbus.syphon.clock import BrokerClock

from .checks import Seen, check
from .drill import Drill, Exchange
from .messages import Raw, encoded

LOCK = timedelta(minutes=1)  # that of a backlog queue
SLACK_MS = 2_000
LIFE_MS = 600_000
SHORT_MS = 2_000
HOUR_MS = 3_600_000
MARKER = "marker"


@check(
    "locked-until minus the lock duration is the broker's clock",
    "it lies between the enqueued times of a message sent before and of one sent after the delivery",
)
async def broker_clock(drill: Drill, seen: Seen) -> None:
    site = drill.at_secondary
    async with site.exchange(await site.queue("clock", lock_duration=LOCK)) as exchange:
        await exchange.send()
        await asyncio.sleep(2)  # so that the lock's begin is told apart from the enqueued time
        listener = await exchange.listen(credit=1)
        delivery = await listener.take()
        clock = BrokerClock(int(LOCK.total_seconds() * 1000))
        clock.observe(delivery.payload, 0.0)
        told = clock.now_ms(0.0)
        await listener.settle(delivery)
        await exchange.send()
        listener.receiver.add_credit(1)
        before = int(Raw.of(delivery.payload).annotations["x-opt-enqueued-time"])
        after = int((await listener.take_raw()).annotations["x-opt-enqueued-time"])
        since, until = told - before, after - told
        seen.that(since >= 2_000 - SLACK_MS // 2, f"{since} ms after the message before")
        seen.that(until >= -SLACK_MS // 2, f"{until} ms before the message after")
        seen.note(f"this machine's clock is off by {time.time() * 1000 - after:.0f} ms or less")


@check(
    "the SDK's time to live as a receiver sees it",
    "the header has it in full, expiry minus creation is the same",
)
async def sdk_ttl(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("ttl")
    async with site.client.get_queue_sender(path) as sender:
        await sender.send_messages(ServiceBusMessage(b"", time_to_live=timedelta(milliseconds=LIFE_MS)))
    async with site.exchange(path) as exchange:
        listener = await exchange.listen(credit=1)
        raw = await listener.take_raw()
    seen.value("header", raw.ttl, LIFE_MS)
    both = raw.expiry is not None and raw.created is not None
    seen.value("expiry minus creation", raw.expiry - raw.created if both else None, LIFE_MS)
    if both:
        seen.note(f"creation is {raw.annotations['x-opt-enqueued-time'] - raw.created} ms before the enqueued time")


@check(
    "a header's time to live outranks the expiry time",
    "a message with an expiry in the past and a life in its header is delivered",
)
async def header_outranks(drill: Drill, seen: Seen) -> None:
    site, now = drill.at_primary, int(time.time() * 1000)
    async with site.exchange(await site.queue("ttl-header")) as exchange:
        await exchange.send(encoded(message_id="old", ttl=LIFE_MS, expiry=now - HOUR_MS, created=now - 2 * HOUR_MS))
        raw = await _first(exchange)
        seen.value("received first:", raw.message_id, "old")
        if raw.message_id == "old":
            seen.note(f"header {raw.ttl} ms, expiry {(raw.expiry or 0) - now} ms from now")


@check("without a header's time to live, expiry minus creation counts", "such a message is gone when that time is over")
async def expiry_alone(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    path = await site.queue("ttl-expiry", dead_lettering_on_message_expiration=True)
    async with site.exchange(path) as exchange:
        now = int(time.time() * 1000)
        await exchange.send(encoded(message_id="short", expiry=now + SHORT_MS, created=now))
        await asyncio.sleep(2 * SHORT_MS / 1000)
        raw = await _first(exchange)
        seen.value("received first:", raw.message_id, MARKER)


@check(
    "neither: the message lives as long as the queue says",
    "no time to live, no expiry time is added to a message of a backlog queue",
)
async def nothing_said(drill: Drill, seen: Seen) -> None:
    site = drill.at_secondary
    async with site.exchange(await site.queue("ttl-none", default_message_time_to_live=timedelta(days=14))) as exchange:
        await exchange.send(encoded(message_id="plain"))
        raw = await _first(exchange)
        seen.value("header", raw.ttl, None)
        seen.value("expiry", raw.expiry, None)
        seen.value("creation", raw.created, None)


async def _first(exchange: Exchange) -> Raw:
    """What a receiver gets first, if there is a marker behind everything else."""
    await exchange.send(encoded(message_id=MARKER))
    listener = await exchange.listen(credit=1)
    return await listener.take_raw()


CHECKS = (broker_clock, sdk_ttl, header_outranks, expiry_alone, nothing_said)
