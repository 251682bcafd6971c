"""When a sender leaves the primary, and what still reaches the primary then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError, ServiceBusServerBusyError
from tests.pairing.paired import KINDS, Pair, Stage, text

from twinbus.emulator import AZURE, Fault, FaultKind, FaultPoint
from twinbus.pairing.events import Diverted, FailedOver, Suspected, SuspicionCleared
from twinbus.pairing.failover.entity_failover import FailedOver as FailedOverState
from twinbus.pairing.failover.entity_failover import Healthy, Route, Suspect
from twinbus.pairing.failover.error_classification import FailoverPolicy, cause_of
from twinbus.pairing.sending import call_budget as deadlines

pytestmark = pytest.mark.slow

IDLE = 1.5  # longer than the SDK takes to open a link, on a busy machine too


class SettableClock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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


def state(pair: Pair) -> Any:
    return pair.pairing.state_of(pair.pairing.entity(pair.path))


# ---- failing over ----


def test_the_first_send_while_connections_are_refused_is_soon_in_the_backlog(pair: Pair) -> None:
    pair.take_down()
    started = time.monotonic()
    receipt = pair.sender().send_messages(text())
    assert time.monotonic() - started < 5  # the SDK's own retries would take longer
    assert (receipt.route, receipt.queue in map(pair.pairing.queue_path, range(3))) == (Route.BACKLOG, True)
    assert (pair.received, sum(pair.stored)) == (0, 1)
    assert [type(one) for one in pair.events] == [FailedOver, Diverted]


def test_warm_backlog_link_is_used_and_no_other_is_opened(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text())
    sender.open_standby()
    pair.take_down()
    attached = Fault(FaultKind.SLOW, on=frozenset({FaultPoint.ATTACH}), delay=1e-6)  # counts
    attaches = pair.secondary.call(pair.secondary.namespace.faults.add, attached)
    started = time.monotonic()
    assert sender.send_messages(text()).route is Route.BACKLOG
    assert time.monotonic() - started < 5
    assert attaches.fired == 0
    assert (pair.received, sum(pair.stored)) == (1, 1)


def test_after_failover_nothing_reaches_the_primary_from_any_sender(pair: Pair) -> None:
    first, never_failed, never_used = (pair.sender() for _ in range(3))
    never_failed.send_messages(text())
    with pair.stage.pair("sync") as other:
        bystander = other.sender()
        bystander.send_messages(text())
        refusal = pair.strike(FaultKind.REJECT, on=frozenset({FaultPoint.ATTACH, FaultPoint.TOKEN}))
        assert first.send_messages(text()).route is Route.BACKLOG
        assert isinstance(state(pair), FailedOverState)
        pair.bring_back()
        links, struck = pair.links, refusal.fired
        for sender in (first, never_failed, never_used):
            assert sender.send_messages(text()).route is Route.BACKLOG
            assert sender.send_messages([text(), text()]).route is Route.BACKLOG
            assert sender.send_messages(filled(sender)).route is Route.BACKLOG
            assert sender.schedule_messages(text(), in_an_hour())[0] < 0
        assert (pair.received, pair.links, refusal.fired) == (1, links, struck)
        assert sum(pair.stored) == 1 + 3 * 5
        # Failover is per entity.
        assert bystander.send_messages(text()).route is Route.PRIMARY


def filled(sender: Any) -> Any:
    batch = sender.create_message_batch()
    batch.add_message(text())
    return batch


def in_an_hour() -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime.now(UTC) + timedelta(hours=1)


def test_after_recovery_every_sender_goes_to_the_primary_again_at_once(pair: Pair) -> None:
    one, other = pair.sender(), pair.sender()
    pair.take_down()
    one.send_messages(text())
    other.send_messages(text())
    pair.bring_back()
    pair.pairing.fail_back(pair.path)
    assert [sender.send_messages(text()).route for sender in (one, other)] == [Route.PRIMARY] * 2
    assert (pair.received, sum(pair.stored)) == (2, 2)


def test_a_process_can_start_while_the_primary_is_down(pair: Pair) -> None:
    pair.take_down()
    sender = pair.sender()
    assert len(filled(sender)) == 1
    assert sender.send_messages(text()).route is Route.BACKLOG


# ---- while the timer runs ----


def test_a_message_that_failed_while_the_timer_runs_is_diverted_and_the_next_tries_the_primary_first(
    stage: Stage, kind: str
) -> None:
    with stage.pair(kind, failover_interval=60) as pair:
        sender = pair.sender()
        pair.take_down()
        assert sender.send_messages(text()).route is Route.BACKLOG
        assert isinstance(state(pair), Suspect)
        stage.clear()
        assert sender.send_messages(text()).route is Route.PRIMARY
        assert isinstance(state(pair), Healthy)
        assert [type(one) for one in pair.events] == [Suspected, Diverted, SuspicionCleared]
        assert (pair.received, sum(pair.stored)) == (1, 1)


def test_with_while_suspect_raise_the_failure_goes_to_the_caller_and_nothing_is_stored(stage: Stage, kind: str) -> None:
    with stage.pair(kind, failover_interval=60, while_suspect="raise") as pair:
        sender = pair.sender()
        pair.take_down()
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(text())
        assert isinstance(state(pair), Suspect)
        assert (pair.received, pair.stored) == (0, [0, 0, 0])
        stage.clear()


def test_with_while_suspect_raise_a_failure_opens_the_backlog_link_without_being_asked(stage: Stage, kind: str) -> None:
    with stage.pair(kind, failover_interval=60, while_suspect="raise") as pair:
        sender = pair.sender()
        pair.take_down()
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(text())
        stage.wait_until(lambda: backlog_links(pair) == 1)
        pair.pairing.fail_over(pair.path)
        assert sender.send_messages(text()).route is Route.BACKLOG
        assert backlog_links(pair) == 1  # the one that was there
        stage.clear()


def test_closing_ends_a_backlog_link_that_is_just_being_opened(stage: Stage, kind: str) -> None:
    with stage.pair(kind, failover_interval=60, while_suspect="raise", attempt_timeout=2) as pair:
        sender = pair.sender()
        pair.take_down()
        pair.freeze(pair.secondary)
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(text())
        sender.close()
        stage.clear()
        if kind == "aio":
            stage.wait_until(lambda: stage.loop.run(stage.loop.tasks()) == set())
        else:
            stage.wait_until(
                lambda: not {"twinbus-aside", "twinbus-opening"} & {one.name for one in threading.enumerate()}
            )
        assert backlog_links(pair) == 0


def backlog_links(pair: Pair) -> int:
    """Return the number of links to the backlog queues of a pairing."""
    namespace = pair.secondary.namespace
    return pair.secondary.call(lambda: sum(pair.name in one.node.path for one in namespace.entity_links()))


def test_with_an_interval_of_0_the_very_first_failure_fails_over_also_with_raise(stage: Stage, kind: str) -> None:
    with stage.pair(kind, while_suspect="raise") as pair:
        pair.take_down()
        assert pair.sender().send_messages(text()).route is Route.BACKLOG
        stage.clear()


def test_when_the_interval_is_over_by_the_clock_a_send_does_not_even_try_the_primary(stage: Stage, kind: str) -> None:
    clock = SettableClock()
    with stage.pair(kind, failover_interval=60, clock=clock) as pair:
        sender = pair.sender()
        pair.take_down()
        sender.send_messages(text())
        stage.clear()
        clock.now += 60.0
        assert sender.send_messages(text()).attempts == 1
        assert (pair.received, pair.links, sum(pair.stored)) == (0, 0, 2)


def test_a_successful_send_to_the_primary_resets_the_timer(stage: Stage, kind: str) -> None:
    clock = SettableClock()
    with stage.pair(kind, failover_interval=60, clock=clock) as pair:
        sender = pair.sender()
        for _ in range(3):
            pair.take_down()
            assert sender.send_messages(text()).route is Route.BACKLOG
            clock.now += 59.0
            stage.clear()
            assert sender.send_messages(text()).route is Route.PRIMARY
        assert not pair.events.all(FailedOver)


# ---- links that were already open ----


def test_failure_on_an_open_link_is_retried_on_a_fresh_one(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text())
    cut = pair.strike(FaultKind.RESET, on=frozenset({FaultPoint.SEND}), count=1)
    receipt = sender.send_messages(text(message_id="the same"))
    assert cut.fired == 1
    assert (receipt.route, receipt.attempts, pair.received) == (Route.PRIMARY, 1, 2)
    assert (pair.events, pair.stored) == ([], [0, 0, 0])


def test_the_same_message_id_is_sent_again_on_the_fresh_link(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text(message_id="before"))
    pair.strike(FaultKind.DROP_ACK, count=1, then_reset=True)
    sender.send_messages(text(message_id="twice"))
    assert [one.message_id for one in pair.peek()] == ["before", "twice", "twice"]


def test_only_the_failure_on_the_fresh_link_counts(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text())
    pair.strike(FaultKind.REJECT, on=frozenset({FaultPoint.SEND}))
    assert sender.send_messages(text()).route is Route.BACKLOG
    assert len(pair.events.all(FailedOver)) == 1
    (diverted,) = pair.events.all(Diverted)
    assert (diverted.entity, diverted.count) == (pair.path, 1)


@pytest.mark.parametrize("sleeps", [IDLE * 1.6, IDLE * 3], ids=["link detached", "connection closed"])
def test_sender_idle_past_the_detach_neither_fails_over_nor_diverts(kind: str, sleeps: float) -> None:
    profile = replace(AZURE, link_idle=IDLE, connection_idle=IDLE)
    with Stage.set_up(profile) as azure, azure.pair(kind) as pair:
        sender = pair.sender()
        sender.send_messages(text())
        azure.wait_until(lambda: pair.links == 0)
        time.sleep(sleeps - IDLE)
        receipt = sender.send_messages(text())
        assert (receipt.route, pair.received, pair.stored, pair.events) == (Route.PRIMARY, 2, [0, 0, 0], [])


def test_stale_backlog_link_does_not_retire_its_queue(pair: Pair) -> None:
    sender = pair.sender()
    pair.pairing.fail_over(pair.path)
    first = sender.send_messages(text())
    index = pair.stored.index(1)
    cut = pair.strike_queue(index, FaultKind.RESET, on=frozenset({FaultPoint.SEND}), count=1)
    assert sender.send_messages(text()).queue == first.queue
    assert (cut.fired, pair.stored[index], pair.pairing.retired_queues()) == (1, 2, {})


def test_no_fresh_link_is_opened_after_the_entity_failed_over(stage: Stage, kind: str) -> None:
    def fails_over_first(error: BaseException) -> bool:
        pair.pairing.fail_over(pair.path)
        return True

    with stage.pair(kind, policy=FailoverPolicy(fails_over_first)) as pair:
        sender = pair.sender()
        sender.send_messages(text())
        pair.strike(FaultKind.RESET, on=frozenset({FaultPoint.SEND}), count=1)
        attaches = pair.strike(FaultKind.SLOW, on=frozenset({FaultPoint.ATTACH}), delay=0.01)
        assert sender.send_messages(text()).route is Route.BACKLOG
        assert (pair.received, attaches.fired) == (1, 0)


# ---- what counts ----


def test_custom_policy_decides_what_counts(stage: Stage, kind: str) -> None:
    policy = FailoverPolicy(lambda error: isinstance(error, ServiceBusError) and "full" in str(cause_of(error)))
    with stage.pair(kind, policy=FailoverPolicy.documented()) as pair:
        pair.strike(FaultKind.FILL)
        assert pair.sender().send_messages(text()).route is Route.BACKLOG
    with stage.pair(kind, policy=policy) as pair:
        pair.take_down()
        with pytest.raises(ServiceBusConnectionError):
            pair.sender().send_messages(text())
        assert pair.stored == [0, 0, 0]
        stage.clear()


def test_busy_service_is_retried_and_is_not_an_outage(pair: Pair) -> None:
    sender = pair.sender()
    busy = pair.strike(FaultKind.THROTTLE, count=2)
    receipt = sender.send_messages(text())
    assert (receipt.route, receipt.attempts, busy.fired) == (Route.PRIMARY, 3, 2)
    assert (pair.received, pair.stored, pair.events) == (1, [0, 0, 0], [])


def test_a_service_that_stays_busy_is_reported_within_the_callers_time(pair: Pair) -> None:
    sender = pair.sender()
    sender.send_messages(text())
    pair.strike(FaultKind.THROTTLE)
    started = time.monotonic()
    with pytest.raises(ServiceBusServerBusyError):
        sender.send_messages(text(), timeout=1.5)
    assert time.monotonic() - started < 5
    assert (pair.received, pair.stored, pair.events) == (1, [0, 0, 0], [])


def test_call_without_a_timeout_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(deadlines, "LONGEST_PAUSE", 0.002)
    with Stage.set_up() as stage, stage.pair("sync") as pair:
        sender = pair.sender()
        busy = pair.strike(FaultKind.THROTTLE)
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(text())
        assert busy.fired == deadlines.MAX_PAUSES + 1
