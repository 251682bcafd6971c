"""Validation, firing and expiry of faults, with a test clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.emulator.faults.cases import CASES

from twinbus.emulator.faults.fault_plan import CAN_STRIKE, MAX_FAULTS, Fault, FaultError, FaultKind, FaultPoint, Faults

SEND = FaultPoint.SEND


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fired(faults: Faults, times: int, operation: FaultPoint = SEND, entity: str = "orders") -> int:
    """How many of N operations are struck."""
    return sum(faults.strike(operation, entity).struck_by is not None for _ in range(times))


# ---- validation ----


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "explode"}, "kind"),
        ({}, "kind"),
        ({"kind": "reset", "count": 0}, "count"),
        ({"kind": "reset", "count": 1.5}, "count"),
        ({"kind": "reset", "count": True}, "count"),
        ({"kind": "reset", "seconds": 0}, "seconds"),
        ({"kind": "reset", "seconds": 86_401}, "seconds"),
        ({"kind": "reset", "seconds": "5"}, "seconds"),
        ({"kind": "reset", "probability": 0}, "probability"),
        ({"kind": "reset", "probability": 1.1}, "probability"),
        ({"kind": "reset", "probability": float("nan")}, "probability"),
        ({"kind": "reset", "seed": "x"}, "seed"),
        ({"kind": "reset", "entity": ""}, "entity"),
        ({"kind": "reset", "entity": 3}, "entity"),
        ({"kind": "reset", "on": ["lunch"]}, "on"),
        ({"kind": "reset", "on": 3}, "on"),
        ({"kind": "reset", "entity": "orders", "on": ["connect"]}, "on"),
        ({"kind": "fill", "on": ["receive"]}, "on"),
        ({"kind": "slow"}, "delay"),
        ({"kind": "slow", "delay": 3601}, "delay"),
        ({"kind": "reject", "condition": 5}, "condition"),
        ({"kind": "reject", "then_reset": True}, "then_reset"),
        ({"kind": "drop_ack", "then_reset": 1}, "then_reset"),
        ({"kind": "reset", "after_answer": True}, "after_answer"),
        ({"kind": "reset", "after_answer": True, "on": ["attach"]}, "after_answer"),
        ({"kind": "reset", "colour": "red"}, "colour"),
    ],
)
def test_invalid_json_fault_is_refused_naming_the_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(FaultError, match=rf"^{named} "):
        Fault.from_json(fields)


@pytest.mark.parametrize("text", [None, 3, "reset", ["reset"]])
def test_json_fault_must_be_an_object(text: Any) -> None:
    with pytest.raises(FaultError, match="JSON object"):
        Fault.from_json(text)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "nonsense"}, "kind must be one of refuse, reset, blackhole, slow, "),
        ({"kind": None}, "kind must be one of "),
        ({"on": ["lunch"]}, "on must be some of connect, token, attach, send, "),
        ({"on": 3}, "on must be some of "),
        ({"on": None}, "on must be some of "),
        ({"entity": 3}, "entity must be the path of an entity, "),
        ({"count": "1"}, "count must be 1 or more, a whole number, not str"),
        ({"count": 1.0}, "count must be 1 or more, a whole number, not float"),
        ({"count": True}, "count must be 1 or more, a whole number, not bool"),
        ({"count": 0}, "count must be 1 or more"),
        ({"seconds": "x"}, "seconds must be above 0 and at most 86400, a number, not str"),
        ({"seconds": -1}, "seconds must be above 0 and at most 86400"),
        ({"probability": 2}, "probability must be above 0 and at most 1"),
        ({"probability": None}, "probability must be above 0 and at most 1, a number, not NoneType"),
        ({"seed": "x"}, "seed must be a whole number, not str"),
        ({"delay": -1}, "delay must be a number of seconds from 0 to 3600"),
        ({"kind": FaultKind.SLOW, "delay": -1}, "delay must be above 0 and at most 3600"),
        ({"kind": FaultKind.SLOW, "delay": "1"}, "delay must be a number of seconds from 0 to 3600, not str"),
        ({"condition": 5}, "condition must be text, not int"),
        ({"then_reset": "no"}, "then_reset must be True or False, not str"),
    ],
)
def test_invalid_python_fault_is_refused_naming_field_and_bounds(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(FaultError, match=rf"^{says}"):
        Fault(**{"kind": FaultKind.REJECT, **fields})


@pytest.mark.parametrize("on", [["send", "attach"], (SEND, FaultPoint.ATTACH), {"send", FaultPoint.ATTACH}])
def test_kind_and_fault_points_can_be_names(on: Any) -> None:
    fault = Fault("throttle", on=on)  # type: ignore[arg-type]
    assert fault == Fault(FaultKind.THROTTLE, on=frozenset({SEND, FaultPoint.ATTACH}))
    assert fault.kind is FaultKind.THROTTLE
    assert Fault(FaultKind.THROTTLE, on="send").on == {SEND}  # type: ignore[arg-type]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["kind", "on", "entity", "count", "seconds", "delay", "seed"]), inner)
        ),
        max_leaves=8,
    )
)
def test_any_json_is_a_fault_or_a_fault_error(values: Any) -> None:
    try:
        fault = Fault.from_json(values)
    except FaultError:
        return
    assert isinstance(fault, Fault)


@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("entity", [None, "orders"])
def test_every_kind_has_default_fault_points(kind: FaultKind, entity: str | None) -> None:
    fault = Fault(kind, entity=entity, delay=1.0)
    assert fault.strikes
    assert (FaultPoint.CONNECT in fault.strikes) <= (entity is None)


@pytest.mark.parametrize("kind", FaultKind)
def test_fault_round_trips_through_json(kind: FaultKind) -> None:
    fault = Fault(kind, entity="orders", count=3, seconds=2.5, probability=0.5, seed=7, delay=1.0, description="why")
    again = Fault.from_json(fault.to_json())
    assert (again.strikes, again.count, again.delay) == (fault.strikes, 3, 1.0)
    assert again.to_json() == fault.to_json()


def test_null_field_means_omitted() -> None:
    assert Fault.from_json({"kind": "reset", "entity": None, "count": None, "on": None}) == Fault(FaultKind.RESET)


# ---- where it fires ----


@pytest.mark.parametrize(
    ("path", "covered"),
    [
        ("orders", True),
        ("Orders", True),
        ("orders/$DeadLetterQueue", True),
        ("orders/Subscriptions/all", True),
        ("orders2", False),
        ("my/orders", False),
        (None, False),
    ],
)
def test_entity_fault_covers_the_entity_and_its_sub_entities(path: str | None, covered: bool) -> None:
    assert Fault(FaultKind.RESET, entity="orders").covers(path) is covered
    assert Fault(FaultKind.RESET).covers(path)


def test_fault_strikes_only_its_fault_points() -> None:
    faults = Faults()
    active = faults.add(Fault(FaultKind.REJECT, on=frozenset({SEND})))
    assert faults.strike(FaultPoint.MANAGEMENT, "orders").struck_by is None
    assert faults.strike(SEND, "orders").struck_by is active


def test_spared_kinds_do_not_strike() -> None:
    faults = Faults()
    faults.add(Fault(FaultKind.FILL))
    assert faults.strike(FaultPoint.MANAGEMENT, "orders", frozenset({FaultKind.FILL})).struck_by is None
    assert faults.strike(FaultPoint.MANAGEMENT, "orders").struck_by is not None


def test_slow_faults_add_up_and_combine_with_one_other_fault() -> None:
    faults = Faults()
    slow = [faults.add(Fault(FaultKind.SLOW, delay=delay)) for delay in (0.5, 0.25)]
    first, second = faults.add(Fault(FaultKind.REJECT)), faults.add(Fault(FaultKind.THROTTLE))
    strike = faults.strike(SEND, "orders")
    assert strike.delay == 0.75
    assert strike.struck_by is first
    assert [fault.fired for fault in (*slow, first, second)] == [1, 1, 1, 0]


# ---- how often and how long ----


def test_no_faults_means_inactive() -> None:
    faults = Faults()
    assert not faults.active
    assert fired(faults, 10) == 0


def test_count_limits_the_firings() -> None:
    faults = Faults()
    active = faults.add(Fault(FaultKind.REJECT, count=3))
    assert fired(faults, 10) == 3
    assert active.fired == 3
    assert list(faults) == []
    assert not faults.active


def test_seconds_limit_how_long_a_fault_is_in_force() -> None:
    now = Time()
    faults = Faults(now)
    active = faults.add(Fault(FaultKind.REJECT, seconds=5))
    assert faults.next_end() == 1005.0
    now.now += 4.9
    assert fired(faults, 2) == 2
    now.now += 0.2
    assert fired(faults, 2) == 0
    faults.expire()
    assert (active.ended, active.removed, active.fired) == (True, False, 2)


def test_probability_is_reproducible_by_seed() -> None:
    def pattern(seed: int) -> list[bool]:
        faults = Faults()
        faults.add(Fault(FaultKind.REJECT, probability=0.3, seed=seed))
        return [faults.strike(SEND, "orders").struck_by is not None for _ in range(400)]

    assert pattern(1) == pattern(1)
    assert pattern(1) != pattern(2)
    assert 80 < sum(pattern(1)) < 160


def test_count_seconds_and_probability_combine() -> None:
    now = Time()
    faults = Faults(now)
    faults.add(Fault(FaultKind.REJECT, probability=0.5, seed=1, count=4, seconds=60))
    assert fired(faults, 100) == 4


def test_removed_fault_stops_firing() -> None:
    faults = Faults()
    changes: list[Any] = []
    faults.on_change = changes.append
    active = faults.add(Fault(FaultKind.REJECT))
    other = faults.add(Fault(FaultKind.THROTTLE, entity="invoices"))
    assert faults.remove(active.id)
    assert not faults.remove(active.id)
    assert fired(faults, 2) == 0
    assert list(faults) == [other]
    faults.clear()
    assert not faults.active
    assert changes == [active, other, None, None]


def test_ended_fault_can_still_be_found() -> None:
    faults = Faults()
    active = faults.add(Fault(FaultKind.REJECT, count=1))
    fired(faults, 1)
    found = faults.find(active.id)
    assert found is active
    assert found.to_json() | {"fired": 1, "in_force": False, "kind": "reject", "count": 1} == found.to_json()
    assert faults.find(99) is None


def test_black_hole_stays_in_force_after_its_count() -> None:
    faults = Faults()
    active = faults.add(Fault(FaultKind.BLACKHOLE, count=1))
    assert fired(faults, 5) == 1
    assert list(faults) == [active]
    faults.clear()
    assert active.ended


def test_number_of_faults_is_bounded() -> None:
    faults = Faults()
    for _ in range(MAX_FAULTS):
        faults.add(Fault(FaultKind.REJECT))
    with pytest.raises(FaultError, match="at most 1000"):
        faults.add(Fault(FaultKind.REJECT))
    faults.clear()
    faults.add(Fault(FaultKind.REJECT))


def test_only_a_steady_fault_without_fault_points_stops_the_namespace() -> None:
    assert Fault(FaultKind.BLACKHOLE).stops_namespace
    assert Fault(FaultKind.BLACKHOLE, seconds=1).stops_namespace
    assert not Fault(FaultKind.BLACKHOLE, count=1).stops_namespace
    assert not Fault(FaultKind.BLACKHOLE, probability=0.5).stops_namespace
    assert not Fault(FaultKind.BLACKHOLE, entity="orders").stops_namespace
    assert not Fault(FaultKind.BLACKHOLE, on=frozenset({FaultPoint.CONNECT})).stops_namespace
    assert Fault(FaultKind.REFUSE, on=frozenset({FaultPoint.CONNECT})).stops_namespace


def test_every_kind_and_fault_point_has_a_wire_test_case() -> None:
    covered = {(case.fault.kind, case.operation) for case in CASES}
    possible = {(kind, operation) for kind, operations in CAN_STRIKE.items() for operation in operations}
    missing = {(kind, operation) for kind, operation in possible - covered if operation is not FaultPoint.CONNECT}
    # The SDK does not wait for an answer to these; other tests cover them.
    assert missing == {(FaultKind.BLACKHOLE, FaultPoint.RECEIVE), (FaultKind.BLACKHOLE, FaultPoint.SETTLE)}
