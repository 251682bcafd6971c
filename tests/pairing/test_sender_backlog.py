"""Which backlog queue a sender uses, when it changes, and what it reports."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.servicebus.exceptions import (
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from tests.pairing.paired import KINDS, Pair, Stage, text

from twinbus.emulator import FaultKind, FaultPoint
from twinbus.ledger.recorder import MemoryRecorder, NamespaceRole, OperationKind, Outcome
from twinbus.ledger.recorder import Stage as Step
from twinbus.pairing.backlog.rotation import session_sequence
from twinbus.pairing.events import BacklogQueueRetired, Diverted
from twinbus.pairing.failover.entity_failover import Route
from twinbus.pairing.pairing_errors import BacklogUnavailableError


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
        made.pairing.fail_over(made.path)
        made.events.clear()
        yield made
        stage.clear()


def used(pair: Pair) -> int:
    """Return the index of the only backlog queue that was used."""
    (index,) = [index for index, count in enumerate(pair.stored) if count]
    return index


# ---- the choice ----


def test_a_sender_stays_with_the_queue_that_it_picked(pair: Pair) -> None:
    sender = pair.sender()
    queues = {sender.send_messages(text()).queue for _ in range(8)}
    assert queues == {pair.pairing.queue_path(used(pair))}


def test_senders_pick_at_random(stage: Stage) -> None:
    with stage.pair("sync", backlog_queue_count=2) as pair:
        pair.pairing.fail_over(pair.path)
        for _ in range(12):
            sender = pair.sender()
            sender.send_messages(text())
            sender.close()
        assert min(pair.stored) > 0


def test_a_diverted_message_carries_its_destination(pair: Pair) -> None:
    pair.sender().send_messages(text("for later", session_id="s1"))
    (message,) = pair.peek(used(pair))
    assert message.application_properties == {b"x-ms-path": pair.path.encode(), b"x-ms-sessionid": b"s1"}
    assert (str(message), message.session_id) == ("for later", None)


def test_every_diverted_send_is_an_event(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text())
    sender.send_messages([text(), text(), text()])
    queue = pair.pairing.queue_path(used(pair))
    assert [(one.entity, one.queue, one.count) for one in pair.events.all(Diverted)] == [
        (pair.path, queue, 1),
        (pair.path, queue, 3),
    ]


# ---- queues that fail ----


@pytest.mark.parametrize("failure", [FaultKind.FILL, FaultKind.REFUSE], ids=["full", "out of reach"])
def test_a_queue_that_fails_leaves_the_rotation_and_every_sender_learns_of_it(pair: Pair, failure: FaultKind) -> None:
    senders = [pair.sender() for _ in range(2)]
    first = senders[0].send_messages(text())
    failed = used(pair)
    if failure is FaultKind.FILL:
        fault = pair.strike_queue(failed, FaultKind.FILL)
    else:
        pair.strike_queue(failed, FaultKind.RESET, on=frozenset({FaultPoint.SEND}), count=1)
        fault = pair.strike_queue(failed, FaultKind.REFUSE)
    receipt = senders[0].send_messages(text())
    assert (receipt.route, receipt.queue == first.queue) == (Route.BACKLOG, False)
    (retired,) = pair.events.all(BacklogQueueRetired)
    assert retired.queue == first.queue
    struck = fault.fired
    for _ in range(4):
        assert senders[1].send_messages(text()).queue != first.queue
    assert (fault.fired, pair.stored[failed]) == (struck, 1)


def test_an_error_caused_by_the_message_goes_to_the_caller_and_the_queue_stays(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text())
    index = used(pair)
    pair.strike_queue(index, FaultKind.REJECT, condition="com.microsoft:argument-error", count=1)
    with pytest.raises(ServiceBusError, match="argument-error"):
        sender.send_messages(text())
    assert pair.pairing.retired_queues() == {}
    sender.send_messages(text())
    assert (used(pair), sum(pair.stored)) == (index, 2)


def test_if_no_queue_accepts_the_error_has_both_causes(stage: Stage, kind: str) -> None:
    with stage.pair(kind) as pair:
        sender = pair.sender()
        pair.take_down()
        for index in range(2):
            pair.strike_queue(index, FaultKind.FILL)
        pair.strike_queue(2, FaultKind.REFUSE)
        with pytest.raises(BacklogUnavailableError) as raised:
            sender.send_messages(text())
        error = raised.value
        assert isinstance(error.primary_error, ServiceBusConnectionError)
        assert {type(one) for one in error.backlog_errors.values()} >= {ServiceBusQuotaExceededError}
        assert set(error.backlog_errors) == {pair.pairing.queue_path(index) for index in range(3)}
        assert (error.entity, pair.received, pair.stored) == (pair.path, 0, [0, 0, 0])
        # All are retired; the one retired longest ago is tried before giving up, and takes it.
        stage.secondary.call(stage.secondary.namespace.faults.clear)
        assert sender.send_messages(text()).route is Route.BACKLOG
        stage.clear()


def test_a_forced_failover_without_a_backlog_has_no_error_of_the_primary(pair: Pair) -> None:
    pair.take_down(pair.secondary)
    with pytest.raises(BacklogUnavailableError, match="failed over by hand") as raised:
        pair.sender().send_messages(text())
    assert raised.value.primary_error is None


def test_a_busy_backlog_queue_is_tried_again_and_stays(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text())
    busy = pair.strike_queue(used(pair), FaultKind.THROTTLE, count=1)
    assert sender.send_messages(text()).attempts == 2
    assert (busy.fired, sum(pair.stored), pair.pairing.retired_queues()) == (1, 2, {})
    pair.strike_queue(used(pair), FaultKind.THROTTLE)
    with pytest.raises(ServiceBusServerBusyError):
        sender.send_messages(text(), timeout=0.4)


# ---- order within a session ----


def test_with_order_session_the_queue_is_chosen_by_destination_and_session(stage: Stage, kind: str) -> None:
    with stage.pair(kind, order="session") as pair:
        pair.pairing.fail_over(pair.path)
        for session in ("a", "b", "c", "d"):
            first = next(session_sequence(pair.path, session, 3))
            for sender in (pair.sender(), pair.sender()):
                assert sender.send_messages(text(session_id=session)).queue == pair.pairing.queue_path(first)


def test_with_order_session_a_diverted_session_follows_its_messages_also_when_the_primary_is_back(
    stage: Stage, kind: str
) -> None:
    with stage.pair(kind, order="session", failover_interval=60) as pair:
        one, other = pair.sender(), pair.sender()
        pair.take_down()
        first = one.send_messages(text(session_id="a"))
        stage.clear()
        assert other.send_messages(text(session_id="a")).queue == first.queue
        assert other.send_messages([text(session_id="a"), text(session_id="a")]).queue == first.queue
        # The others have nothing to overtake.
        assert other.send_messages(text(session_id="b")).route is Route.PRIMARY
        assert other.send_messages(text()).route is Route.PRIMARY
        sessions = pair.pairing.diverted_sessions
        assert sessions is not None
        index = sessions.queue_of(pair.path, "a")
        assert index is not None
        sessions.end_scan(sessions.begin_scan(index), seen=[])
        assert other.send_messages(text(session_id="a")).route is Route.PRIMARY
        assert (pair.received, sum(pair.stored)) == (3, 4)


def test_with_order_session_send_fails_rather_than_change_the_queue(stage: Stage, kind: str) -> None:
    with stage.pair(kind, order="session") as pair:
        pair.pairing.fail_over(pair.path)
        sender = pair.sender()
        sender.send_messages(text(session_id="a"))
        full = used(pair)
        pair.strike_queue(full, FaultKind.FILL)
        with pytest.raises(BacklogUnavailableError):
            sender.send_messages(text(session_id="a"))
        assert sum(pair.stored) == 1
        # A session that has nothing in the backlog yet may go elsewhere.
        session = next(name for name in map(str, range(100)) if next(session_sequence(pair.path, name, 3)) == full)
        assert sender.send_messages(text(session_id=session)).queue != pair.pairing.queue_path(full)
        stage.clear()


def test_with_order_session_a_session_without_an_accepted_message_may_use_any_queue(stage: Stage, kind: str) -> None:
    with stage.pair(kind, order="session") as pair:
        pair.pairing.fail_over(pair.path)
        sender = pair.sender()
        sequence = list(session_sequence(pair.path, "a", 3))
        for index in sequence:
            pair.strike_queue(index, FaultKind.FILL)
        with pytest.raises(BacklogUnavailableError):
            sender.send_messages(text(session_id="a"))
        stage.clear()
        pair.strike_queue(sequence[-1], FaultKind.FILL)  # the one that was tried last
        assert sender.send_messages(text(session_id="a")).queue == pair.pairing.queue_path(sequence[0])
        stage.clear()


@pytest.mark.parametrize("is_accepted", [True, False])
def test_with_order_session_failed_call_waits_for_another_in_flight_to_the_same_queue(
    stage: Stage, kind: str, is_accepted: bool
) -> None:
    with stage.pair(kind, order="session", attempt_timeout=2) as pair, ThreadPoolExecutor(2) as pool:
        pair.pairing.fail_over(pair.path)
        one, other = pair.sender(), pair.sender()
        first, second, _ = session_sequence(pair.path, "a", 3)
        on_send, trouble = frozenset({FaultPoint.SEND}), FaultKind.SLOW if is_accepted else FaultKind.BLACKHOLE
        on_its_way = pair.strike_queue(first, trouble, on=on_send, count=1, delay=1.0 if is_accepted else 0.0)
        slow = pool.submit(one.send_messages, text(session_id="a"))
        stage.wait_until(lambda: on_its_way.fired)
        pair.strike_queue(first, FaultKind.REJECT, on=on_send, condition="amqp:resource-limit-exceeded")
        quick = pool.submit(other.send_messages, text(session_id="a"))
        if is_accepted:
            assert slow.result().queue == pair.pairing.queue_path(first)
            with pytest.raises(BacklogUnavailableError):
                quick.result()
        else:
            assert {slow.result().queue, quick.result().queue} == {pair.pairing.queue_path(second)}
        stage.clear()


def test_with_order_session_one_call_has_one_session(stage: Stage, kind: str) -> None:
    with stage.pair(kind, order="session") as pair:
        with pytest.raises(ValueError, match="must have the same session_id"):
            pair.sender().send_messages([text(session_id="a"), text(session_id="b")])
        assert pair.received == 0


# ---- the recorder ----


def test_recorded_attempts_match_the_counts_of_the_namespaces(stage: Stage, kind: str) -> None:
    recorder = MemoryRecorder()
    with stage.pair(kind, recorder=recorder, failover_interval=60) as pair:
        sender = pair.sender()
        sender.send_messages(text("direct", message_id="1"))
        sender.send_messages([text(message_id="2"), text(message_id="3")])
        pair.strike(FaultKind.REJECT, on=frozenset({FaultPoint.SEND}), count=2)
        assert sender.send_messages(text(message_id="4")).route is Route.BACKLOG
        rows = recorder.operations
    done = [(row.message_id, row.namespace, row.stage) for row in rows if row.outcome is Outcome.DONE]
    assert done == [
        ("1", NamespaceRole.PRIMARY, Step.DIRECT),
        ("2", NamespaceRole.PRIMARY, Step.DIRECT),
        ("3", NamespaceRole.PRIMARY, Step.DIRECT),
        ("4", NamespaceRole.SECONDARY, Step.BACKLOG_SEND),
    ]
    assert (pair.received, sum(pair.stored)) == (3, 1)
    failed = [row for row in rows if row.outcome is not Outcome.DONE]
    assert [(row.message_id, row.entity, row.attempt) for row in failed] == [("4", pair.path, 1)] * 2
    assert all(row.error for row in failed)
    (diverted,) = [row for row in rows if row.stage is Step.BACKLOG_SEND]
    assert (diverted.destination, diverted.backlog_queue, diverted.attempt) == (pair.path, diverted.entity, 2)
    assert diverted.bytes > failed[0].bytes > len("a message")
    assert all(row.operation is OperationKind.SEND and row.latency_us for row in rows)
