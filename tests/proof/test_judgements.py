"""Tests the checks beyond the history: each is exactly as strict as the promise to callers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusConnectionError
from proof.history import History
from proof.simulation.application import Call
from proof.simulation.judgements import Record, complaints
from proof.simulation.network import Fault, FaultKind
from proof.simulation.scenario import PRIMARY, SECONDARY, Action, PlannedAction, PlannedSend, Queue, Scenario
from proof.simulation.virtual_time import START

from twinbus.pairing.events import BacklogQueueRetired, Event, FailedOver, Recovered, Suspected
from twinbus.pairing.failover.error_classification import FailoverPolicy
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.pairing_errors import AttemptTimeoutError, BacklogUnavailableError

ORDERS = Queue("orders", requires_session=False, duplicate_window=None, shows_pings=False)
QUEUES = ["contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"]
LOST = ServiceBusConnectionError(message="gone")
OUTAGE = Fault(FaultKind.REFUSE, PRIMARY, None, 10.0, 20.0)
SILENCE = Fault(FaultKind.BLACK_HOLE, PRIMARY, None, 10.0, 60.0)


def _scenario(*faults: Fault, actions: tuple[PlannedAction, ...] = (), **options: Any) -> Scenario:
    values = {"backlog_queue_count": 2, "failover_interval": 1, "attempt_timeout": 1, "backlog_cooldown": 2, **options}
    return Scenario(
        0,
        SendAvailabilityOptions(**values),
        (ORDERS,),
        (ORDERS,),
        (),
        faults,
        actions,
        0.0,
        has_ledger=False,
        skews=(0.0, 0.0),
        duration=60.0,
    )


def _call(name: str = "one", at: float = 5.0, seconds: float = 0.01, **more: Any) -> Call:
    plan = PlannedSend(at, 0, (name,), more.pop("session", None), None, None, more.pop("timeout", None))
    return Call(plan, "orders", START + at, START + at + seconds, **{"route": "primary", **more})


def _events(*events: tuple[float, Event]) -> list[tuple[float, Event]]:
    return [(START + at, event) for at, event in events]


def _complaints(scenario: Scenario, *calls: Call, **more: Any) -> list[str]:
    record = Record(
        scenario,
        list(calls),
        more.get("events", []),
        [(START + start, START + end) for start, end in more.get("starved", [])],
        dict.fromkeys(QUEUES, START),
        more.get("sent", {name: 1 for call in calls for name in call.plan.message_ids}),
        more.get("history", History()),
    )
    return list(complaints(record))


def _first_word(texts: list[str]) -> str:
    return texts[0].split(":")[0] if texts else ""


# ---- alarms ----


@pytest.mark.parametrize("event", [Suspected(entity="orders", error=LOST), FailedOver(entity="orders", error=LOST)])
def test_alarm_without_fault_of_the_entity_is_false(event: Event) -> None:
    events = _events((12.0, event))
    assert "false alarm" in _complaints(_scenario(), events=events)[0]
    assert "false alarm" in _complaints(_scenario(replace(OUTAGE, entity="bills")), events=events)[0]
    assert _complaints(_scenario(OUTAGE), events=events) == []


def test_forced_failover_is_not_an_alarm() -> None:
    assert _complaints(_scenario(), events=_events((1.0, FailedOver(entity="orders", error=None, forced=True)))) == []


@pytest.mark.parametrize("kind", [FaultKind.QUOTA, FaultKind.DISABLED])
def test_refusal_justifies_alarm_only_if_the_policy_counts_it(kind: FaultKind) -> None:
    fault = replace(OUTAGE, kind=kind)
    events = _events((12.0, Suspected(entity="orders", error=LOST)))
    assert len(_complaints(_scenario(fault), events=events)) == 1
    assert _complaints(_scenario(fault, policy=FailoverPolicy.documented()), events=events) == []


def test_retiring_a_healthy_backlog_queue_is_false() -> None:
    events = _events((12.0, BacklogQueueRetired(queue=QUEUES[0], error=LOST)))
    fault = Fault(FaultKind.QUOTA, SECONDARY, QUEUES[0], 0.0, 20.0)
    assert "false retirement" in _complaints(_scenario(), events=events)[0]
    assert "false retirement" in _complaints(_scenario(replace(fault, entity=QUEUES[1])), events=events)[0]
    assert _complaints(_scenario(fault), events=events) == []


# ---- calls to a healthy primary ----


def test_diverting_a_call_without_timeout_needs_a_fault() -> None:
    assert "needless diversion" in _complaints(_scenario(), _call(route="backlog"))[0]
    assert _complaints(_scenario(), _call(route="backlog", timeout=1.0)) == []
    assert _complaints(_scenario(), _call(route="backlog"), starved=[(4.0, 5.005)]) == []
    assert _complaints(_scenario(OUTAGE), _call(route="backlog")) == []
    forced = PlannedAction(1.0, Action.FAIL_OVER, 0, 0.0)
    assert _complaints(_scenario(actions=(forced,)), _call(route="backlog")) == []


def test_call_may_follow_its_session_to_the_backlog() -> None:
    before = _call("before", 1.0, route="backlog", timeout=0.01, session="s0")
    assert _complaints(_scenario(order="session"), before, _call(route="backlog", session="s0")) == []
    assert len(_complaints(_scenario(), before, _call(route="backlog", session="s0"))) == 1
    assert len(_complaints(_scenario(order="session"), before, _call(route="backlog", session="s1"))) == 1


def test_outage_error_without_timeout_needs_a_fault() -> None:
    error = AttemptTimeoutError("orders", 1.0)
    assert "needless error" in _complaints(_scenario(), _call(route=None, error=error))[0]
    assert _complaints(_scenario(), _call(route=None, error=error, is_broken_off=True)) == []
    assert _complaints(_scenario(), _call(route=None, error=ValueError("closed"))) == []


def test_unconstrained_call_is_sent_once() -> None:
    assert "disturbed" in _complaints(_scenario(), _call(), sent={"one": 2})[0]
    assert _complaints(_scenario(), _call(timeout=1.0), sent={"one": 2}) == []
    assert _complaints(_scenario(replace(OUTAGE, kind=FaultKind.BUSY)), _call(), sent={"one": 2}) == []


# ---- refusals ----

NO_QUEUE = BacklogUnavailableError("orders", LOST, {})


def test_call_is_not_refused_while_a_backlog_queue_is_available() -> None:
    call = _call(at=15.0, route=None, error=NO_QUEUE)
    full = [Fault(FaultKind.QUOTA, SECONDARY, queue, 0.0, math.inf) for queue in QUEUES]
    assert "refused though" in _complaints(_scenario(OUTAGE), call)[0]
    assert "refused though" in _complaints(_scenario(OUTAGE, full[0]), call)[0]
    assert _complaints(_scenario(OUTAGE, *full), call) == []
    assert _complaints(_scenario(OUTAGE), _call(at=15.0, route=None, error=NO_QUEUE, timeout=3.0)) == []


def test_queue_that_just_recovered_may_be_out_of_rotation() -> None:
    just_now = [Fault(FaultKind.QUOTA, SECONDARY, queue, 0.0, 14.0) for queue in QUEUES]
    long_ago = [replace(fault, end=5.0) for fault in just_now]
    call = _call(at=15.0, route=None, error=NO_QUEUE)
    assert _complaints(_scenario(OUTAGE, *just_now), call) == []
    assert len(_complaints(_scenario(OUTAGE, *long_ago), call)) == 1


def test_backlog_queue_errors_do_not_reach_the_caller() -> None:
    call = _call(at=15.0, route=None, error=MessagingEntityDisabledError(message="disabled"))
    assert "refused though" in _complaints(_scenario(OUTAGE), call)[0]
    assert _complaints(_scenario(OUTAGE, replace(OUTAGE, kind=FaultKind.DISABLED)), call) == []


# ---- time ----


def test_call_longer_than_its_timeout_is_late() -> None:
    assert "late" in _complaints(_scenario(), _call(timeout=1.0, seconds=1.2))[0]
    assert _complaints(_scenario(), _call(timeout=1.0, seconds=1.01)) == []
    assert _complaints(_scenario(), _call(timeout=1.0, seconds=5.0), starved=[(6.0, 7.0)]) == []


def test_silent_primary_is_failed_over_despite_short_timeouts() -> None:
    call = _call(at=12.0, timeout=0.01, route="backlog")
    noticed = _events((16.0, FailedOver(entity="orders", error=LOST)))
    too_late = _events((20.0, FailedOver(entity="orders", error=LOST)))
    assert _first_word(_complaints(_scenario(SILENCE), call)) == "missed outage"
    assert _first_word(_complaints(_scenario(SILENCE), call, events=too_late)) == "missed outage"
    assert _complaints(_scenario(SILENCE), call, events=noticed) == []
    assert _complaints(_scenario(replace(SILENCE, end=14.0)), call) == []
    assert _complaints(_scenario(SILENCE), call, starved=[(13.0, 14.0)]) == []
    assert _complaints(_scenario(SILENCE, max_connections=2), call) == []


def test_failed_over_entity_need_not_fail_over_again() -> None:
    call = _call(at=12.0, timeout=0.01, route="backlog")
    over, back = FailedOver(entity="orders", error=LOST), Recovered(entity="orders")
    fault = replace(OUTAGE, start=0.0, end=5.0)
    assert _complaints(_scenario(fault, SILENCE), call, events=_events((2.0, over))) == []
    texts = _complaints(_scenario(fault, SILENCE), call, events=_events((2.0, over), (6.0, back)))
    assert _first_word(texts) == "missed outage"


# ---- order ----


def test_calls_of_a_session_arrive_in_call_order() -> None:
    history = History()
    for name in ("one", "two"):
        history.attempt("orders", name, session="s0")
    for number, name in enumerate(("two", "one")):
        history.receive("orders", name, number, session="s0")
    calls = _call("one", session="s0"), _call("two", session="s0")
    assert "out of call order" in _complaints(_scenario(order="session"), *calls, history=history)[0]
    assert _complaints(_scenario(), *calls, history=history) == []
    history.doubt("orders", "two")
    assert _complaints(_scenario(order="session"), *calls, history=history) == []
