"""The end of a crash test: every stored message is received over the wire, at once and exactly once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from azure.servicebus import ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusReceiver
from tests.broker.durability.campaign import LOCK, ONCE, SESSIONS, Campaign, subscription_address
from tests.broker.durability.ledger import Ledger, StoredMessage
from tests.broker.durability.tables import Tables
from tests.broker.raw_client import Delivery, Gone, Refused

from twinbus.broker.schema import State

# Far less than a lock lasts: a lock that was not freed shows as a message that does not come.
DRAIN_SECONDS = LOCK.total_seconds() / 5
SOON_MS = 60_000
CHUNK = 100
CREDIT = 500


async def drain(campaign: Campaign, tables: Tables) -> None:
    """Receive everything that `tables` holds; raises `AssertionError` if something is missing or comes twice."""
    async with asyncio.timeout(DRAIN_SECONDS):
        for path, ledger in campaign.ledgers.items():
            stored = tables.messages[path]
            topic, _, name = path.partition("/")
            address = subscription_address(name) if name else path
            soon = time.time() * 1000 + SOON_MS
            far = [one for one in stored if one.due_at is not None and one.due_at > soon]
            dead = [one for one in stored if one.in_dead_letters]
            deferred = [one for one in stored if one.state == State.DEFERRED]
            rest = [one for one in stored if one.state != State.DEFERRED and not one.in_dead_letters]
            await _cancel(campaign, path, far)
            await _receive_deferred(campaign, topic, name, deferred)
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


async def _receive_deferred(campaign: Campaign, topic: str, name: str, deferred: list[StoredMessage]) -> None:
    for session in sorted({one.session for one in deferred}, key=str):
        ours = [one for one in deferred if one.session == session]
        async with _deleting_receiver(campaign, topic, name, session) as receiver:
            for start in range(0, len(ours), CHUNK):
                chunk = ours[start : start + CHUNK]
                messages = await receiver.receive_deferred_messages([one.sequence for one in chunk])
                _compare([one.message_id or "" for one in messages], chunk)


def _deleting_receiver(campaign: Campaign, topic: str, name: str, session: str | None) -> ServiceBusReceiver:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    options = {"session_id": session} if session is not None else {}
    if name:
        return campaign.client.get_subscription_receiver(topic, name, receive_mode=mode, **options)
    return campaign.client.get_queue_receiver(topic, receive_mode=mode, **options)


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
