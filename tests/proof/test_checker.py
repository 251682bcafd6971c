"""The checker: what senders were told against what receivers got."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.proof.checker import NotDrainedError, check
from twinbus.proof.history import History, Id

ONE = Id("orders", "1")


def _sent(history: History, message_id: str = "1", *, is_acknowledged: bool = True, **more: object) -> None:
    history.attempt("orders", message_id, **more)  # type: ignore[arg-type]
    if is_acknowledged:
        history.acknowledge("orders", message_id, "backlog", at=0.0)


def test_what_was_told_and_came_is_ok() -> None:
    history = History()
    _sent(history)
    history.receive("orders", "1", 7)
    history.drained()
    verdict = check(history)
    assert (verdict.attempted, verdict.acknowledged, verdict.ok) == ((ONE,), (ONE,), (ONE,))
    assert verdict.is_clean
    assert verdict.counts() == Counter(attempted=1, acknowledged=1, ok=1) | dict.fromkeys(
        set(verdict.counts()) - {"attempted", "acknowledged", "ok"}, 0
    )


def test_what_was_told_and_did_not_come_is_lost() -> None:
    history = History()
    _sent(history)
    history.drained()
    verdict = check(history)
    assert verdict.lost == (ONE,)
    assert not verdict.is_safe
    assert "lost: orders:1" in verdict.describe()


def test_what_nobody_sent_is_unexpected_and_so_is_a_message_at_another_entity() -> None:
    history = History()
    _sent(history)
    history.receive("orders", "1", 1)
    history.receive("bills", "1", 1)
    history.drained()
    assert check(history).unexpected == (Id("bills", "1"),)


def test_what_came_though_its_sender_was_told_of_a_failure_is_recovered() -> None:
    history = History()
    _sent(history, is_acknowledged=False)
    history.receive("orders", "1", 1)
    history.drained()
    verdict = check(history)
    assert verdict.recovered == (ONE,)
    assert verdict.is_clean


def test_a_second_delivery_under_the_same_number_is_no_second_message() -> None:
    history = History()
    _sent(history)
    history.receive("orders", "1", 1)
    history.receive("orders", "1", 1)
    history.drained()
    assert check(history).duplicated == ()
    history.receive("orders", "1", 2)
    history.drained()
    assert check(history).duplicated == (ONE,)


def test_a_copy_is_explained_by_an_answer_that_was_lost() -> None:
    history = History()
    _sent(history)
    history.receive("orders", "1", 1)
    history.receive("orders", "1", 2)
    history.drained()
    assert check(history).unexplained == (ONE,)
    history.doubt("orders", "1")
    assert check(history).unexplained == ()


def test_a_message_of_a_topic_has_to_come_to_every_subscription() -> None:
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
def test_a_history_is_not_judged_before_everything_is_drained(left: dict[str, int] | None) -> None:
    history = History()
    _sent(history)
    if left is not None:
        history.drained(left)
    with pytest.raises(NotDrainedError, match="no end" if left is None else "1 in backlog/0"):
        check(history)


def test_whatever_is_told_after_the_drain_shows_that_it_was_none() -> None:
    history = History()
    history.drained()
    _sent(history)
    with pytest.raises(NotDrainedError):
        check(history)


def test_a_dead_letter_is_not_lost_if_its_time_was_over_and_only_then() -> None:
    history = History()
    _sent(history, time_to_live=10.0, at=100.0)
    history.dead_letter("orders", "1", "ExpiredInBacklog", at=105.0)
    history.drained()
    assert check(history).lost == (ONE,)
    history.dead_letter("orders", "1", "ExpiredInBacklog", at=110.0)
    history.drained()
    verdict = check(history)
    assert (verdict.lost, verdict.dead_lettered) == ((), (ONE,))


def test_a_dead_letter_that_should_have_lived_for_ever_is_lost() -> None:
    history = History()
    _sent(history)
    history.dead_letter("orders", "1", "RefusedByDestination", at=1e9)
    history.drained()
    assert check(history).lost == (ONE,)


@pytest.mark.parametrize(("expires_at", "outlives"), [(10.0, False), (10.2, True), (math.inf, True), (None, False)])
def test_a_message_must_not_live_longer_than_its_sender_allowed(expires_at: float | None, outlives: bool) -> None:
    history = History()
    _sent(history, time_to_live=10.0, at=0.0)
    history.receive("orders", "1", 1, expires_at=expires_at)
    history.drained()
    assert bool(check(history).outlived) is outlives
    assert not check(history, tolerance=math.inf).outlived


@pytest.mark.parametrize(("session", "content"), [("b", "x"), (None, "x"), ("a", "y")])
def test_what_comes_with_another_session_or_content_is_altered(session: str | None, content: str) -> None:
    history = History()
    _sent(history, session="a", content="x")
    history.receive("orders", "1", 1, session=session, content=content)
    history.drained()
    assert check(history).altered == (ONE,)


def test_a_message_that_comes_behind_one_begun_after_its_acknowledgement_is_out_of_order() -> None:
    history = History()
    _sent(history, "1", session="a")
    _sent(history, "2", session="a")
    history.receive("orders", "2", 1, session="a")
    history.receive("orders", "1", 2, session="a")
    history.drained()
    assert check(history).order_violations == (ONE,)


def test_messages_that_were_under_way_together_have_no_order() -> None:
    history = History()
    history.attempt("orders", "1", session="a")
    history.attempt("orders", "2", session="a")
    history.acknowledge("orders", "1")
    history.acknowledge("orders", "2")
    history.receive("orders", "2", 1, session="a")
    history.receive("orders", "1", 2, session="a")
    history.drained()
    assert check(history).is_clean


def test_sessions_have_no_order_among_each_other() -> None:
    history = History()
    _sent(history, "1", session="a")
    _sent(history, "2", session="b")
    history.receive("orders", "2", 1, session="b")
    history.receive("orders", "1", 2, session="a")
    history.drained()
    assert check(history).is_clean


STEPS = st.lists(st.tuples(st.sampled_from(["attempt", "acknowledge", "receive"]), st.integers(0, 5)), max_size=40)


@given(STEPS)
def test_every_word_holds_just_where_its_definition_says_so(steps: list[tuple[str, int]]) -> None:
    history, attempted, told, came = History(), set(), set(), Counter[str]()
    for moment, (what, number) in enumerate(steps):
        name = str(number)
        if what == "attempt":
            history.attempt("orders", name)
            attempted.add(name)
        elif what == "acknowledge" and name in attempted:
            history.acknowledge("orders", name)
            told.add(name)
        elif what == "receive":
            history.receive("orders", name, moment)
            came[name] += 1
    history.drained()
    verdict = check(history)

    def names(ids: tuple[Id, ...]) -> set[str]:
        return {one.message_id for one in ids}

    assert names(verdict.attempted) == attempted
    assert names(verdict.acknowledged) == told
    assert names(verdict.ok) == told & came.keys()
    assert names(verdict.lost) == told - came.keys()
    assert names(verdict.unexpected) == came.keys() - attempted
    assert names(verdict.recovered) == (attempted & came.keys()) - told
    assert names(verdict.duplicated) == {name for name, count in came.items() if count > 1} & attempted


@given(st.permutations(range(6)))
def test_messages_sent_one_after_the_other_are_in_order_if_and_only_if_they_come_so(order: list[int]) -> None:
    history = History()
    for number in range(6):
        _sent(history, str(number), session="a")
    for place, number in enumerate(order):
        history.receive("orders", str(number), place, session="a")
    history.drained()
    late = {str(one) for index, one in enumerate(order) if any(before > one for before in order[:index])}
    assert {one.message_id for one in check(history).order_violations} == late
