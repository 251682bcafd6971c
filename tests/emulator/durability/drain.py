"""Drains a namespace after a crash test: every stored message must be received over AMQP exactly once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from tests.emulator.durability.campaign import LOCK, ONCE, SESSIONS, Campaign, subscription_address
from tests.emulator.durability.ledger import Ledger, StoredMessage
from tests.emulator.durability.tables import Tables
from tests.emulator.raw_client import ConnectionGoneError, Delivery, RefusedError

from twinbus.amqp.codec.types import Array, UInt
from twinbus.emulator.storage.schema import State

# Far less than the lock duration: a lock that survived the restart shows as a missing message.
DRAIN_SECONDS = LOCK.total_seconds() / 5
SOON_MS = 60_000
CHUNK = 100
LONG = 0x81
CREDIT = 500


async def drain(campaign: Campaign, tables: Tables) -> None:
    """Receive everything in `tables`; raises `AssertionError` if a message is missing or comes twice."""
    async with asyncio.timeout(DRAIN_SECONDS):
        for path, ledger in campaign.ledgers.items():
            stored = tables.messages[path]
            _, _, name = path.partition("/")
            address = subscription_address(name) if name else path
            soon = time.time() * 1000 + SOON_MS
            far = [message for message in stored if message.due_at is not None and message.due_at > soon]
            dead = [message for message in stored if message.in_dead_letters]
            deferred = [message for message in stored if message.state == State.DEFERRED]
            rest = [message for message in stored if message.state != State.DEFERRED and not message.in_dead_letters]
            await _cancel(campaign, path, far)
            await _receive_deferred(campaign, address, deferred)
            await _receive(campaign, ledger, f"{address}/$DeadLetterQueue", dead)
            ready = [message for message in rest if message not in far]
            if path == SESSIONS:
                for session in sorted({message.session or "" for message in ready}):
                    await _receive(campaign, ledger, address, [o for o in ready if o.session == session], session)
            else:
                await _receive(campaign, ledger, address, ready)


async def _cancel(campaign: Campaign, path: str, scheduled: list[StoredMessage]) -> None:
    if scheduled:
        async with campaign.client.get_queue_sender(path) as sender:
            await sender.cancel_scheduled_messages([message.sequence for message in scheduled])


async def _receive_deferred(campaign: Campaign, address: str, deferred: list[StoredMessage]) -> None:
    """Receive and delete by sequence number; messages of a session through a receiver that holds it."""
    for session in sorted({message.session for message in deferred}, key=str):
        ours = [message for message in deferred if message.session == session]
        async with campaign.raw(address) as client:
            link = await client.receiver(address, lambda delivery: None, session=session)
            for start in range(0, len(ours), CHUNK):
                chunk = ours[start : start + CHUNK]
                numbers = Array(LONG, [message.sequence for message in chunk])
                request = {"sequence-numbers": numbers, "receiver-settle-mode": UInt(0), "session-id": session}
                answer = await client.manage(address, "receive-by-sequence-number", request, link)
                messages = [Delivery(0, b"", message["message"]) for message in answer["messages"]]
                _compare([message.message_id for message in messages], chunk)


async def _receive(
    campaign: Campaign, ledger: Ledger, address: str, expected: list[StoredMessage], session: str | None = None
) -> None:
    """Receive and complete until every expected message has arrived."""
    if not expected:
        return
    received: list[str] = []
    finished = asyncio.Event()
    left = len(expected)

    def outcome(error: RefusedError | ConnectionGoneError | None) -> None:
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
    assert sorted(received) == sorted(message.message_id for message in expected)
