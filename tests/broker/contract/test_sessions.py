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
from tests.broker.contract.bus import (
    DELETE,
    LOCK_OVER,
    LOCK_SECONDS,
    PATIENCE,
    Bus,
    Place,
    QueuePlace,
    SessionQueuePlace,
    SessionSubscriptionPlace,
    SubscriptionPlace,
    nothing_comes,
    peek,
    receive,
    texts,
    until,
)
from tests.broker.contract.conftest import OpenPlace

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


class Receiving:
    place: ClassVar[type[Place]]

    async def test_a_receiver_gets_the_messages_of_its_session_only_and_in_order(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("a1")
        await place.put("b1", session_id="b")
        await place.put("a2", "a3")
        received = await place.receive(3)
        assert texts(received) == ["a1", "a2", "a3"]
        assert {message.session_id for message in received} == {"a"}
        assert await nothing_comes(place.receiver)

    async def test_sessions_are_received_side_by_side(self, open_place: OpenPlace) -> None:
        place = await open_place()
        other = await place.open_session("b")
        await place.put("a1")
        await place.put("b1", session_id="b")
        assert texts(await receive(other)) == ["b1"]
        assert texts(await place.receive()) == ["a1"]

    async def test_a_completed_message_is_gone(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("a1", "a2")
        await place.receiver.complete_message(await place.receive_one())
        assert await place.peek_texts() == ["a2"]

    async def test_an_abandoned_message_comes_again_before_later_ones(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("a1", "a2")
        message = await place.receive_one()
        await place.receiver.abandon_message(message)
        again = await place.receive_one()
        assert str(again) == "a1"
        assert again.delivery_count == message.delivery_count + 1

    async def test_a_message_abandoned_too_often_is_dead_lettered(self, open_place: OpenPlace) -> None:
        place = await open_place(dead_letters=True, max_delivery_count=2)
        await place.put("bad", "good")
        for _ in range(2):
            await place.receiver.abandon_message(await place.receive_one())
        assert texts(await place.receive()) == ["good"]
        [dead] = await receive(place.dead_letters)
        assert (str(dead), dead.session_id) == ("bad", "a")
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"

    async def test_dead_letters_are_received_without_a_session(self, open_place: OpenPlace) -> None:
        place = await open_place(dead_letters=True)
        await place.put("bad")
        await place.receiver.dead_letter_message(await place.receive_one(), reason="Unreadable")
        [dead] = await receive(place.dead_letters)
        assert (dead.session_id, dead.dead_letter_reason) == ("a", "Unreadable")
        await place.dead_letters.complete_message(dead)
        assert await peek(place.dead_letters) == []

    async def test_a_deferred_message_is_received_by_the_holder_of_its_session(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("a1")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        [deferred] = await place.receiver.receive_deferred_messages(message.sequence_number)
        assert str(deferred) == "a1"
        await place.receiver.complete_message(deferred)
        assert await place.peek() == []

    async def test_a_deferred_message_is_refused_to_the_holder_of_another_session(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("a1")
        message = await place.receive_one()
        await place.receiver.defer_message(message)
        other = await place.open_session("b")
        with pytest.raises((MessageNotFoundError, SessionLockLostError)):
            await other.receive_deferred_messages(message.sequence_number)

    async def test_receive_and_delete_takes_messages_out_in_order(self, open_place: OpenPlace) -> None:
        place = await open_place(receiver={"receive_mode": DELETE})
        await place.put("a1", "a2")
        assert texts(await place.receive(2)) == ["a1", "a2"]
        assert await place.peek() == []

    async def test_peeking_shows_the_messages_of_the_session(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("b1", session_id="b")
        await place.put("a1", "a2")
        assert await place.peek_texts() == ["a1", "a2"]

    async def test_a_receive_that_waits_gets_a_message_as_soon_as_it_arrives(self, open_place: OpenPlace) -> None:
        place = await open_place()
        waiting = asyncio.create_task(place.receiver.receive_messages(max_wait_time=900))
        await place.put("b1", session_id="b")
        await place.put("a1")
        async with asyncio.timeout(PATIENCE):
            assert texts(await waiting) == ["a1"]

    async def test_a_scheduled_message_reaches_its_session(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        due = bus.clock.in_seconds(10)
        await place.sender.schedule_messages(ServiceBusMessage("later", session_id="a"), due)
        await place.put("now")
        assert texts(await place.receive()) == ["now"]
        await bus.advance(11)
        assert texts(await place.receive()) == ["later"]

    async def test_an_expired_message_does_not_come(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place(dead_letters=True, dead_lettering_on_message_expiration=True)
        await place.put("short", time_to_live=timedelta(seconds=10))
        await place.put("long")
        await bus.advance(11)
        assert texts(await place.receive()) == ["long"]
        assert texts(await receive(place.dead_letters)) == ["short"]


class Locking:
    place: ClassVar[type[Place]]

    async def test_a_session_has_one_receiver_at_a_time(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("a1")
        with pytest.raises(SessionCannotBeLockedError):
            await place.open_session("a")
        assert texts(await place.receive()) == ["a1"]

    async def test_a_session_is_free_when_its_receiver_closes(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("a1", "a2")
        await place.receive_one()
        await place.receiver.close()
        other = await place.open_session("a")
        assert texts(await receive(other, 2)) == ["a1", "a2"]

    async def test_the_lock_lasts_for_the_lock_duration(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        other = await place.open_session("b")
        expected = bus.clock.in_seconds(LOCK_SECONDS)
        assert abs(other.session.locked_until_utc - expected) < timedelta(seconds=5)

    async def test_a_message_is_locked_as_long_as_its_session(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("a1")
        message = await place.receive_one()
        await bus.advance(LOCK_SECONDS - 10)
        await place.receiver.session.renew_lock()
        await bus.advance(LOCK_SECONDS - 10)
        await place.receiver.complete_message(message)
        assert await place.peek() == []

    async def test_renewing_tells_how_long_the_lock_lasts_now(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await bus.advance(LOCK_SECONDS - 10)
        until = await place.receiver.session.renew_lock()
        assert abs(until - bus.clock.in_seconds(LOCK_SECONDS)) < timedelta(seconds=5)

    async def test_a_session_whose_lock_ran_out_can_be_locked_again(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("a1")
        message = await place.receive_one()
        await bus.advance(LOCK_OVER)
        [again] = await receive(await place.open_session("a"))
        assert str(again) == "a1"
        assert again.delivery_count == message.delivery_count + 1

    async def test_the_next_receiver_gets_nothing_later_before_what_comes_back_is_stored(
        self, open_place: OpenPlace, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = await open_place()
        await place.put("a1", "a2", "a3")
        assert texts(await place.receive(2)) == ["a1", "a2"]
        store, held = place.queue.env.store, []
        write = store.submit
        monkeypatch.setattr(store, "submit", lambda *change: held.append(change))  # a disk that takes its time
        passing = asyncio.create_task(bus.advance(LOCK_OVER))
        await until(lambda: place.queue._sessions["a"].returning == 2)
        other = await place.open_session("a")
        waiting = asyncio.create_task(receive(other, 3))
        await asyncio.wait([waiting], timeout=0.3)
        monkeypatch.undo()
        for change in held:
            write(*change)
        await passing
        assert texts(await waiting) == ["a1", "a2", "a3"]

    async def test_a_message_cannot_be_settled_after_the_lock_ran_out(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("a1")
        message = await place.receive_one()
        await bus.advance(LOCK_OVER)
        with pytest.raises(SessionLockLostError):
            await place.receiver.complete_message(message)
        assert place.queue.counters.active == 1

    async def test_a_lost_lock_cannot_be_renewed(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await bus.advance(LOCK_OVER)
        with pytest.raises(SessionLockLostError):
            await place.receiver.session.renew_lock()

    async def test_the_state_cannot_be_set_after_the_lock_ran_out(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await bus.advance(LOCK_OVER)
        with pytest.raises(SessionLockLostError):
            await place.receiver.session.set_state("too late")
        other = await place.open_session("a")
        assert await other.session.get_state() is None

    async def test_a_receive_that_waits_learns_that_the_lock_ran_out(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        waiting = asyncio.create_task(place.receiver.receive_messages(max_wait_time=900))
        await bus.advance(LOCK_OVER)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(SessionLockLostError):
                await waiting


class NextAvailable:
    place: ClassVar[type[Place]]

    async def test_a_free_session_with_messages_is_given(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("b1", session_id="b")
        receiver = await place.open_session(NEXT_AVAILABLE_SESSION)
        assert receiver.session.session_id == "b"
        assert texts(await receive(receiver)) == ["b1"]

    async def test_each_receiver_is_given_another_session(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        for session in "bcd":
            await place.put(session + "1", session_id=session)
        receivers = [place.new_receiver(session_id=NEXT_AVAILABLE_SESSION) for _ in range(3)]
        await bus.open(*receivers)
        assert sorted(receiver.session.session_id for receiver in receivers) == ["b", "c", "d"]

    async def test_it_waits_for_a_message_of_a_free_session(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("a1")
        receiver = place.new_receiver(session_id=NEXT_AVAILABLE_SESSION)
        opening = asyncio.create_task(bus.open(receiver))
        await until(lambda: len(place.queue.receivers) == 2)
        await place.put("b1", session_id="b")
        async with asyncio.timeout(PATIENCE):
            await opening
        assert receiver.session.session_id == "b"

    async def test_it_waits_for_a_session_to_become_free(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.put("a1")
        receiver = place.new_receiver(session_id=NEXT_AVAILABLE_SESSION)
        opening = asyncio.create_task(bus.open(receiver))
        await until(lambda: len(place.queue.receivers) == 2)
        await bus.advance(LOCK_OVER)
        async with asyncio.timeout(PATIENCE):
            await opening
        assert receiver.session.session_id == "a"

    async def test_a_session_that_becomes_due_is_given(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        message = ServiceBusMessage("later", session_id="b")
        await place.sender.schedule_messages(message, bus.clock.in_seconds(10))
        await bus.advance(11)
        receiver = await place.open_session(NEXT_AVAILABLE_SESSION)
        assert texts(await receive(receiver)) == ["later"]

    async def test_without_a_free_session_it_times_out(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("a1")
        with pytest.raises(OperationTimeoutError):
            await place.open_session(NEXT_AVAILABLE_SESSION, max_wait_time=0.5)
        assert texts(await place.receive()) == ["a1"]

    async def test_a_session_without_active_messages_is_not_given(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("a1")
        await place.receiver.session.set_state("kept")
        await place.receiver.defer_message(await place.receive_one())
        await place.receiver.close()
        with pytest.raises(OperationTimeoutError):
            await place.open_session(NEXT_AVAILABLE_SESSION, max_wait_time=0.5)


class State:
    place: ClassVar[type[Place]]

    async def test_a_session_has_no_state_at_first(self, open_place: OpenPlace) -> None:
        place = await open_place()
        assert await place.receiver.session.get_state() is None

    @pytest.mark.parametrize("state", ["half done", b"\x00\xff", b""])
    async def test_a_state_that_was_set_is_returned(self, open_place: OpenPlace, state: str | bytes) -> None:
        place = await open_place()
        await place.receiver.session.set_state(state)
        expected = state.encode() if isinstance(state, str) else state
        assert await place.receiver.session.get_state() == expected

    async def test_a_state_is_replaced(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.receiver.session.set_state("first")
        await place.receiver.session.set_state("second")
        assert await place.receiver.session.get_state() == b"second"

    async def test_none_clears_the_state(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.receiver.session.set_state("half done")
        await place.receiver.session.set_state(None)
        assert await place.receiver.session.get_state() is None

    async def test_each_session_has_its_own_state(self, open_place: OpenPlace) -> None:
        place = await open_place()
        other = await place.open_session("b")
        await place.receiver.session.set_state("of a")
        await other.session.set_state("of b")
        assert await place.receiver.session.get_state() == b"of a"

    async def test_the_state_outlives_receiver_and_messages(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("a1")
        await place.receiver.session.set_state("half done")
        await place.receiver.complete_message(await place.receive_one())
        await place.receiver.close()
        other = await place.open_session("a")
        assert await other.session.get_state() == b"half done"

    async def test_a_state_over_the_limit_is_refused(self, open_place: OpenPlace) -> None:
        place = await open_place()
        with pytest.raises(ServiceBusError, match="limit is 262144"):
            await place.receiver.session.set_state(b"x" * (256 * 1024 + 1))
        assert await place.receiver.session.get_state() is None


class Listing:
    place: ClassVar[type[Place]]

    async def test_sessions_with_messages_are_listed(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("b1", session_id="b")
        await place.put("a1")
        assert await place.sessions() == ["a", "b"]

    async def test_a_session_with_a_state_only_is_listed(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.receiver.session.set_state("half done")
        assert await place.sessions() == ["a"]

    async def test_a_session_with_neither_is_not_listed(self, open_place: OpenPlace) -> None:
        place = await open_place()
        await place.put("a1")
        await place.put("b1", session_id="b")
        await place.receiver.complete_message(await place.receive_one())
        assert await place.sessions() == ["b"]

    async def test_sessions_are_listed_by_the_time_of_their_state(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        other = await place.open_session("b")
        await place.receiver.session.set_state("old")
        await bus.advance(10)
        await other.session.set_state("new")
        assert await place.sessions(state_updated_after=bus.clock.in_seconds(-5)) == ["b"]
        assert await place.sessions(state_updated_after=bus.clock.in_seconds(-15)) == ["a", "b"]

    async def test_more_sessions_than_fit_a_page_are_listed(self, open_place: OpenPlace) -> None:
        place = await open_place()
        names = [f"{number:03}" for number in range(150)]
        await place.sender.send_messages([ServiceBusMessage("one", session_id=name) for name in names])
        assert await place.sessions() == names


class TestQueue(Receiving, Locking, NextAvailable, State, Listing):
    place = SessionQueuePlace


class TestSubscription(Receiving, Locking, NextAvailable, State, Listing):
    place = SessionSubscriptionPlace


class Refusing:
    place: ClassVar[type[Place]]
    plain: ClassVar[type[Place]]

    async def test_a_receiver_without_a_session_is_refused(self, open_place: OpenPlace) -> None:
        place = await open_place()
        with pytest.raises(ServiceBusError, match="requires sessions"):
            await place.open_receiver(session_id=None)

    async def test_a_receiver_with_a_session_is_refused_where_there_are_none(self, bus: Bus) -> None:
        place = await self.plain.create(bus)
        with pytest.raises(ServiceBusError, match="does not require sessions"):
            await place.open_receiver(session_id="a")

    async def test_a_session_id_is_kept_where_there_are_no_sessions(self, bus: Bus) -> None:
        place = await bus.spare(self.plain)
        await place.put("one", session_id="a")
        assert (await place.receive_one()).session_id == "a"


class TestQueueRefusing(Refusing):
    place = SessionQueuePlace
    plain = QueuePlace

    async def test_a_message_without_a_session_id_is_refused(self, open_place: OpenPlace) -> None:
        place = await open_place()
        with pytest.raises(ServiceBusError, match="SessionId was not set"):
            await place.sender.send_messages(ServiceBusMessage("lost"))
        assert place.queue.counters.active == 0

    async def test_a_batch_with_a_message_without_a_session_id_is_refused_as_a_whole(
        self, open_place: OpenPlace
    ) -> None:
        place = await open_place()
        with pytest.raises(ServiceBusError, match="SessionId was not set"):
            await place.sender.send_messages([ServiceBusMessage("one", session_id="a"), ServiceBusMessage("lost")])
        assert place.queue.counters.active == 0

    async def test_a_scheduled_message_without_a_session_id_is_refused(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        with pytest.raises(ServiceBusError, match="SessionId was not set"):
            await place.sender.schedule_messages(ServiceBusMessage("lost"), bus.clock.in_seconds(10))
        assert place.entry.counters.scheduled == 0


class TestSubscriptionRefusing(Refusing):
    place = SessionSubscriptionPlace
    plain = SubscriptionPlace

    async def test_a_message_without_a_session_id_is_a_dead_letter(self, open_place: OpenPlace, bus: Bus) -> None:
        place = await open_place()
        await place.sender.send_messages([ServiceBusMessage("one", session_id="a"), ServiceBusMessage("lost")])
        await place.sender.schedule_messages(ServiceBusMessage("late"), bus.clock.in_seconds(10))
        await bus.advance(11)
        dead_letters = place.dead_letter_queue
        await until(lambda: dead_letters.counters.active == 2)
        assert place.queue.counters.active == 1
