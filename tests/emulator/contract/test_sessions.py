"""Sessions of a queue and of a subscription."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import ClassVar

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from tests.emulator.contract.bus import (
    DELETE,
    LOCK_OVER,
    LOCK_SECONDS,
    PATIENCE,
    Bus,
    EntityUnderTest,
    QueueUnderTest,
    SessionQueueUnderTest,
    SessionSubscriptionUnderTest,
    SubscriptionUnderTest,
    nothing_comes,
    peek,
    receive,
    texts,
    until,
)
from tests.emulator.contract.conftest import OpenEntity

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


class Receiving:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_receiver_gets_the_messages_of_its_session_only_and_in_order(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("a1")
        await entity.put("b1", session_id="b")
        await entity.put("a2", "a3")
        received = await entity.receive(3)
        assert texts(received) == ["a1", "a2", "a3"]
        assert {message.session_id for message in received} == {"a"}
        assert await nothing_comes(entity.receiver)

    async def test_sessions_are_received_concurrently(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        other = await entity.open_session("b")
        await entity.put("a1")
        await entity.put("b1", session_id="b")
        assert texts(await receive(other)) == ["b1"]
        assert texts(await entity.receive()) == ["a1"]

    async def test_a_completed_message_is_gone(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("a1", "a2")
        await entity.receiver.complete_message(await entity.receive_one())
        assert await entity.peek_texts() == ["a2"]

    async def test_an_abandoned_message_comes_again_before_later_ones(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("a1", "a2")
        message = await entity.receive_one()
        await entity.receiver.abandon_message(message)
        again = await entity.receive_one()
        assert str(again) == "a1"
        assert again.delivery_count == message.delivery_count + 1

    async def test_a_message_abandoned_too_often_is_dead_lettered(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(dead_letters=True, max_delivery_count=2)
        await entity.put("bad", "good")
        for _ in range(2):
            await entity.receiver.abandon_message(await entity.receive_one())
        assert texts(await entity.receive()) == ["good"]
        [dead] = await receive(entity.dead_letters)
        assert (str(dead), dead.session_id) == ("bad", "a")
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"

    async def test_dead_letters_are_received_without_a_session(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(dead_letters=True)
        await entity.put("bad")
        await entity.receiver.dead_letter_message(await entity.receive_one(), reason="Unreadable")
        [dead] = await receive(entity.dead_letters)
        assert (dead.session_id, dead.dead_letter_reason) == ("a", "Unreadable")
        await entity.dead_letters.complete_message(dead)
        assert await peek(entity.dead_letters) == []

    async def test_a_deferred_message_is_received_by_the_holder_of_its_session(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("a1")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        [deferred] = await entity.receiver.receive_deferred_messages(message.sequence_number)
        assert str(deferred) == "a1"
        await entity.receiver.complete_message(deferred)
        assert await entity.peek() == []

    async def test_a_deferred_message_is_refused_to_the_holder_of_another_session(
        self, open_entity: OpenEntity
    ) -> None:
        entity = await open_entity()
        await entity.put("a1")
        message = await entity.receive_one()
        await entity.receiver.defer_message(message)
        other = await entity.open_session("b")
        with pytest.raises((MessageNotFoundError, SessionLockLostError)):
            await other.receive_deferred_messages(message.sequence_number)

    async def test_receive_and_delete_takes_messages_out_in_order(self, open_entity: OpenEntity) -> None:
        entity = await open_entity(receiver={"receive_mode": DELETE})
        await entity.put("a1", "a2")
        assert texts(await entity.receive(2)) == ["a1", "a2"]
        assert await entity.peek() == []

    async def test_peeking_shows_the_messages_of_the_session(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("b1", session_id="b")
        await entity.put("a1", "a2")
        assert await entity.peek_texts() == ["a1", "a2"]

    async def test_a_waiting_receive_gets_a_message_as_soon_as_it_arrives(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        waiting = asyncio.create_task(entity.receiver.receive_messages(max_wait_time=900))
        await entity.put("b1", session_id="b")
        await entity.put("a1")
        async with asyncio.timeout(PATIENCE):
            assert texts(await waiting) == ["a1"]

    async def test_a_scheduled_message_reaches_its_session(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        due = bus.clock.in_seconds(10)
        await entity.sender.schedule_messages(ServiceBusMessage("later", session_id="a"), due)
        await entity.put("now")
        assert texts(await entity.receive()) == ["now"]
        await bus.advance(11)
        assert texts(await entity.receive()) == ["later"]

    async def test_an_expired_message_does_not_come(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity(dead_letters=True, dead_lettering_on_message_expiration=True)
        await entity.put("short", time_to_live=timedelta(seconds=10))
        await entity.put("long")
        await bus.advance(11)
        assert texts(await entity.receive()) == ["long"]
        assert texts(await receive(entity.dead_letters)) == ["short"]


class Locking:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_session_has_one_receiver_at_a_time(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("a1")
        with pytest.raises(SessionCannotBeLockedError):
            await entity.open_session("a")
        assert texts(await entity.receive()) == ["a1"]

    async def test_a_session_is_free_when_its_receiver_closes(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("a1", "a2")
        await entity.receive_one()
        await entity.receiver.close()
        other = await entity.open_session("a")
        assert texts(await receive(other, 2)) == ["a1", "a2"]

    async def test_the_lock_lasts_for_the_lock_duration(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        other = await entity.open_session("b")
        expected = bus.clock.in_seconds(LOCK_SECONDS)
        assert abs(other.session.locked_until_utc - expected) < timedelta(seconds=5)

    async def test_a_message_is_locked_as_long_as_its_session(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put("a1")
        message = await entity.receive_one()
        await bus.advance(LOCK_SECONDS - 10)
        await entity.receiver.session.renew_lock()
        await bus.advance(LOCK_SECONDS - 10)
        await entity.receiver.complete_message(message)
        assert await entity.peek() == []

    async def test_renewing_returns_the_new_lock_expiry(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await bus.advance(LOCK_SECONDS - 10)
        until = await entity.receiver.session.renew_lock()
        assert abs(until - bus.clock.in_seconds(LOCK_SECONDS)) < timedelta(seconds=5)

    async def test_a_session_whose_lock_expired_can_be_locked_again(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put("a1")
        message = await entity.receive_one()
        await bus.advance(LOCK_OVER)
        [again] = await receive(await entity.open_session("a"))
        assert str(again) == "a1"
        assert again.delivery_count == message.delivery_count + 1

    async def test_next_receiver_waits_until_returned_messages_are_stored(
        self, open_entity: OpenEntity, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entity = await open_entity()
        await entity.put("a1", "a2", "a3")
        assert texts(await entity.receive(2)) == ["a1", "a2"]
        store, held = entity.queue.env.store, []
        write = store.submit
        monkeypatch.setattr(store, "submit", lambda *change: held.append(change))  # a slow disk
        passing = asyncio.create_task(bus.advance(LOCK_OVER))
        await until(lambda: entity.queue._sessions["a"].returning == 2)
        other = await entity.open_session("a")
        waiting = asyncio.create_task(receive(other, 3))
        await asyncio.wait([waiting], timeout=0.3)
        monkeypatch.undo()
        for change in held:
            write(*change)
        await passing
        assert texts(await waiting) == ["a1", "a2", "a3"]

    async def test_a_message_cannot_be_settled_after_the_lock_expired(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put("a1")
        message = await entity.receive_one()
        await bus.advance(LOCK_OVER)
        with pytest.raises(SessionLockLostError):
            await entity.receiver.complete_message(message)
        assert entity.queue.counters.active == 1

    async def test_a_lost_lock_cannot_be_renewed(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await bus.advance(LOCK_OVER)
        with pytest.raises(SessionLockLostError):
            await entity.receiver.session.renew_lock()

    async def test_the_state_cannot_be_set_after_the_lock_expired(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await bus.advance(LOCK_OVER)
        with pytest.raises(SessionLockLostError):
            await entity.receiver.session.set_state("too late")
        other = await entity.open_session("a")
        assert await other.session.get_state() is None

    async def test_a_waiting_receive_fails_when_the_lock_expires(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        waiting = asyncio.create_task(entity.receiver.receive_messages(max_wait_time=900))
        await bus.advance(LOCK_OVER)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(SessionLockLostError):
                await waiting


class NextAvailable:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_next_available_locks_a_free_session_with_messages(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("b1", session_id="b")
        receiver = await entity.open_session(NEXT_AVAILABLE_SESSION)
        assert receiver.session.session_id == "b"
        assert texts(await receive(receiver)) == ["b1"]

    async def test_next_available_locks_another_session_for_each_receiver(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity()
        for session in "bcd":
            await entity.put(session + "1", session_id=session)
        receivers = [entity.new_receiver(session_id=NEXT_AVAILABLE_SESSION) for _ in range(3)]
        await bus.open(*receivers)
        assert sorted(receiver.session.session_id for receiver in receivers) == ["b", "c", "d"]

    async def test_next_available_waits_for_a_message_of_a_free_session(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity()
        await entity.put("a1")
        receiver = entity.new_receiver(session_id=NEXT_AVAILABLE_SESSION)
        opening = asyncio.create_task(bus.open(receiver))
        await until(lambda: len(entity.queue.receivers) == 2)
        await entity.put("b1", session_id="b")
        async with asyncio.timeout(PATIENCE):
            await opening
        assert receiver.session.session_id == "b"

    async def test_next_available_waits_for_a_session_to_become_free(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.put("a1")
        receiver = entity.new_receiver(session_id=NEXT_AVAILABLE_SESSION)
        opening = asyncio.create_task(bus.open(receiver))
        await until(lambda: len(entity.queue.receivers) == 2)
        await bus.advance(LOCK_OVER)
        async with asyncio.timeout(PATIENCE):
            await opening
        assert receiver.session.session_id == "a"

    async def test_next_available_locks_a_session_whose_message_becomes_due(
        self, open_entity: OpenEntity, bus: Bus
    ) -> None:
        entity = await open_entity()
        message = ServiceBusMessage("later", session_id="b")
        await entity.sender.schedule_messages(message, bus.clock.in_seconds(10))
        await bus.advance(11)
        receiver = await entity.open_session(NEXT_AVAILABLE_SESSION)
        assert texts(await receive(receiver)) == ["later"]

    async def test_next_available_times_out_without_a_free_session(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("a1")
        with pytest.raises(OperationTimeoutError):
            await entity.open_session(NEXT_AVAILABLE_SESSION, max_wait_time=0.5)
        assert texts(await entity.receive()) == ["a1"]

    async def test_next_available_skips_sessions_without_active_messages(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("a1")
        await entity.receiver.session.set_state("kept")
        await entity.receiver.defer_message(await entity.receive_one())
        await entity.receiver.close()
        with pytest.raises(OperationTimeoutError):
            await entity.open_session(NEXT_AVAILABLE_SESSION, max_wait_time=0.5)


class State:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_a_session_has_no_state_at_first(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        assert await entity.receiver.session.get_state() is None

    @pytest.mark.parametrize("state", ["half done", b"\x00\xff", b""])
    async def test_a_state_that_was_set_is_returned(self, open_entity: OpenEntity, state: str | bytes) -> None:
        entity = await open_entity()
        await entity.receiver.session.set_state(state)
        expected = state.encode() if isinstance(state, str) else state
        assert await entity.receiver.session.get_state() == expected

    async def test_a_state_is_replaced(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.receiver.session.set_state("first")
        await entity.receiver.session.set_state("second")
        assert await entity.receiver.session.get_state() == b"second"

    async def test_none_clears_the_state(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.receiver.session.set_state("half done")
        await entity.receiver.session.set_state(None)
        assert await entity.receiver.session.get_state() is None

    async def test_each_session_has_its_own_state(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        other = await entity.open_session("b")
        await entity.receiver.session.set_state("of a")
        await other.session.set_state("of b")
        assert await entity.receiver.session.get_state() == b"of a"

    async def test_the_state_outlives_receiver_and_messages(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("a1")
        await entity.receiver.session.set_state("half done")
        await entity.receiver.complete_message(await entity.receive_one())
        await entity.receiver.close()
        other = await entity.open_session("a")
        assert await other.session.get_state() == b"half done"

    async def test_a_state_over_the_limit_is_refused(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        with pytest.raises(ServiceBusError, match="limit is 262144"):
            await entity.receiver.session.set_state(b"x" * (256 * 1024 + 1))
        assert await entity.receiver.session.get_state() is None


class Listing:
    entity: ClassVar[type[EntityUnderTest]]

    async def test_sessions_with_messages_are_listed(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("b1", session_id="b")
        await entity.put("a1")
        assert await entity.sessions() == ["a", "b"]

    async def test_a_session_with_a_state_only_is_listed(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.receiver.session.set_state("half done")
        assert await entity.sessions() == ["a"]

    async def test_a_session_with_neither_is_not_listed(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        await entity.put("a1")
        await entity.put("b1", session_id="b")
        await entity.receiver.complete_message(await entity.receive_one())
        assert await entity.sessions() == ["b"]

    async def test_sessions_are_listed_by_the_time_of_their_state(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        other = await entity.open_session("b")
        await entity.receiver.session.set_state("old")
        await bus.advance(10)
        await other.session.set_state("new")
        assert await entity.sessions(state_updated_after=bus.clock.in_seconds(-5)) == ["b"]
        assert await entity.sessions(state_updated_after=bus.clock.in_seconds(-15)) == ["a", "b"]

    async def test_more_sessions_than_fit_a_page_are_listed(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        names = [f"{number:03}" for number in range(150)]
        await entity.sender.send_messages([ServiceBusMessage("one", session_id=name) for name in names])
        assert await entity.sessions() == names


class TestQueue(Receiving, Locking, NextAvailable, State, Listing):
    entity = SessionQueueUnderTest


class TestSubscription(Receiving, Locking, NextAvailable, State, Listing):
    entity = SessionSubscriptionUnderTest


class Refusing:
    entity: ClassVar[type[EntityUnderTest]]
    plain: ClassVar[type[EntityUnderTest]]

    async def test_a_receiver_without_a_session_is_refused(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        with pytest.raises(ServiceBusError, match="requires sessions"):
            await entity.open_receiver(session_id=None)

    async def test_a_session_receiver_is_refused_by_an_entity_without_sessions(self, bus: Bus) -> None:
        entity = await self.plain.create(bus)
        with pytest.raises(ServiceBusError, match="does not require sessions"):
            await entity.open_receiver(session_id="a")

    async def test_an_entity_without_sessions_keeps_the_session_id(self, bus: Bus) -> None:
        entity = await bus.spare(self.plain)
        await entity.put("one", session_id="a")
        assert (await entity.receive_one()).session_id == "a"


class TestQueueRefusing(Refusing):
    entity = SessionQueueUnderTest
    plain = QueueUnderTest

    async def test_a_message_without_a_session_id_is_refused(self, open_entity: OpenEntity) -> None:
        entity = await open_entity()
        with pytest.raises(ServiceBusError, match="SessionId was not set"):
            await entity.sender.send_messages(ServiceBusMessage("lost"))
        assert entity.queue.counters.active == 0

    async def test_a_batch_with_a_message_without_a_session_id_is_refused_as_a_whole(
        self, open_entity: OpenEntity
    ) -> None:
        entity = await open_entity()
        with pytest.raises(ServiceBusError, match="SessionId was not set"):
            await entity.sender.send_messages([ServiceBusMessage("one", session_id="a"), ServiceBusMessage("lost")])
        assert entity.queue.counters.active == 0

    async def test_a_scheduled_message_without_a_session_id_is_refused(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        with pytest.raises(ServiceBusError, match="SessionId was not set"):
            await entity.sender.schedule_messages(ServiceBusMessage("lost"), bus.clock.in_seconds(10))
        assert entity.entry.counters.scheduled == 0


class TestSubscriptionRefusing(Refusing):
    entity = SessionSubscriptionUnderTest
    plain = SubscriptionUnderTest

    async def test_a_message_without_a_session_id_is_a_dead_letter(self, open_entity: OpenEntity, bus: Bus) -> None:
        entity = await open_entity()
        await entity.sender.send_messages([ServiceBusMessage("one", session_id="a"), ServiceBusMessage("lost")])
        await entity.sender.schedule_messages(ServiceBusMessage("late"), bus.clock.in_seconds(10))
        await bus.advance(11)
        dead_letters = entity.dead_letter_queue
        await until(lambda: dead_letters.counters.active == 2)
        assert entity.queue.counters.active == 1
