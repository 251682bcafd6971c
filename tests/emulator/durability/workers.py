"""The load of the crash tests: senders and receivers, raw and through the SDK, that continue after every kill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.core.exceptions import AzureError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from tests.emulator.durability.campaign import (
    FLOOD,
    LATER,
    ONCE,
    ORDERS,
    SESSION_IDS,
    SESSIONS,
    SUBSCRIPTIONS,
    TOPIC,
    Campaign,
    subscription_address,
    subscription_path,
)
from tests.emulator.durability.ledger import Ledger
from tests.emulator.raw_client import (
    NEXT_SESSION,
    ConnectionGoneError,
    Delivery,
    RawReceiver,
    RefusedError,
    encoded_message,
)

from twinbus.amqp.codec.performatives import Error, Modified, Rejected
from twinbus.emulator.protocol.error_conditions import SESSION_CANNOT_BE_LOCKED

PIPELINE = 200  # concurrent sends
BACKLOG = 4_000  # unreceived messages above which a raw sender waits
CREDIT = 100
SDK_BATCH = 20
BODY = b"x" * 600
NEAR_SECONDS = 1.5
FAR_SECONDS = 3600.0

Worker = Callable[[Campaign], Awaitable[None]]


# ---- raw ----


async def _pipeline(campaign: Campaign, entity: str, ledgers: list[Ledger], worker: str, **options: Any) -> None:
    """Send as fast as credit and `BACKLOG` allow, until the connection ends."""
    under_way = asyncio.Semaphore(PIPELINE)

    def outcome_of(message_id: str) -> Callable[[RefusedError | ConnectionGoneError | None], None]:
        def outcome(error: RefusedError | ConnectionGoneError | None) -> None:
            under_way.release()
            if error is None:
                for ledger in ledgers:
                    ledger.acknowledged.add(message_id)
            elif isinstance(error, RefusedError):
                raise error

        return outcome

    async with campaign.raw(entity) as client:
        sender = await client.sender(entity)
        while True:
            await under_way.acquire()
            await sender.room()
            if len(ledgers[0].acknowledged) - _gone(ledgers[0]) > BACKLOG:
                await asyncio.sleep(0.01)
            message_id = campaign.new_id(worker)
            for ledger in ledgers:
                ledger.attempted.add(message_id)
            session = campaign.random.choice(SESSION_IDS) if entity == SESSIONS else None
            due_at = None
            if "due_within" in options:
                due_at = time.time() + campaign.random.uniform(0.1, options["due_within"])
            sender.submit(encoded_message(message_id, BODY, session=session, due_at=due_at), outcome_of(message_id))


def _gone(ledger: Ledger) -> int:
    """The approximate number of messages no longer waiting to be received."""
    return (
        len(ledger.completed) + len(ledger.deferred) + len(ledger.dead_lettered) + len(getattr(ledger, "received", ()))
    )


async def flood_sender(campaign: Campaign) -> None:
    await _pipeline(campaign, FLOOD, [campaign.ledgers[FLOOD]], "flood")


async def session_sender(campaign: Campaign) -> None:
    await _pipeline(campaign, SESSIONS, [campaign.ledgers[SESSIONS]], "session")


async def once_sender(campaign: Campaign) -> None:
    await _pipeline(campaign, ONCE, [campaign.once], "once")


async def topic_sender(campaign: Campaign) -> None:
    ledgers = [campaign.ledgers[subscription_path(name)] for name in SUBSCRIPTIONS]
    await _pipeline(campaign, TOPIC, ledgers, "news")


async def near_sender(campaign: Campaign) -> None:
    await _pipeline(campaign, LATER, [campaign.ledgers[LATER]], "near", due_within=NEAR_SECONDS)


async def _settle_at_random(campaign: Campaign, entity: str, ledger: Ledger, session: str | None = None) -> None:
    """Complete most messages, and settle the others in other ways."""

    def on_message(delivery: Delivery) -> None:
        message_id = delivery.message_id
        ledger.arrived(message_id)
        choice = campaign.random.random()
        if choice < 0.7:
            _settle(receiver, delivery, None, ledger.completing, ledger.completed)
        elif choice < 0.78:
            _settle(receiver, delivery, Modified(False, True), ledger.deferring, ledger.deferred)
        elif choice < 0.86:
            reason = Rejected(Error("com.microsoft:dead-letter", None, {"DeadLetterReason": "tested"}))
            _settle(receiver, delivery, reason, ledger.dead_lettering, ledger.dead_lettered)
        elif choice < 0.95:
            _settle(receiver, delivery, Modified(True), set(), set())
        # The others stay locked, and must be unlocked after the restart.

    async with campaign.raw(entity) as client:
        receiver = await client.receiver(entity, on_message, session=session)
        receiver.grant(CREDIT, renewed=True)
        await client.lost


def _settle(receiver: RawReceiver, delivery: Delivery, state: Any, requested: set[str], done: set[str]) -> None:
    message_id = delivery.message_id
    requested.add(message_id)

    def outcome(error: RefusedError | ConnectionGoneError | None) -> None:
        if error is None:
            done.add(message_id)
        elif isinstance(error, RefusedError):
            raise error

    receiver.settle(delivery, outcome, state)


async def flood_receiver(campaign: Campaign) -> None:
    await _settle_at_random(campaign, FLOOD, campaign.ledgers[FLOOD])


async def later_receiver(campaign: Campaign) -> None:
    await _settle_at_random(campaign, LATER, campaign.ledgers[LATER])


async def session_receiver(campaign: Campaign) -> None:
    await _settle_at_random(campaign, SESSIONS, campaign.ledgers[SESSIONS], NEXT_SESSION)


async def north_receiver(campaign: Campaign) -> None:
    name = SUBSCRIPTIONS[0]
    await _settle_at_random(campaign, subscription_address(name), campaign.ledgers[subscription_path(name)])


async def south_receiver(campaign: Campaign) -> None:
    name = SUBSCRIPTIONS[1]
    await _settle_at_random(campaign, subscription_address(name), campaign.ledgers[subscription_path(name)])


async def once_receiver(campaign: Campaign) -> None:
    async with campaign.raw(ONCE) as client:
        receiver = await client.receiver(
            ONCE, lambda delivery: campaign.once.arrived(delivery.message_id), deletes=True
        )
        receiver.grant(CREDIT, renewed=True)
        campaign.once.under_way += 2 * CREDIT  # messages that may be lost in flight when the connection is cut
        await client.lost


async def state_keeper(campaign: Campaign) -> None:
    """Hold one session and change its state continuously."""
    async with campaign.raw(SESSIONS) as client:
        session = campaign.random.choice(SESSION_IDS)
        link = await client.receiver(SESSIONS, lambda delivery: None, session=session)
        while True:
            state = campaign.new_id("state").encode()
            campaign.states.setting(session, state)
            await client.manage(SESSIONS, "set-session-state", {"session-id": session, "session-state": state}, link)
            campaign.states.was_set(session, state)


# ---- through the SDK ----


async def order_sender(campaign: Campaign) -> None:
    ledger = campaign.ledgers[ORDERS]
    sender = campaign.client.get_queue_sender(ORDERS)
    async with sender:
        while True:
            ids = [campaign.new_id("order") for _ in range(campaign.random.choice((1, 1, SDK_BATCH)))]
            ledger.attempted.update(ids)
            messages = [ServiceBusMessage(BODY, message_id=message_id) for message_id in ids]
            await sender.send_messages(messages if len(messages) > 1 else messages[0])
            ledger.acknowledged.update(ids)


async def order_receiver(campaign: Campaign) -> None:
    ledger = campaign.ledgers[ORDERS]
    receiver = campaign.client.get_queue_receiver(ORDERS)
    async with receiver:
        while True:
            numbers: list[int] = []
            for message in await receiver.receive_messages(max_message_count=SDK_BATCH, max_wait_time=1):
                await _settle_order(campaign, ledger, receiver, message, numbers)
            if numbers:
                for message in await receiver.receive_deferred_messages(numbers):
                    await _complete(receiver, message, ledger)


async def _settle_order(
    campaign: Campaign,
    ledger: Ledger,
    receiver: ServiceBusReceiver,
    message: ServiceBusReceivedMessage,
    numbers: list[int],
) -> None:
    message_id = message.message_id
    assert message_id is not None
    ledger.arrived(message_id)
    choice = campaign.random.random()
    if choice < 0.6:
        await _complete(receiver, message, ledger)
    elif choice < 0.75:
        ledger.deferring.add(message_id)
        await receiver.defer_message(message)
        ledger.deferred.add(message_id)
        if choice < 0.67 and message.sequence_number is not None:
            numbers.append(message.sequence_number)
    elif choice < 0.9:
        ledger.dead_lettering.add(message_id)
        await receiver.dead_letter_message(message, reason="tested")
        ledger.dead_lettered.add(message_id)
    else:
        await receiver.abandon_message(message)


async def _complete(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, ledger: Ledger) -> None:
    assert message.message_id is not None
    ledger.completing.add(message.message_id)
    await receiver.complete_message(message)
    ledger.completed.add(message.message_id)


async def scheduler(campaign: Campaign) -> None:
    """Schedule messages for much later and cancel some of them."""
    ledger = campaign.ledgers[LATER]
    sender = campaign.client.get_queue_sender(LATER)
    async with sender:
        while True:
            ids = [campaign.new_id("far") for _ in range(4)]
            ledger.attempted.update(ids)
            messages = [ServiceBusMessage(BODY, message_id=message_id) for message_id in ids]
            numbers = await sender.schedule_messages(messages, datetime.now(UTC) + timedelta(seconds=FAR_SECONDS))
            ledger.acknowledged.update(ids)
            ledger.completing.add(ids[0])
            await sender.cancel_scheduled_messages(numbers[0])
            ledger.completed.add(ids[0])


async def session_worker(campaign: Campaign) -> None:
    """Accept one session after the other, complete a few messages and set a state."""
    ledger = campaign.ledgers[SESSIONS]
    while True:
        requested = campaign.random.choice((*SESSION_IDS, NEXT_AVAILABLE_SESSION))
        receiver = campaign.client.get_queue_receiver(SESSIONS, session_id=requested)
        async with receiver:
            session_id = receiver.session.session_id
            for message in await receiver.receive_messages(max_message_count=SDK_BATCH, max_wait_time=1):
                assert message.message_id is not None
                ledger.arrived(message.message_id)
                await _complete(receiver, message, ledger)
                state = message.message_id.encode()
                campaign.states.setting(session_id, state)
                await receiver.session.set_state(state)
                campaign.states.was_set(session_id, state)


WORKERS: tuple[Worker, ...] = (
    flood_sender,
    flood_receiver,
    session_sender,
    session_receiver,
    once_sender,
    once_receiver,
    topic_sender,
    north_receiver,
    south_receiver,
    near_sender,
    later_receiver,
    order_sender,
    order_receiver,
    scheduler,
    session_worker,
    state_keeper,
)
WORKER_NAMES = {worker.__name__ for worker in WORKERS}


async def keep_working(worker: Worker, campaign: Campaign) -> None:
    """Restart the worker after every kill. Any other error ends the worker and the test."""
    while True:
        await campaign.gate.enter(worker.__name__)
        try:
            await worker(campaign)
        except (ConnectionGoneError, AzureError, OSError):
            continue
        except RefusedError as error:
            if error.condition != SESSION_CANNOT_BE_LOCKED:  # another worker has it
                raise
