"""The AMQP client that the syphon moves bytes with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from twinbus.syphon import (
    ABANDON,
    ACCEPT,
    DEFER,
    RELEASE,
    RequestFailed,
    SasKey,
    Settlement,
    dead_letter,
)

from .checks import Seen, check, described
from .drill import Drill, Exchange
from .messages import DEFERRED, Raw, encoded

COUNT = 10
LARGE = 200_000  # bytes: several frames, and still less than Standard takes


@check(
    "our client: log in, attach, send, receive, complete",
    "a token is taken, each send and each settlement has its outcome, nothing is left",
)
async def round_trip(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("round-trip")) as exchange:
        sender = await exchange.sender()
        await sender.wait_for_room(site.times.answer)
        seen.note(f"credit {sender.room}, messages up to {sender.max_message_size} bytes")
        for number in range(COUNT):
            await exchange.send(encoded(b"%d" % number))
        listener = await exchange.listen(credit=COUNT)
        bodies = [(await listener.take_raw()).body for _ in range(COUNT)]
        seen.that(bodies == [b"%d" % number for number in range(COUNT)], f"{COUNT} received in order")
        seen.value("tokens", exchange.connection.tokens_shown, 1)
        seen.value("left", len(await exchange.peek()), 0)


@check("our client: a message of many frames", f"{LARGE} bytes come back as they were sent")
async def large(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("large")) as exchange:
        body = bytes(range(256)) * (LARGE // 256)
        await exchange.send(encoded(body))
        listener = await exchange.listen(credit=1)
        seen.that((await listener.take_raw()).body == body, f"{len(body)} bytes, the same")


@check("our client: credit is taken back", "a receiver that is stopped gets nothing more, and everything once started")
async def credit(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("credit")) as exchange:
        listener = await exchange.listen(credit=50)
        started = time.monotonic()
        await listener.receiver.stop(site.times.answer)
        seen.value("credit left", listener.receiver.credit, 0)
        seen.note(f"after {time.monotonic() - started:.2f} s")
        await exchange.send()
        peeked = await exchange.peek()
        seen.value("waiting", [one.delivery_count for one in peeked], [0])
        listener.receiver.add_credit(1)
        await listener.take_raw()
        seen.note("delivered after new credit")


@check("our client: dead-letter with reason", "both texts are application properties of the dead letter")
async def dead_lettered(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("dead-letter")) as exchange:
        await exchange.send(encoded(message_id="poison"))
        listener = await exchange.listen(credit=1)
        await listener.settle(await listener.take(), dead_letter("TwinbusLive", "only a drill"))
        dead = await exchange.listen(credit=1, path=f"{exchange.path}/$deadletterqueue")
        found = await dead.take_raw()
        seen.value("id", found.message_id, "poison")
        seen.value("reason", found.application.get("DeadLetterReason"), "TwinbusLive")
        seen.value("description", found.application.get("DeadLetterErrorDescription"), "only a drill")


@check(
    "our client: defer, peek, receive by number, renew",
    "a peek shows locked and deferred messages; a deferred one comes by its number, under a lock that can be renewed",
)
async def deferral(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("defer")) as exchange:
        for name in ("deferred", "locked", "active"):
            await exchange.send(encoded(message_id=name))
        listener = await exchange.listen(credit=2)
        first, second = await listener.take(), await listener.take()
        await listener.settle(first, DEFER)
        peeked = {one.message_id: one for one in await exchange.peek()}
        seen.value("peek shows", sorted(peeked), ["active", "deferred", "locked"])
        states = {name: one.state for name, one in peeked.items()}
        seen.value("states", states, {"deferred": DEFERRED, "locked": 0, "active": 0})
        management = await exchange.management()
        [locked] = await management.receive_deferred([Raw.of(first.payload).sequence_number])
        seen.value("by number", Raw.of(locked.payload).message_id, "deferred")
        before = Raw.of(locked.payload).annotations.get("x-opt-locked-until")
        await asyncio.sleep(1)
        [until, _] = await management.renew_locks([locked.lock_token, second.lock_token])
        seen.that(isinstance(before, int) and until > before, "its lock was renewed, and that of a delivery")
        await management.settle([locked.lock_token], Settlement.COMPLETED)
        await listener.settle(second)
        left = await exchange.peek()
        seen.value("left", [one.message_id for one in left], ["active"])


@check("our client: what raises the delivery count", "abandoning does; releasing and deferring do not")
async def delivery_counts(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("counts")) as exchange:
        listener = await exchange.listen()
        await exchange.send()
        number = 0
        for when, expected, outcome in (("at first", 0, RELEASE), ("released", 0, ABANDON), ("abandoned", 1, DEFER)):
            listener.receiver.add_credit(1)
            delivery = await listener.take()
            raw = Raw.of(delivery.payload)
            seen.value(f"{when}:", raw.delivery_count, expected)
            number = raw.sequence_number
            await listener.settle(delivery, outcome)
        management = await exchange.management()
        [locked] = await management.receive_deferred([number])
        seen.value("deferred:", Raw.of(locked.payload).delivery_count, 1)
        await management.settle([locked.lock_token], Settlement.ABANDONED)
        [locked] = await management.receive_deferred([number])
        seen.note(f"abandoned while deferred: {Raw.of(locked.payload).delivery_count}")
        await management.settle([locked.lock_token], Settlement.COMPLETED)


@check(
    "our client: settlements that come too late",
    "com.microsoft:message-lock-lost 410 for a lock that is gone, com.microsoft:message-not-found 404 for a number",
)
async def late_settlements(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("late")) as exchange:
        await exchange.send()
        listener = await exchange.listen(credit=1)
        delivery = await listener.take()
        number = Raw.of(delivery.payload).sequence_number
        await listener.settle(delivery, ACCEPT)
        management = await exchange.management()
        lost, missing = "com.microsoft:message-lock-lost", "com.microsoft:message-not-found"
        asked: list[tuple[str, Awaitable[Any], tuple[str, int]]] = [
            ("settle:", management.settle([delivery.lock_token], Settlement.COMPLETED), (lost, 410)),
            ("renew:", management.renew_locks([delivery.lock_token]), (lost, 410)),
            ("a completed number:", management.receive_deferred([number]), (missing, 404)),
            ("an unknown number:", management.receive_deferred([number + 1_000_000]), (missing, 404)),
        ]
        answers = await asyncio.gather(*(work for _, work, _ in asked), return_exceptions=True)
        for (what, _, expected), answer in zip(asked, answers, strict=True):
            told = (answer.condition, answer.status) if isinstance(answer, RequestFailed) else type(answer).__name__
            seen.value(what, told, expected)


@check(
    "our client: a token is renewed in time",
    "a second token is shown before the first ends, and the link lives on",
    lambda times: times.token + times.check,
)
async def token_refresh(drill: Drill, seen: Seen) -> None:
    site = drill.at_primary
    key = SasKey(*site.named_key, seconds=site.times.token)
    async with site.exchange(await site.queue("token"), key) as exchange:
        listener = await exchange.listen(credit=1)
        await exchange.send()
        await asyncio.sleep(site.times.token * 1.2)  # the first token is over
        seen.that(exchange.connection.tokens_shown >= 2, f"{exchange.connection.tokens_shown} tokens shown")
        await _still_works(exchange, seen)
        await listener.take()
        seen.that(listener.receiver.error is None, "the receiver is still attached")


async def _still_works(exchange: Exchange, seen: Seen) -> None:
    sender = await exchange.sender()
    if sender.error is not None:
        seen.that(False, f"the sender is still attached ({described(sender.error)})")
        return
    await exchange.send()
    seen.note("the sender still sends")


CHECKS = (round_trip, large, credit, dead_lettered, deferral, delivery_counts, late_settlements, token_refresh)
