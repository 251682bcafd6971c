"""Tests of the checker: step senders were acknowledged against step receivers got."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proof.checker import NotDrainedError, check
from proof.history import History, Id

ORDER_1 = Id("orders", "1")


def _sent(history: History, message_id: str = "1", *, is_acknowledged: bool = True, **more: object) -> None:
    history.attempt("orders", message_id, **more)  # type: ignore[arg-type]
    if is_acknowledged:
        history.acknowledge("orders", message_id, "backlog", at=0.0)


def test_acknowledged_and_arrived_is_ok() -> None:
    history = History()
    _sent(history)
    history.receive("orders", "1", 7)
    history.drained()
    verdict = check(history)
    assert (verdict.attempted, verdict.acknowledged, verdict.ok) == ((ORDER_1,), (ORDER_1,), (ORDER_1,))
    assert verdict.is_clean
    assert verdict.counts() == Counter(attempted=1, acknowledged=1, ok=1) | dict.fromkeys(
        set(verdict.counts()) - {"attempted", "acknowledged", "ok"}, 0
    )


def test_acknowledged_but_not_arrived_is_lost() -> None:
    history = History()
    _sent(history)
    history.drained()
    verdict = check(history)
    assert verdict.lost == (ORDER_1,)
    assert not verdict.is_safe
    assert "lost: orders:1" in verdict.describe()


def test_message_deleted_with_its_queue_is_neither_lost_nor_ok() -> None:
    history = History()
    _sent(history, "1")
    _sent(history, "2")
    history.delete("orders", "1")
    history.drained()
    verdict = check(history)
    assert (verdict.deleted, verdict.lost, verdict.ok) == ((ORDER_1,), (Id("orders", "2"),), ())


@pytest.mark.parametrize("is_deleted", [False, True])
def test_message_of_a_deleted_queue_has_no_place_in_its_session(is_deleted: bool) -> None:
    history = History()
    _sent(history, "1", session="a")
    if is_deleted:
        history.delete("orders", "1")
    _sent(history, "2", session="a")
    history.receive("orders", "2", 1)
    history.store("orders", "1")  # by a syphon that had received it
    history.receive("orders", "1", 2)
    history.drained()
    assert check(history).order_violations == (() if is_deleted else (ORDER_1,))


def test_copy_that_was_stored_after_the_deletion_can_be_lost() -> None:
    history = History()
    _sent(history)
    history.delete("orders", "1")
    history.store("orders", "1")
    history.drained()
    verdict = check(history)
    assert (verdict.deleted, verdict.lost) == ((), (ORDER_1,))


def test_message_that_arrived_before_its_copy_was_deleted_is_ok() -> None:
    history = History()
    _sent(history)
    history.receive("orders", "1", 7)
    history.delete("orders", "1")
    history.drained()
    verdict = check(history)
    assert (verdict.deleted, verdict.ok) == ((), (ORDER_1,))


def test_arrival_at_another_entity_is_unexpected() -> None:
    history = History()
    _sent(history)
    history.receive("orders", "1", 1)
    history.receive("bills", "1", 1)
    history.drained()
    assert check(history).unexpected == (Id("bills", "1"),)


def test_arrived_without_acknowledgement_is_recovered() -> None:
    history = History()
    _sent(history, is_acknowledged=False)
    history.receive("orders", "1", 1)
    history.drained()
    verdict = check(history)
    assert verdict.recovered == (ORDER_1,)
    assert verdict.is_clean


def test_redelivery_with_same_sequence_number_is_not_a_duplicate() -> None:
    history = History()
    _sent(history)
    history.receive("orders", "1", 1)
    history.receive("orders", "1", 1)
    history.drained()
    assert check(history).duplicated == ()
    history.receive("orders", "1", 2)
    history.drained()
    assert check(history).duplicated == (ORDER_1,)


def test_lost_answer_explains_a_duplicate() -> None:
    history = History()
    _sent(history)
    history.receive("orders", "1", 1)
    history.receive("orders", "1", 2)
    history.drained()
    assert check(history).unexplained == (ORDER_1,)
    history.doubt("orders", "1")
    assert check(history).unexplained == ()


def test_topic_message_must_arrive_in_every_subscription() -> None:
    history = History({"events": ("events/a", "events/b")})
    history.attempt("events", "1")
    history.acknowledge("events", "1")
    history.receive("events/a", "1", 1)
    assert history.missing() == 1
    history.drained()
    assert check(history).lost == (Id("events", "1"),)
    history.receive("events/b", "1", 1)
    history.drained()
    assert check(history).is_clean


@pytest.mark.parametrize("left", [None, {"backlog/0": 1}])
def test_undrained_history_is_refused(left: dict[str, int] | None) -> None:
    history = History()
    _sent(history)
    if left is not None:
        history.drained(left)
    with pytest.raises(NotDrainedError, match="no end" if left is None else "1 in backlog/0"):
        check(history)


def test_entry_after_drain_reopens_the_history() -> None:
    history = History()
    history.drained()
    _sent(history)
    with pytest.raises(NotDrainedError):
        check(history)


def test_dead_letter_is_not_lost_only_if_it_had_expired() -> None:
    history = History()
    _sent(history, time_to_live=10.0, at=100.0)
    history.dead_letter("orders", "1", "ExpiredInBacklog", at=105.0)
    history.drained()
    assert check(history).lost == (ORDER_1,)
    history.dead_letter("orders", "1", "ExpiredInBacklog", at=110.0)
    history.drained()
    verdict = check(history)
    assert (verdict.lost, verdict.dead_lettered) == ((), (ORDER_1,))


def test_dead_letter_without_time_to_live_is_lost() -> None:
    history = History()
    _sent(history)
    history.dead_letter("orders", "1", "RefusedByDestination", at=1e9)
    history.drained()
    assert check(history).lost == (ORDER_1,)


@pytest.mark.parametrize(("expires_at", "outlives"), [(10.0, False), (10.2, True), (math.inf, True), (None, False)])
def test_message_that_outlives_its_time_to_live_is_reported(expires_at: float | None, outlives: bool) -> None:
    history = History()
    _sent(history, time_to_live=10.0, at=0.0)
    history.receive("orders", "1", 1, expires_at=expires_at)
    history.drained()
    assert bool(check(history).outlived) is outlives
    assert not check(history, tolerance=math.inf).outlived


@pytest.mark.parametrize(("session", "content"), [("b", "x"), (None, "x"), ("a", "y")])
def test_changed_session_or_content_is_altered(session: str | None, content: str) -> None:
    history = History()
    _sent(history, session="a", content="x")
    history.receive("orders", "1", 1, session=session, content=content)
    history.drained()
    assert check(history).altered == (ORDER_1,)


def test_arrival_behind_a_later_send_of_its_session_is_out_of_order() -> None:
    history = History()
    _sent(history, "1", session="a")
    _sent(history, "2", session="a")
    history.receive("orders", "2", 1, session="a")
    history.receive("orders", "1", 2, session="a")
    history.drained()
    assert check(history).order_violations == (ORDER_1,)


def test_concurrent_sends_have_no_order() -> None:
    history = History()
    history.attempt("orders", "1", session="a")
    history.attempt("orders", "2", session="a")
    history.acknowledge("orders", "1")
    history.acknowledge("orders", "2")
    history.receive("orders", "2", 1, session="a")
    history.receive("orders", "1", 2, session="a")
    history.drained()
    assert check(history).is_clean


def test_different_sessions_have_no_order() -> None:
    history = History()
    _sent(history, "1", session="a")
    _sent(history, "2", session="b")
    history.receive("orders", "2", 1, session="b")
    history.receive("orders", "1", 2, session="a")
    history.drained()
    assert check(history).is_clean


STEPS = st.lists(st.tuples(st.sampled_from(["attempt", "acknowledge", "receive"]), st.integers(0, 5)), max_size=40)


@given(STEPS)
def test_categories_match_their_definitions(steps: list[tuple[str, int]]) -> None:
    history, attempted, acknowledged, arrived = History(), set(), set(), Counter[str]()
    for moment, (step, number) in enumerate(steps):
        name = str(number)
        if step == "attempt":
            history.attempt("orders", name)
            attempted.add(name)
        elif step == "acknowledge" and name in attempted:
            history.acknowledge("orders", name)
            acknowledged.add(name)
        elif step == "receive":
            history.receive("orders", name, moment)
            arrived[name] += 1
    history.drained()
    verdict = check(history)

    def names(ids: tuple[Id, ...]) -> set[str]:
        return {message.message_id for message in ids}

    assert names(verdict.attempted) == attempted
    assert names(verdict.acknowledged) == acknowledged
    assert names(verdict.ok) == attempted & arrived.keys()
    assert names(verdict.lost) == acknowledged - arrived.keys()
    assert names(verdict.unexpected) == arrived.keys() - attempted
    assert names(verdict.recovered) == (attempted & arrived.keys()) - acknowledged
    assert names(verdict.duplicated) == {name for name, count in arrived.items() if count > 1} & attempted


@given(st.permutations(range(6)))
def test_order_violations_are_exactly_the_late_messages(order: list[int]) -> None:
    history = History()
    for number in range(6):
        _sent(history, str(number), session="a")
    for place, number in enumerate(order):
        history.receive("orders", str(number), place, session="a")
    history.drained()
    late = {str(number) for index, number in enumerate(order) if any(before > number for before in order[:index])}
    assert {message.message_id for message in check(history).order_violations} == late
