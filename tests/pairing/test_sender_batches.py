"""Batches, large messages and scheduling, with and without the primary."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError
from tests.pairing.conftest import HIDDEN
from tests.pairing.paired import KINDS, QUEUES, Pair, Stage, text

from twinbus.emulator import FaultKind, FaultPoint
from twinbus.envelope.wrapping import encoded_size
from twinbus.ledger.recorder import MemoryRecorder, OperationKind
from twinbus.pairing.events import Diverted, Event, FailedOver, OversizeWarning
from twinbus.pairing.failover.entity_failover import Route
from twinbus.pairing.pairing_errors import (
    AttemptTimeoutError,
    BacklogUnavailableError,
    EntityFailedOverError,
    EnvelopeTooLargeError,
    ScheduledInBacklogError,
    TwinbusError,
)

pytestmark = pytest.mark.slow

LIMIT = 256 * 1024


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage.set_up() as running:
        yield running


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(stage: Stage, kind: str) -> Iterator[Pair]:
    with stage.pair(kind) as made:
        yield made
        stage.clear()


def filled(batch: ServiceBusMessageBatch, message: ServiceBusMessage) -> int:
    """Fill a batch with copies of a message; return how many fit."""
    while True:
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            return len(batch)


def bodies(messages: list[Any]) -> list[str]:
    return [str(message) for message in messages]


# ---- batches ----


@pytest.mark.parametrize("size", [10, 3000])
def test_a_full_batch_can_be_diverted_whole_and_in_order(pair: Pair, size: int) -> None:
    sender = pair.sender()
    batch = sender.create_message_batch()
    message = text("x" * size, session_id="s" * 100, time_to_live=timedelta(hours=1), application_properties={"a": 1})
    count = filled(batch, message)
    assert count > 20
    pair.take_down()
    receipt = sender.send_messages(batch)
    assert (receipt.route, len(receipt.message_ids)) == (Route.BACKLOG, count)
    assert sorted(pair.stored) == [0, 0, count]


def test_the_messages_of_a_diverted_batch_are_in_order(pair: Pair) -> None:
    sender = pair.sender()
    pair.pairing.fail_over(pair.path)
    batch = sender.create_message_batch()
    for number in range(20):
        batch.add_message(text(str(number)))
    sender.send_messages(batch)
    sender.send_messages([text(str(number)) for number in range(20, 40)])
    assert bodies(pair.peek(pair.stored.index(40))) == [str(number) for number in range(40)]


def test_batch_keeps_messages_as_they_were_when_added(pair: Pair) -> None:
    sender = pair.sender()
    batch, message = sender.create_message_batch(), text("the same object", application_properties={"number": 0})
    for number in range(3):
        message.application_properties["number"] = number  # type: ignore[index]
        message.subject, message.message_id = f"subject {number}", str(number)
        batch.add_message(message)
    pair.pairing.fail_over(pair.path)
    assert sender.send_messages(batch).message_ids == ("0", "1", "2")
    stored = pair.peek(pair.stored.index(3))
    assert [one.application_properties[b"number"] for one in stored] == [0, 1, 2]
    assert [one.subject for one in stored] == ["subject 0", "subject 1", "subject 2"]


def test_a_batch_can_be_made_while_the_primary_is_down_and_in_failover_without_touching_it(pair: Pair) -> None:
    sender = pair.sender()
    pair.take_down()
    assert sender.create_message_batch().max_size_in_bytes == LIMIT
    assert len(pair.events.all(FailedOver)) == 1
    pair.bring_back()
    assert pair.sender().create_message_batch().max_size_in_bytes == LIMIT
    assert pair.links == 0


def test_a_batch_can_be_made_smaller_and_not_larger_than_the_entity_allows(pair: Pair) -> None:
    sender = pair.sender()
    batch = sender.create_message_batch(max_size_in_bytes=1000)
    assert 1 <= filled(batch, text("x" * 100)) < 10
    assert batch.size_in_bytes <= 1000
    with pytest.raises(ValueError, match=f"max_size_in_bytes must be at most {LIMIT} bytes, not {LIMIT + 1}"):
        sender.create_message_batch(LIMIT + 1)


def test_batch_of_the_sdk_is_accepted_and_diverted(pair: Pair) -> None:
    sender, batch = pair.sender(), ServiceBusMessageBatch()
    batch.add_message(text("one"))
    batch.add_message(text("two"))
    assert sender.send_messages(batch).route is Route.PRIMARY
    pair.pairing.fail_over(pair.path)
    if HIDDEN:
        with pytest.raises(TwinbusError, match="cannot be diverted"):
            sender.send_messages(batch)
        return
    assert sender.send_messages(batch).route is Route.BACKLOG
    assert bodies(pair.peek()) == bodies(pair.peek(pair.stored.index(2))) == ["one", "two"]


def full_sdk_batch(*, has_ids: bool = True) -> ServiceBusMessageBatch:
    """A batch as a plain sender makes it: it leaves no room for envelopes."""
    batch = ServiceBusMessageBatch(max_size_in_bytes=LIMIT)
    while True:
        body = f"{len(batch):04d}".ljust(1000, "x")
        try:
            # The SDK gives ids to messages of its own class only.
            batch.add_message(text(body) if has_ids else AmqpAnnotatedMessage(data_body=body.encode()))
        except MessageSizeExceededError:
            return batch


def strike_after_first_part(pair: Pair, *indexes: int) -> None:
    """These backlog queues, or all, refuse everything as soon as one has stored something."""

    def strike(event: Event) -> None:
        if isinstance(event, Diverted):
            stop()
            for index in indexes or range(QUEUES):
                pair.strike_queue(index, FaultKind.REJECT, on=frozenset({FaultPoint.SEND}))

    stop = pair.pairing.events.subscribe(strike)


@pytest.mark.skipif(HIDDEN, reason="the SDK does not tell what is in its batches")
def test_full_batch_of_the_sdk_is_split_in_order(pair: Pair) -> None:
    sender, batch = pair.sender(), full_sdk_batch()
    pair.pairing.fail_over(pair.path)
    receipt = sender.send_messages(batch)
    count = len(batch)
    assert count == len(set(receipt.message_ids)) > 200
    assert (receipt.route, receipt.attempts) == (Route.BACKLOG, 2)
    assert sorted(pair.stored) == [0, 0, count]
    parts = [one.count for one in pair.events.all(Diverted)]
    assert (len(parts), sum(parts)) == (2, count)
    stored = pair.peek(pair.stored.index(count))
    assert [str(one)[:4] for one in stored] == [f"{number:04d}" for number in range(count)]
    assert tuple(one.message_id for one in stored) == receipt.message_ids


@pytest.mark.skipif(HIDDEN, reason="the SDK does not tell what is in its batches")
def test_messages_of_an_sdk_batch_keep_their_new_ids_until_it_is_accepted(pair: Pair) -> None:
    sender, batch = pair.sender(), full_sdk_batch(has_ids=False)
    pair.pairing.fail_over(pair.path)
    strike_after_first_part(pair)
    with pytest.raises(BacklogUnavailableError) as raised:
        sender.send_messages(batch)
    accepted = raised.value.accepted_ids
    assert 0 < len(accepted) < len(batch)
    pair.bring_back()
    again, another = (sender.send_messages(batch).message_ids for _ in range(2))
    assert again[: len(accepted)] == accepted
    assert not set(another) & set(again)


@pytest.mark.skipif(HIDDEN, reason="the SDK does not tell what is in its batches")
def test_the_parts_of_a_split_batch_are_recorded_each_once(stage: Stage, kind: str) -> None:
    recorder = MemoryRecorder()
    with stage.pair(kind, recorder=recorder) as pair:
        pair.pairing.fail_over(pair.path)
        receipt = pair.sender().send_messages(full_sdk_batch())
    assert tuple(row.message_id for row in recorder.operations) == receipt.message_ids
    attempts = [row.attempt for row in recorder.operations]
    assert attempts == sorted(attempts)
    assert set(attempts) == {1, 2}


def test_partly_stored_list_is_an_error_with_accepted_ids(pair: Pair) -> None:
    sender = pair.sender()
    pair.pairing.fail_over(pair.path)
    messages = [text("x" * 60_000, message_id=str(number)) for number in range(4)]
    messages += [text("x" * (LIMIT // 2), message_id=str(number)) for number in range(4, 6)]
    strike_after_first_part(pair)
    with pytest.raises(BacklogUnavailableError, match=r"The first 4 of 6 messages .* were accepted") as raised:
        sender.send_messages(messages)
    assert raised.value.accepted_ids == ("0", "1", "2", "3")
    assert len(raised.value.backlog_errors) == QUEUES
    assert sum(pair.stored) == 4


def test_part_refused_by_one_queue_goes_to_another(pair: Pair) -> None:
    sender = pair.sender()
    pair.pairing.fail_over(pair.path)
    sender.send_messages(text())
    strike_after_first_part(pair, pair.stored.index(1))
    receipt = sender.send_messages([text("x" * 100_000, message_id=str(number)) for number in range(3)])
    assert receipt.message_ids == ("0", "1", "2")
    assert sorted(pair.stored) == [0, 1, 3]
    assert len(pair.pairing.retired_queues()) == 1


def test_an_entity_that_refuses_a_link_makes_no_batch(pair: Pair) -> None:
    with pytest.raises(ServiceBusError):
        pair.sender("no-such-queue").create_message_batch()


# ---- large messages ----


def close_to_the_limit() -> ServiceBusMessage:
    return text("x" * (LIMIT - encoded_size(text()) - 20))


def two_close_to_the_limit() -> list[ServiceBusMessage]:
    return [text("x" * (LIMIT // 2 - encoded_size(text()) - 25)) for _ in range(2)]


def test_oversize_message_is_sent_while_healthy_with_one_warning_per_entity(
    pair: Pair,
) -> None:
    one, other = pair.sender(), pair.sender()
    for sender in (one, one, other):
        assert sender.send_messages(close_to_the_limit()).route is Route.PRIMARY
    (warning,) = pair.events.all(OversizeWarning)
    assert (warning.entity, warning.limit) == (pair.path, LIMIT)
    assert warning.size - warning.overhead <= LIMIT < warning.size
    assert pair.received == 3


def test_a_list_that_fits_the_primary_is_sent_without_a_warning_and_split_in_failover(pair: Pair) -> None:
    sender = pair.sender()
    assert sender.send_messages(two_close_to_the_limit()).route is Route.PRIMARY
    pair.pairing.fail_over(pair.path)
    assert sender.send_messages(two_close_to_the_limit()).route is Route.BACKLOG
    assert sorted(pair.stored) == [0, 0, 2]
    assert pair.events.all(OversizeWarning) == []


def test_a_list_that_the_primary_would_refuse_is_refused_in_failover_too(pair: Pair) -> None:
    sender = pair.sender()
    too_large = [text("x" * 60_000) for _ in range(5)]
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(too_large)
    pair.pairing.fail_over(pair.path)
    with pytest.raises(MessageSizeExceededError, match="a batch has at most"):
        sender.send_messages(too_large)
    assert pair.stored == [0, 0, 0]


def test_in_failover_oversize_error_has_size_limit_and_overhead(pair: Pair) -> None:
    sender = pair.sender()
    pair.pairing.fail_over(pair.path)
    for too_large in (close_to_the_limit(), [text(), close_to_the_limit()]):
        with pytest.raises(EnvelopeTooLargeError) as raised:
            sender.send_messages(too_large)
        error = raised.value
        assert error.size - error.overhead <= error.limit == LIMIT < error.size
        assert isinstance(error, MessageSizeExceededError)
    assert (pair.stored, pair.pairing.retired_queues()) == ([0, 0, 0], {})


def test_with_refuse_oversize_oversize_is_refused_while_healthy(stage: Stage, kind: str) -> None:
    with stage.pair(kind, refuse_oversize=True) as pair:
        sender = pair.sender()
        with pytest.raises(EnvelopeTooLargeError):
            sender.send_messages(close_to_the_limit())
        assert sender.send_messages(text("x" * 200_000)).route is Route.PRIMARY
        assert pair.received == 1


# ---- scheduling ----


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def test_while_all_is_well_messages_are_scheduled_and_cancelled_at_the_primary(pair: Pair) -> None:
    sender = pair.sender()
    numbers = sender.schedule_messages([text("one"), {"body": "two"}], in_an_hour())
    assert len(numbers) == 2
    assert min(numbers) > 0
    (third,) = sender.schedule_messages(text("three"), in_an_hour())
    sender.cancel_scheduled_messages(numbers)
    sender.cancel_scheduled_messages(third)
    assert pair.peek() == []
    assert pair.stored == [0, 0, 0]


def test_in_failover_scheduling_returns_negative_numbers_and_keeps_the_time(pair: Pair) -> None:
    sender, at = pair.sender(), in_an_hour().replace(microsecond=0)
    pair.take_down()
    numbers = sender.schedule_messages([text("one"), text("two")], at)
    numbers += sender.schedule_messages(text("three"), at)
    assert len(set(numbers)) == 3
    assert max(numbers) < 0
    stored = pair.peek(pair.stored.index(3))
    assert bodies(stored) == ["one", "two", "three"]
    for message in stored:
        assert message.application_properties[b"x-ms-scheduledenqueuetimeutc"] == int(at.timestamp() * 1000)
        assert message.scheduled_enqueue_time_utc is None


def test_scheduling_a_list_that_fits_the_primary_fits_in_an_outage(pair: Pair) -> None:
    sender, at = pair.sender(), in_an_hour()
    messages = [text(f"{number:04d}".ljust(5000, "x"), message_id=str(number)) for number in range(200)]
    assert min(sender.schedule_messages(messages, at)) > 0
    pair.pairing.fail_over(pair.path)
    numbers = sender.schedule_messages(messages, at)
    assert len(set(numbers)) == 200
    assert max(numbers) < 0
    stored = pair.peek(pair.stored.index(200))
    assert [one.message_id for one in stored] == [str(number) for number in range(len(stored))]


def test_cancelling_negative_numbers_is_refused_and_cancels_nothing(pair: Pair) -> None:
    sender = pair.sender()
    (direct,) = sender.schedule_messages(text(), in_an_hour())
    pair.pairing.fail_over(pair.path)
    (diverted,) = sender.schedule_messages(text(), in_an_hour())
    pair.pairing.fail_back(pair.path)
    for numbers in (diverted, [direct, diverted]):
        with pytest.raises(ScheduledInBacklogError) as raised:
            sender.cancel_scheduled_messages(numbers)
        assert raised.value.sequence_numbers == (diverted,)
    assert len(pair.peek()) == 1


def test_in_failover_a_cancel_does_not_reach_the_primary(pair: Pair) -> None:
    sender = pair.sender()
    (number,) = sender.schedule_messages(text(), in_an_hour())
    pair.pairing.fail_over(pair.path)
    with pytest.raises(EntityFailedOverError, match="cancel scheduled messages"):
        sender.cancel_scheduled_messages(number)
    assert len(pair.peek()) == 1


def test_cancel_on_an_open_link_is_no_evidence(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text())
    pair.strike(FaultKind.DROP_ACK, on=frozenset({FaultPoint.MANAGEMENT}))
    with pytest.raises(AttemptTimeoutError):
        sender.cancel_scheduled_messages(1, timeout=1)
    assert pair.events == []


def test_a_cancel_that_cannot_open_a_link_is_evidence_like_a_send(pair: Pair) -> None:
    sender = pair.sender()
    pair.take_down()
    with pytest.raises(EntityFailedOverError):
        sender.cancel_scheduled_messages(1)
    assert len(pair.events.all(FailedOver)) == 1


def test_a_cancel_on_a_stale_link_is_done_on_a_fresh_one(pair: Pair) -> None:
    sender = pair.sender()
    (number,) = sender.schedule_messages(text(), in_an_hour())
    pair.strike(FaultKind.RESET, on=frozenset({FaultPoint.MANAGEMENT}), count=1)
    sender.cancel_scheduled_messages(number)
    assert pair.peek() == []


def test_schedules_and_cancels_are_recorded(stage: Stage, kind: str) -> None:
    recorder = MemoryRecorder()
    with stage.pair(kind, recorder=recorder) as pair:
        sender = pair.sender()
        numbers = sender.schedule_messages([text(), text()], in_an_hour())
        sender.cancel_scheduled_messages(numbers)
        pair.pairing.fail_over(pair.path)
        sender.schedule_messages(text(), in_an_hour())
    kinds = [row.operation for row in recorder.operations]
    assert kinds == [OperationKind.SCHEDULE, OperationKind.SCHEDULE, OperationKind.CANCEL, OperationKind.SEND]
