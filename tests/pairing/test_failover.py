"""The failover machine against the rules of SPEC sections 1, 3, 7 and 8."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.pairing.failover_model import Model

from twinbus.pairing.failover.entity_failover import (
    MAX_PING_INTERVAL,
    FailedOver,
    FailoverMachine,
    Healthy,
    Route,
    Suspect,
    Transition,
)

CLEARED, FAILED_OVER = Transition.CLEARED, Transition.FAILED_OVER
RECOVERED, SUSPECTED = Transition.RECOVERED, Transition.SUSPECTED
INTERVAL = 60.0
PING = 30.0


@pytest.fixture
def machine() -> FailoverMachine:
    return FailoverMachine(INTERVAL, PING)


def route(machine: FailoverMachine, now: float) -> Route:
    return machine.route(now).route


def fail(machine: FailoverMachine, now: float) -> list[Transition]:
    """Make a send that begins and fails now."""
    return machine.sent_failed(now, machine.route(now).epoch)


def succeed(machine: FailoverMachine, now: float) -> list[Transition]:
    return machine.sent_ok(now)


def failed_over(at: float = 0.0, ping: float = PING) -> FailoverMachine:
    """Return a machine that failed over at this time."""
    machine = FailoverMachine(0.0, ping)
    assert fail(machine, at) == [FAILED_OVER]
    return machine


def ping(machine: FailoverMachine, now: float, ok: bool = True) -> list[Transition]:
    """Send a due ping and answer it now."""
    epoch = machine.ping_started(now)
    return machine.ping_ok(now, epoch) if ok else machine.ping_failed(now, epoch)


class TestWhileHealthy:
    def test_sends_go_to_the_primary(self, machine: FailoverMachine) -> None:
        """SPEC 1: while the primary entity is healthy, nothing changes for the application."""
        for now in range(0, 10_000, 1000):
            assert route(machine, now) is Route.PRIMARY
            assert succeed(machine, now) == []
        assert machine.next_time() is None
        assert not machine.ping_due(10_000)

    def test_time_alone_changes_nothing(self, machine: FailoverMachine) -> None:
        assert machine.tick(1e9) == []
        assert machine.state == Healthy()


class TestTheTimer:
    def test_a_failure_that_counts_starts_a_timer(self, machine: FailoverMachine) -> None:
        """SPEC 3."""
        assert fail(machine, 5.0) == [SUSPECTED]
        assert machine.state == Suspect(since=5.0)
        assert machine.next_time() == 5.0 + INTERVAL

    def test_the_next_send_tries_the_primary_first(self, machine: FailoverMachine) -> None:
        """SPEC 7."""
        fail(machine, 0.0)
        assert route(machine, INTERVAL - 0.001) is Route.PRIMARY

    def test_more_failures_do_not_prolong_the_interval(self, machine: FailoverMachine) -> None:
        """SPEC 1: since the *first* failure that counts."""
        fail(machine, 0.0)
        assert fail(machine, 50.0) == []
        assert machine.next_time() == INTERVAL

    def test_a_successful_send_to_the_primary_resets_it(self, machine: FailoverMachine) -> None:
        """SPEC 3."""
        fail(machine, 0.0)
        assert succeed(machine, 59.0) == [CLEARED]
        assert machine.state == Healthy()
        assert route(machine, 1000.0) is Route.PRIMARY
        assert fail(machine, 1000.0) == [SUSPECTED]
        assert machine.next_time() == 1000.0 + INTERVAL

    def test_failover_starts_when_the_interval_has_passed(self, machine: FailoverMachine) -> None:
        """SPEC 3."""
        fail(machine, 0.0)
        assert machine.tick(INTERVAL - 0.001) == []
        assert machine.tick(INTERVAL) == [FAILED_OVER]
        assert route(machine, INTERVAL) is Route.BACKLOG

    def test_one_failure_and_then_silence_still_fails_over_and_pings(self, machine: FailoverMachine) -> None:
        """SPEC 1: without further sends, failover and the first ping still happen when the interval ends."""
        fail(machine, 0.0)
        wake = machine.next_time()
        assert wake == INTERVAL
        assert machine.tick(wake) == [FAILED_OVER]
        assert machine.ping_due(wake)

    def test_a_late_tick_changes_nothing_about_where_sends_go(self, machine: FailoverMachine) -> None:
        """SPEC 1: the interval runs by the clock."""
        fail(machine, 0.0)
        assert route(machine, INTERVAL) is Route.BACKLOG
        assert machine.tick(INTERVAL + 500.0) == [FAILED_OVER]
        assert machine.state == FailedOver(since=INTERVAL, next_ping=INTERVAL)

    def test_a_success_after_the_interval_is_too_late(self, machine: FailoverMachine) -> None:
        """SPEC 1: when the interval has passed without one successful send in between."""
        fail(machine, 0.0)
        assert machine.sent_ok(INTERVAL) == [FAILED_OVER]
        assert route(machine, INTERVAL) is Route.BACKLOG

    def test_with_an_interval_of_zero_the_very_first_failure_fails_over(self) -> None:
        """SPEC 7."""
        machine = FailoverMachine(0.0, PING)
        assert fail(machine, 3.0) == [FAILED_OVER]
        assert route(machine, 3.0) is Route.BACKLOG
        assert machine.ping_due(3.0)


class TestFailedOver:
    def test_every_sender_goes_to_the_backlog_also_one_that_never_saw_a_failure(self) -> None:
        """SPEC 1: after failover nothing but pings reaches the primary entity from any of its senders."""
        machine = failed_over()
        assert {route(machine, now) for now in (0.0, 1.0, 1e6)} == {Route.BACKLOG}

    def test_a_success_that_arrives_late_does_not_bring_the_entity_back(self) -> None:
        """SPEC 1: the entity is pinged until a ping gets through."""
        machine = FailoverMachine(0.0, PING)
        fail(machine, 1.0)
        assert machine.sent_ok(2.0) == []
        assert route(machine, 2.0) is Route.BACKLOG

    def test_another_failure_changes_nothing(self) -> None:
        machine = FailoverMachine(0.0, PING)
        slow = machine.route(0.0).epoch
        fail(machine, 1.0)
        before = machine.state
        assert machine.sent_failed(2.0, slow) == []
        assert machine.state == before

    def test_failover_is_per_entity(self) -> None:
        """SPEC 1: another entity of the same namespace may be fine."""
        orders, events = failed_over(), FailoverMachine(0.0, PING)
        assert route(orders, 0.0) is Route.BACKLOG
        assert route(events, 0.0) is Route.PRIMARY


class TestPings:
    def test_the_first_ping_is_due_at_the_failover(self) -> None:
        """SPEC 1."""
        machine = failed_over(at=7.0)
        assert machine.next_time() == 7.0
        assert machine.ping_due(7.0)

    def test_a_ping_runs_every_interval(self) -> None:
        """SPEC 3."""
        machine = failed_over()
        for now in (0.0, PING, 2 * PING):
            assert not machine.ping_due(now - 0.001)
            assert machine.ping_due(now)
            assert ping(machine, now, ok=False) == []
            assert machine.next_time() == now + PING

    def test_only_one_ping_is_under_way(self) -> None:
        """SPEC 4: each unavailable entity is pinged once per pairing per client."""
        machine = failed_over()
        epoch = machine.ping_started(0.0)
        assert not machine.ping_due(1000.0)
        assert machine.next_time() is None
        with pytest.raises(RuntimeError, match="no ping is due"):
            machine.ping_started(1000.0)
        machine.ping_failed(1000.0, epoch)
        assert machine.next_time() == 1000.0 + PING

    def test_one_successful_ping_returns_all_senders_to_the_primary(self) -> None:
        """SPEC 3: all code using that entity sends to the primary again, at once."""
        machine = failed_over()
        assert ping(machine, 5.0) == [RECOVERED]
        assert route(machine, 5.0) is Route.PRIMARY

    def test_pings_stop_as_soon_as_the_entity_is_back(self) -> None:
        """SPEC 4."""
        machine = failed_over()
        ping(machine, 0.0)
        assert machine.next_time() is None
        assert not machine.ping_due(1e6)

    def test_a_ping_that_fails_for_good_leaves_sends_to_the_backlog(self) -> None:
        """SPEC 7: sends keep going to the backlog."""
        machine = failed_over()
        for number in range(1000):
            ping(machine, number * PING, ok=False)
        assert route(machine, 1000 * PING) is Route.BACKLOG
        assert machine.ping_due(1000 * PING)

    def test_a_healthy_entity_is_not_pinged(self, machine: FailoverMachine) -> None:
        with pytest.raises(RuntimeError, match="no ping is due"):
            machine.ping_started(0.0)

    def test_a_ping_of_an_earlier_failover_says_nothing_about_this_one(self) -> None:
        machine = failed_over()
        old = machine.ping_started(0.0)
        machine.force_back(1.0)
        fail(machine, 2.0)
        assert machine.ping_ok(3.0, old) == []
        assert route(machine, 3.0) is Route.BACKLOG
        before = machine.next_time()
        assert machine.ping_failed(4.0, old) == []
        assert machine.next_time() == before
        assert before is not None
        machine.ping_started(before)
        assert machine.ping_ok(before, old) == machine.ping_failed(before, old) == []
        assert machine.state == FailedOver(since=2.0, next_ping=before, is_pinging=True)


class TestStaleFailures:
    def test_a_failure_from_before_the_recovery_does_not_count(self) -> None:
        machine = FailoverMachine(0.0, PING)
        slow = machine.route(0.0).epoch
        fail(machine, 1.0)
        ping(machine, 2.0)
        assert machine.sent_failed(3.0, slow) == []
        assert route(machine, 3.0) is Route.PRIMARY

    def test_a_failure_from_before_a_failback_by_hand_does_not_count(self, machine: FailoverMachine) -> None:
        slow = machine.route(0.0).epoch
        fail(machine, 1.0)
        machine.force_back(2.0)
        assert machine.sent_failed(3.0, slow) == []
        assert machine.state == Healthy()

    def test_a_success_ends_the_suspicion_whenever_it_began(self, machine: FailoverMachine) -> None:
        machine.force_over(1.0)
        machine.force_back(2.0)
        after_probation = 2.0 + INTERVAL
        fail(machine, after_probation)
        assert machine.sent_ok(after_probation + 1.0) == [CLEARED]


class TestProbation:
    """SPEC 8: after recovery, probation."""

    def recovered(self, interval: float = INTERVAL, ping_interval: float = PING) -> FailoverMachine:
        """Recovered at 1000."""
        machine = FailoverMachine(interval, ping_interval)
        fail(machine, 0.0)
        machine.tick(interval)
        assert ping(machine, 1000.0) == [RECOVERED]
        return machine

    def test_one_failure_goes_straight_back_to_failover(self) -> None:
        machine = self.recovered()
        assert machine.is_on_probation(1001.0)
        assert fail(machine, 1001.0) == [FAILED_OVER]

    def test_the_ping_interval_doubles(self) -> None:
        machine = self.recovered()
        fail(machine, 1001.0)
        assert machine.ping_interval == 2 * PING
        assert machine.next_time() == 1001.0 + 2 * PING
        ping(machine, 1061.0, ok=False)
        assert machine.next_time() == 1061.0 + 2 * PING

    def test_relapse_is_not_pinged_at_once(self) -> None:
        machine = self.recovered()
        fail(machine, 1001.0)
        assert not machine.ping_due(1001.0)

    def test_the_ping_interval_doubles_up_to_its_bound(self) -> None:
        machine = self.recovered(ping_interval=500.0)
        now, seen = 1000.0, []
        for _ in range(4):
            fail(machine, now)
            seen.append(machine.ping_interval)
            now += machine.ping_interval
            ping(machine, now)
        assert seen == [1000.0, MAX_PING_INTERVAL, MAX_PING_INTERVAL, MAX_PING_INTERVAL]
        assert MAX_PING_INTERVAL == 30 * 60

    @pytest.mark.parametrize(("interval", "ping_interval"), [(60.0, 30.0), (30.0, 60.0), (0.0, 1.0)])
    def test_probation_lasts_for_the_longer_interval(self, interval: float, ping_interval: float) -> None:
        machine = self.recovered(interval, ping_interval)
        end = 1000.0 + max(interval, ping_interval)
        assert machine.is_on_probation(end - 0.001)
        assert not machine.is_on_probation(end)

    def test_probation_lasts_longer_after_a_relapse(self) -> None:
        machine = self.recovered(interval=30.0, ping_interval=60.0)
        fail(machine, 1000.0)
        ping(machine, 1120.0)
        assert machine.is_on_probation(1120.0 + 119.999)
        assert not machine.is_on_probation(1120.0 + 120.0)

    def test_after_probation_a_failure_suspects_first_with_the_normal_ping_interval(self) -> None:
        machine = self.recovered()
        fail(machine, 1001.0)
        ping(machine, 1061.0)
        end = 1061.0 + INTERVAL
        assert fail(machine, end) == [SUSPECTED]
        assert machine.tick(end + INTERVAL) == [FAILED_OVER]
        assert machine.ping_interval == PING
        assert machine.ping_due(end + INTERVAL)

    def test_success_does_not_shorten_probation(self) -> None:
        machine = self.recovered()
        assert succeed(machine, 1001.0) == []
        assert fail(machine, 1002.0) == [FAILED_OVER]

    def test_no_probation_before_the_first_failover(self, machine: FailoverMachine) -> None:
        assert not machine.is_on_probation(0.0)
        assert fail(machine, 0.0) == [SUSPECTED]


class TestByHand:
    """SPEC 8: force failover and failback."""

    def test_sends_go_to_the_backlog_after_a_forced_failover(self, machine: FailoverMachine) -> None:
        assert machine.force_over(0.0) == [FAILED_OVER]
        assert route(machine, 0.0) is Route.BACKLOG

    def test_forced_failover_is_not_pinged_and_does_not_end(self, machine: FailoverMachine) -> None:
        machine.force_over(0.0)
        assert machine.next_time() is None
        assert machine.tick(1e6) == []
        assert not machine.ping_due(1e6)
        assert route(machine, 1e6) is Route.BACKLOG

    def test_sends_go_to_the_primary_after_a_forced_failback(self, machine: FailoverMachine) -> None:
        machine.force_over(0.0)
        assert machine.force_back(1.0) == [RECOVERED]
        assert route(machine, 1.0) is Route.PRIMARY

    def test_forced_failback_is_a_recovery_with_probation(self, machine: FailoverMachine) -> None:
        machine.force_over(0.0)
        machine.force_back(1.0)
        assert fail(machine, 2.0) == [FAILED_OVER]

    def test_automatic_failover_can_be_ended_manually(self) -> None:
        machine = failed_over()
        assert machine.force_back(1.0) == [RECOVERED]
        assert route(machine, 1.0) is Route.PRIMARY

    def test_a_ping_under_way_does_not_undo_a_forced_failover(self) -> None:
        machine = failed_over()
        under_way = machine.ping_started(0.0)
        assert machine.force_over(1.0) == []
        assert machine.ping_ok(2.0, under_way) == []
        assert route(machine, 2.0) is Route.BACKLOG

    def test_forcing_twice_changes_nothing(self, machine: FailoverMachine) -> None:
        machine.force_over(0.0)
        before = (machine.state, machine.epoch)
        assert machine.force_over(5.0) == []
        assert (machine.state, machine.epoch) == before

    def test_failback_of_a_healthy_entity_changes_nothing(self, machine: FailoverMachine) -> None:
        assert machine.force_back(0.0) == []
        assert (machine.state, machine.epoch) == (Healthy(), 0)

    def test_forcing_back_ends_a_suspicion(self, machine: FailoverMachine) -> None:
        fail(machine, 0.0)
        assert machine.force_back(1.0) == [CLEARED]
        assert machine.state == Healthy()

    def test_forcing_over_after_the_interval_reports_the_failover_once(self, machine: FailoverMachine) -> None:
        fail(machine, 0.0)
        assert machine.force_over(INTERVAL) == [FAILED_OVER]

    def test_forcing_back_after_the_interval_reports_both_changes(self, machine: FailoverMachine) -> None:
        fail(machine, 0.0)
        assert machine.force_back(INTERVAL) == [FAILED_OVER, RECOVERED]


# What a list of transitions tells, and from where it may come.
TELLS = {
    SUSPECTED: ({"healthy"}, "suspect"),
    CLEARED: ({"suspect"}, "healthy"),
    FAILED_OVER: ({"healthy", "suspect"}, "failed over"),
    RECOVERED: ({"failed over"}, "healthy"),
}


@dataclass
class Entity:
    """A machine, its model, and pending attempts."""

    machine: FailoverMachine
    model: Model
    sends: list[tuple[int, Any]] = field(default_factory=list)
    pings: list[tuple[int, Any]] = field(default_factory=list)
    told: str = "healthy"


entities = st.sampled_from(["orders", "events"])
which = st.integers(0, 3)


class FailoverRules(RuleBasedStateMachine):
    """Random histories of two entities: every answer of the machines must match the model."""

    @initialize(interval=st.sampled_from([3600.0, 60.0, 5.0, 0.0]), ping=st.sampled_from([1.0, 30.0, 1000.0, 1800.0]))
    def start(self, interval: float, ping: float) -> None:
        self.now = 0.0
        self.entities = {
            name: Entity(FailoverMachine(interval, ping), Model(interval, ping)) for name in ("orders", "events")
        }

    def hear(self, entity: Entity, transitions: list[Transition]) -> None:
        """Check that the machine is in the model's state and reported every transition."""
        for transition in transitions:
            before, after = TELLS[transition]
            assert entity.told in before, (entity.told, transition)
            entity.told = after
        assert entity.told == entity.model.state(self.now)
        assert entity.machine.next_time() == entity.model.next_time(self.now)
        assert entity.machine.ping_due(self.now) == entity.model.ping_due(self.now)
        assert entity.machine.is_on_probation(self.now) == entity.model.is_on_probation(self.now)
        if entity.told == "failed over":
            assert entity.machine.ping_interval == entity.model.wait

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.75, 5.0, 30.0, 60.0, 900.0]))
    def time_passes_and_nobody_ticks(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def a_quiet_time_passes_that_ends_any_probation(self) -> None:
        self.now += 3600.0

    @rule(name=entities)
    def the_clock_strikes(self, name: str) -> None:
        entity = self.entities[name]
        at = entity.machine.next_time()
        if at is not None:
            self.now = max(self.now, at)
        self.hear(entity, entity.machine.tick(self.now))

    @rule(name=entities)
    def a_send_begins(self, name: str) -> None:
        entity = self.entities[name]
        routing, began_in = entity.machine.route(self.now), entity.model.send_begins(self.now)
        assert (routing.route is Route.PRIMARY) == (began_in is not None)
        if began_in is not None:
            entity.sends.append((routing.epoch, began_in))

    @precondition(lambda self: any(entity.sends for entity in self.entities.values()))
    @rule(name=entities, number=which, ok=st.booleans())
    def a_send_ends(self, name: str, number: int, ok: bool) -> None:
        entity = self.entities[name]
        if not entity.sends:
            return
        epoch, began_in = entity.sends.pop(number % len(entity.sends))
        if ok:
            entity.model.send_succeeds(self.now)
            self.hear(entity, entity.machine.sent_ok(self.now))
        else:
            entity.model.send_fails(self.now, began_in)
            self.hear(entity, entity.machine.sent_failed(self.now, epoch))

    @rule(name=entities, ok=st.booleans())
    def a_send_begins_and_ends(self, name: str, ok: bool) -> None:
        self.a_send_begins(name)
        self.a_send_ends(name, -1, ok)

    @rule(name=entities)
    def a_ping_begins_if_due(self, name: str) -> None:
        entity = self.entities[name]
        self.hear(entity, entity.machine.tick(self.now))
        if entity.machine.ping_due(self.now):
            entity.pings.append((entity.machine.ping_started(self.now), entity.model.ping_begins(self.now)))

    @precondition(lambda self: any(entity.pings for entity in self.entities.values()))
    @rule(name=entities, number=which, ok=st.booleans())
    def a_ping_ends(self, name: str, number: int, ok: bool) -> None:
        entity = self.entities[name]
        if not entity.pings:
            return
        epoch, ping = entity.pings.pop(number % len(entity.pings))
        if ok:
            entity.model.ping_succeeds(self.now, ping)
            self.hear(entity, entity.machine.ping_ok(self.now, epoch))
        else:
            entity.model.ping_fails(self.now, ping)
            self.hear(entity, entity.machine.ping_failed(self.now, epoch))

    @rule(name=entities, ok=st.booleans())
    def the_next_ping_is_sent_and_answered(self, name: str, ok: bool) -> None:
        self.the_clock_strikes(name)
        self.a_ping_begins_if_due(name)
        self.a_ping_ends(name, -1, ok)

    @rule(name=entities)
    def one_send_fails_and_there_is_silence(self, name: str) -> None:
        self.a_send_begins_and_ends(name, ok=False)
        self.the_clock_strikes(name)

    @rule(name=entities, over=st.booleans())
    def it_is_forced(self, name: str, over: bool) -> None:
        entity = self.entities[name]
        if over:
            entity.model.force_over(self.now)
            self.hear(entity, entity.machine.force_over(self.now))
        else:
            entity.model.force_back(self.now)
            self.hear(entity, entity.machine.force_back(self.now))

    @invariant()
    def sends_go_where_the_specification_says_whether_or_not_somebody_ticked(self) -> None:
        for entity in self.entities.values():
            over = entity.model.state(self.now) == "failed over"
            assert entity.machine.route(self.now).route is (Route.BACKLOG if over else Route.PRIMARY)


TestFailoverRules = FailoverRules.TestCase
TestFailoverRules.settings = settings(max_examples=150, stateful_step_count=50)
