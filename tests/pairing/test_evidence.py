"""Which attempts show that an entity or queue does not answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinbus.pairing.failover.entity_failover import FailedOver, FailoverMachine, Healthy, Suspect, Transition
from twinbus.pairing.failover.evidence import Evidence
from twinbus.pairing.failover.loop_lag import LATE_SHARE, Lag

ATTEMPT = 10.0
TIMES = st.floats(0.0, 1000.0)


def test_a_conclusive_failure_is_evidence_if_nothing_was_answered_since_it_began() -> None:
    evidence = Evidence(ATTEMPT)
    assert evidence.convicts(5.0)
    evidence.answered(6.0)
    assert not evidence.convicts(5.0)
    assert evidence.convicts(6.0)


def test_opened_link_answers_openings_only() -> None:
    evidence = Evidence(10.0)
    evidence.unclear(4.0)
    evidence.opened(6.0)
    assert evidence.silent_since is None
    assert evidence.convicts(5.0), "a send without an answer"
    assert not evidence.convicts(5.0, is_opening=True)
    evidence.answered(7.0)
    assert not evidence.convicts(6.5, is_opening=True)


def test_the_first_attempt_that_was_cut_short_begins_the_silence() -> None:
    evidence = Evidence(ATTEMPT)
    assert evidence.unclear(5.0)
    assert not evidence.unclear(7.0)
    assert (evidence.silent_since, evidence.probe_at()) == (5.0, 15.0)


def test_an_answer_ends_the_silence() -> None:
    evidence = Evidence(ATTEMPT)
    evidence.unclear(5.0)
    evidence.answered(6.0)
    assert (evidence.silent_since, evidence.probe_at()) == (None, None)


def test_an_attempt_that_was_cut_short_after_another_was_answered_begins_no_silence() -> None:
    evidence = Evidence(ATTEMPT)
    evidence.answered(6.0)
    assert not evidence.unclear(5.0)
    assert evidence.silent_since is None


def test_one_probe_runs_at_a_time_and_the_next_waits() -> None:
    evidence = Evidence(ATTEMPT)
    evidence.unclear(0.0)
    evidence.probe_started()
    assert evidence.probe_at() is None
    assert evidence.probe_ended(20.0) == 0.0
    assert evidence.probe_at() == 30.0


@given(began=TIMES, answers=st.lists(TIMES))
def test_only_attempts_without_an_answer_are_evidence(began: float, answers: list[float]) -> None:
    evidence = Evidence(ATTEMPT)
    for at in answers:
        evidence.answered(at)
    assert evidence.convicts(began) == all(at <= began for at in answers)


# ---- what the machine makes of it ----


def machine(interval: float = 60.0) -> FailoverMachine:
    return FailoverMachine(interval, 60.0, ATTEMPT)


def test_impatient_callers_alone_start_no_timer() -> None:
    entity = machine()
    for at in range(8):
        entity.sent_unclear(at + 1.0, 0, float(at))
    assert entity.tick(9.0) == []
    assert isinstance(entity.state, Healthy)
    assert entity.next_time() == ATTEMPT


def test_a_probe_that_fails_counts_from_the_beginning_of_the_silence() -> None:
    entity = machine()
    entity.sent_unclear(1.0, 0, 0.5)
    assert not entity.probe_due(10.0)
    assert entity.probe_due(10.5)
    epoch = entity.probe_started(10.5)
    assert entity.probe_failed(20.5, epoch) == [Transition.SUSPECTED]
    assert entity.state == Suspect(since=0.5)
    assert entity.next_time() == 60.5


def test_a_probe_that_fails_after_the_interval_is_over_fails_over_at_once() -> None:
    entity = machine(interval=5.0)
    entity.sent_unclear(1.0, 0, 0.0)
    assert entity.probe_failed(20.0, entity.probe_started(10.0)) == [Transition.SUSPECTED, Transition.FAILED_OVER]


def test_successful_probe_ends_the_silence() -> None:
    entity = machine()
    entity.sent_unclear(1.0, 0, 0.0)
    entity.probe_ok(10.5, entity.probe_started(10.0))
    assert (entity.state, entity.next_time()) == (Healthy(), None)


def test_a_probe_of_a_process_that_ran_late_proves_nothing_and_is_made_again() -> None:
    entity = machine()
    entity.sent_unclear(1.0, 0, 0.0)
    assert entity.probe_failed(20.0, entity.probe_started(10.0), is_conclusive=False) == []
    assert entity.next_time() == 30.0


def test_on_probation_a_probe_that_fails_goes_straight_back_to_failover() -> None:
    entity = machine()
    entity.force_over(0.0)
    entity.force_back(1.0)
    entity.sent_unclear(3.0, entity.epoch, 2.0)
    assert entity.probe_failed(22.0, entity.probe_started(12.0)) == [Transition.FAILED_OVER]
    assert isinstance(entity.state, FailedOver)


def test_failover_forgets_an_earlier_silence() -> None:
    entity = machine()
    entity.sent_unclear(1.0, 0, 0.0)
    entity.force_over(2.0)
    entity.force_back(3.0)
    assert entity.next_time() is None
    assert not entity.sent_unclear(4.0, 0, 0.0)  # of before


def test_a_failure_is_no_evidence_if_another_link_was_answered_meanwhile() -> None:
    entity = machine()
    entity.evidence.answered(5.0)
    assert entity.sent_failed(10.0, 0, began=4.0) == []
    assert entity.sent_failed(10.0, 0, began=6.0) == [Transition.SUSPECTED]


# ---- lag ----


def test_late_ticks_add_up() -> None:
    lag = Lag(ATTEMPT)
    assert lag.total(5.0) == 0.0  # not started
    lag.tick(0.0)
    assert lag.tick(0.5) == 0.0
    assert lag.tick(3.0) == 2.0
    assert lag.total(3.5) == 2.0
    assert lag.total(6.5) == 5.0  # the next one is overdue
    lag.stop()
    assert lag.total(9.0) == 2.0


def test_attempt_with_a_quarter_of_lag_is_inconclusive() -> None:
    assert 0.0 < LATE_SHARE < 0.5
