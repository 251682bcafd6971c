"""The end of a crash test: every stored message is received over the wire, at once and exactly once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from tests.broker.durability.campaign import LOCK, ONCE, SESSIONS, Campaign, subscription_address
from tests.broker.durability.ledger import Ledger, StoredMessage
from tests.broker.durability.tables import Tables
from tests.broker.raw_client import Delivery, Gone, Refused

from twinbus.amqp.types import Array, UInt
from twinbus.broker.schema import State

# Far less than a lock lasts: a lock that was not freed shows as a message that does not come.
DRAIN_SECONDS = LOCK.total_seconds() / 5
SOON_MS = 60_000
CHUNK = 100
LONG = 0x81
CREDIT = 500


async def drain(campaign: Campaign, tables: Tables) -> None:
    """Receive everything that `tables` holds; raises `AssertionError` if something is missing or comes twice."""
    async with asyncio.timeout(DRAIN_SECONDS):
        for path, ledger in campaign.ledgers.items():
            stored = tables.messages[path]
            _, _, name = path.partition("/")
            address = subscription_address(name) if name else path
            soon = time.time() * 1000 + SOON_MS
            far = [one for one in stored if one.due_at is not None and one.due_at > soon]
            dead = [one for one in stored if one.in_dead_letters]
            deferred = [one for one in stored if one.state == State.DEFERRED]
            rest = [one for one in stored if one.state != State.DEFERRED and not one.in_dead_letters]
            await _cancel(campaign, path, far)
            await _receive_deferred(campaign, address, deferred)
            await _receive(campaign, ledger, f"{address}/$DeadLetterQueue", dead)
            ready = [one for one in rest if one not in far]
            if path == SESSIONS:
                for session in sorted({one.session or "" for one in ready}):
                    await _receive(campaign, ledger, address, [o for o in ready if o.session == session], session)
            else:
                await _receive(campaign, ledger, address, ready)


async def _cancel(campaign: Campaign, path: str, scheduled: list[StoredMessage]) -> None:
    if scheduled:
        async with campaign.client.get_queue_sender(path) as sender:
            await sender.cancel_scheduled_messages([one.sequence for one in scheduled])


async def _receive_deferred(campaign: Campaign, address: str, deferred: list[StoredMessage]) -> None:
    """Receive and delete by number, each session's from a receiver that holds it."""
    for session in sorted({one.session for one in deferred}, key=str):
        ours = [one for one in deferred if one.session == session]
        async with campaign.raw(address) as client:
            link = await client.receiver(address, lambda delivery: None, session=session)
            for start in range(0, len(ours), CHUNK):
                chunk = ours[start : start + CHUNK]
                numbers = Array(LONG, [one.sequence for one in chunk])
                asked = {"sequence-numbers": numbers, "receiver-settle-mode": UInt(0), "session-id": session}
                found = await client.manage(address, "receive-by-sequence-number", asked, link)
                messages = [Delivery(0, b"", one["message"]) for one in found["messages"]]
                _compare([one.message_id for one in messages], chunk)


async def _receive(
    campaign: Campaign, ledger: Ledger, address: str, expected: list[StoredMessage], session: str | None = None
) -> None:
    """Receive and complete until everything expected has come."""
    if not expected:
        return
    received: list[str] = []
    finished = asyncio.Event()
    left = len(expected)

    def outcome(error: Refused | Gone | None) -> None:
        nonlocal left
        assert error is None, error
        left -= 1
        if left == 0:
            finished.set()

    def on_message(delivery: Delivery) -> None:
        received.append(delivery.message_id)
        ledger.arrived(delivery.message_id)
        if address == ONCE:
            outcome(None)
        else:
            receiver.settle(delivery, outcome)

    async with campaign.raw(address) as client:
        receiver = await client.receiver(address, on_message, deletes=address == ONCE, session=session)
        receiver.grant(CREDIT, renewed=True)
        try:
            await finished.wait()
        except asyncio.CancelledError:
            _compare(received, expected)
            raise
    _compare(received, expected)


def _compare(received: Iterable[str], expected: Iterable[StoredMessage]) -> None:
    assert sorted(received) == sorted(one.message_id for one in expected)
