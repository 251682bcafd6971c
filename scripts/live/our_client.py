"""Checks twinbus's own AMQP client, which the syphon uses."""

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
    RequestFailedError,
    SasKey,
    Settlement,
    dead_letter,
)

from .checks import Findings, check, describe
from .drill import Drill, Exchange
from .messages import DEFERRED, Raw, encode_message

COUNT = 10
LARGE = 200_000  # bytes: several frames, but below the limit of Standard


@check(
    "our client: log in, attach, send, receive, complete",
    "a token is accepted, each send and each settlement gets its outcome, nothing is left",
)
async def round_trip(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("round-trip")) as exchange:
        sender = await exchange.sender()
        await sender.wait_for_credit(site.times.answer)
        findings.note(f"credit {sender.available}, messages up to {sender.max_message_size} bytes")
        for number in range(COUNT):
            await exchange.send(encode_message(b"%d" % number))
        listener = await exchange.listen(credit=COUNT)
        bodies = [(await listener.take_raw()).body for _ in range(COUNT)]
        findings.expect(bodies == [b"%d" % number for number in range(COUNT)], f"{COUNT} received in order")
        findings.expect_equal("tokens", exchange.connection.tokens_put, 1)
        findings.expect_equal("left", len(await exchange.peek()), 0)


@check("our client: a message of many frames", f"{LARGE} bytes come back as they were sent")
async def large(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("large")) as exchange:
        body = bytes(range(256)) * (LARGE // 256)
        await exchange.send(encode_message(body))
        listener = await exchange.listen(credit=1)
        findings.expect((await listener.take_raw()).body == body, f"{len(body)} bytes, the same")


@check("our client: credit is taken back", "a receiver that is stopped gets nothing more, and everything once started")
async def credit(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("credit")) as exchange:
        listener = await exchange.listen(credit=50)
        started = time.monotonic()
        await listener.receiver.stop(site.times.answer)
        findings.expect_equal("credit left", listener.receiver.credit, 0)
        findings.note(f"after {time.monotonic() - started:.2f} s")
        await exchange.send()
        peeked = await exchange.peek()
        findings.expect_equal("waiting", [message.delivery_count for message in peeked], [0])
        listener.receiver.add_credit(1)
        await listener.take_raw()
        findings.note("delivered after new credit")


@check("our client: dead-letter with reason", "both texts are application properties of the dead letter")
async def dead_lettered(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("dead-letter")) as exchange:
        await exchange.send(encode_message(message_id="poison"))
        listener = await exchange.listen(credit=1)
        await listener.settle(await listener.take(), dead_letter("TwinbusLive", "only a drill"))
        dead = await exchange.listen(credit=1, path=f"{exchange.path}/$deadletterqueue")
        letter = await dead.take_raw()
        findings.expect_equal("id", letter.message_id, "poison")
        findings.expect_equal("reason", letter.application.get("DeadLetterReason"), "TwinbusLive")
        findings.expect_equal("description", letter.application.get("DeadLetterErrorDescription"), "only a drill")


@check(
    "our client: defer, peek, receive by number, renew",
    "a peek shows locked and deferred messages; a deferred one comes by its number, under a lock that can be renewed",
)
async def deferral(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("defer")) as exchange:
        for name in ("deferred", "locked", "active"):
            await exchange.send(encode_message(message_id=name))
        listener = await exchange.listen(credit=2)
        first, second = await listener.take(), await listener.take()
        await listener.settle(first, DEFER)
        peeked = {message.message_id: message for message in await exchange.peek()}
        findings.expect_equal("peek shows", sorted(peeked), ["active", "deferred", "locked"])
        states = {name: message.state for name, message in peeked.items()}
        findings.expect_equal("states", states, {"deferred": DEFERRED, "locked": 0, "active": 0})
        management = await exchange.management()
        [locked] = await management.receive_deferred([Raw.of(first.payload).sequence_number])
        findings.expect_equal("by number", Raw.of(locked.payload).message_id, "deferred")
        before = Raw.of(locked.payload).annotations.get("x-opt-locked-until")
        await asyncio.sleep(1)
        [until, _] = await management.renew_locks([locked.lock_token, second.lock_token])
        findings.expect(isinstance(before, int) and until > before, "its lock was renewed, and that of a delivery")
        await management.settle([locked.lock_token], Settlement.COMPLETED)
        await listener.settle(second)
        left = await exchange.peek()
        findings.expect_equal("left", [message.message_id for message in left], ["active"])


@check("our client: what raises the delivery count", "abandoning does; releasing and deferring do not")
async def delivery_counts(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("counts")) as exchange:
        listener = await exchange.listen()
        await exchange.send()
        number = 0
        for when, expected, outcome in (("at first", 0, RELEASE), ("released", 0, ABANDON), ("abandoned", 1, DEFER)):
            listener.receiver.add_credit(1)
            delivery = await listener.take()
            raw = Raw.of(delivery.payload)
            findings.expect_equal(f"{when}:", raw.delivery_count, expected)
            number = raw.sequence_number
            await listener.settle(delivery, outcome)
        management = await exchange.management()
        [locked] = await management.receive_deferred([number])
        findings.expect_equal("deferred:", Raw.of(locked.payload).delivery_count, 1)
        await management.settle([locked.lock_token], Settlement.ABANDONED)
        [locked] = await management.receive_deferred([number])
        findings.note(f"abandoned while deferred: {Raw.of(locked.payload).delivery_count}")
        await management.settle([locked.lock_token], Settlement.COMPLETED)


@check(
    "our client: settlements that come too late",
    "com.microsoft:message-lock-lost 410 for a lock that is gone, com.microsoft:message-not-found 404 for a number",
)
async def late_settlements(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    async with site.exchange(await site.queue("late")) as exchange:
        await exchange.send()
        listener = await exchange.listen(credit=1)
        delivery = await listener.take()
        number = Raw.of(delivery.payload).sequence_number
        await listener.settle(delivery, ACCEPT)
        management = await exchange.management()
        lost, missing = "com.microsoft:message-lock-lost", "com.microsoft:message-not-found"
        requests: list[tuple[str, Awaitable[Any], tuple[str, int]]] = [
            ("settle:", management.settle([delivery.lock_token], Settlement.COMPLETED), (lost, 410)),
            ("renew:", management.renew_locks([delivery.lock_token]), (lost, 410)),
            ("a completed number:", management.receive_deferred([number]), (missing, 404)),
            ("an unknown number:", management.receive_deferred([number + 1_000_000]), (missing, 404)),
        ]
        answers = await asyncio.gather(*(work for _, work, _ in requests), return_exceptions=True)
        for (name, _, expected), answer in zip(requests, answers, strict=True):
            result = (
                (answer.condition, answer.status) if isinstance(answer, RequestFailedError) else type(answer).__name__
            )
            findings.expect_equal(name, result, expected)


@check(
    "our client: a token is renewed in time",
    "a second token is sent before the first expires, and the link stays attached",
    lambda times: times.token + times.check,
)
async def token_refresh(drill: Drill, findings: Findings) -> None:
    site = drill.at_primary
    key = SasKey(*site.named_key, seconds=site.times.token)
    async with site.exchange(await site.queue("token"), key) as exchange:
        listener = await exchange.listen(credit=1)
        await exchange.send()
        await asyncio.sleep(site.times.token * 1.2)  # the first token has expired
        findings.expect(exchange.connection.tokens_put >= 2, f"{exchange.connection.tokens_put} tokens sent")
        await _still_works(exchange, findings)
        await listener.take()
        findings.expect(listener.receiver.error is None, "the receiver is still attached")


async def _still_works(exchange: Exchange, findings: Findings) -> None:
    sender = await exchange.sender()
    if sender.error is not None:
        findings.expect(False, f"the sender is still attached ({describe(sender.error)})")
        return
    await exchange.send()
    findings.note("the sender still sends")


CHECKS = (round_trip, large, credit, dead_lettered, deferral, delivery_counts, late_settlements, token_refresh)
