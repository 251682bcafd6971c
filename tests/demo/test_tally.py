"""The demo's own count of what was sent and received."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinbus.demo.tally import Tally, Verdict
from twinbus.demo.traffic import Destination

PATHS = {"orders": ("orders",), "events": ("events/a", "events/b")}


def test_acknowledged_and_received_message_is_ok() -> None:
    tally = Tally(PATHS)
    tally.attempt("orders", "1")
    tally.acknowledge("orders", "1", "primary")
    assert tally.missing == 1
    tally.receive("orders", "1", 7)
    assert tally.missing == 0
    assert tally.verdict() == Verdict(attempted=1, acknowledged=1, ok=1, lost=0, unexpected=0, duplicated=0)


def test_topic_message_must_reach_every_subscription() -> None:
    tally = Tally(PATHS)
    tally.attempt("events", "1")
    tally.acknowledge("events", "1", "backlog")
    tally.receive("events/a", "1", 1)
    assert (tally.missing, tally.verdict().lost, tally.received("events")) == (1, 1, 0)
    tally.receive("events/b", "1", 1)
    assert (tally.missing, tally.verdict().lost, tally.received("events")) == (0, 0, 1)


def test_redelivery_is_no_duplicate_but_a_second_copy_is() -> None:
    tally = Tally(PATHS)
    tally.attempt("orders", "1")
    tally.receive("orders", "1", 7)
    tally.receive("orders", "1", 7)
    assert tally.verdict().duplicated == 0
    tally.receive("orders", "1", 8)
    assert tally.verdict().duplicated == 1


def test_message_that_was_not_sent_is_unexpected() -> None:
    tally = Tally(PATHS)
    tally.receive("events/a", "1", 1)
    assert tally.verdict() == Verdict(0, 0, 0, 0, 1, 0)


def test_unacknowledged_attempt_may_arrive_or_not() -> None:
    tally = Tally(PATHS)
    tally.attempt("orders", "1")
    tally.attempt("orders", "2")
    tally.receive("orders", "1", 1)
    assert tally.verdict() == Verdict(attempted=2, acknowledged=0, ok=1, lost=0, unexpected=0, duplicated=0)


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.lists(st.integers(0, 40)))
def test_verdict_counts_match_their_definitions(told: set[int], tried: set[int], came: list[int]) -> None:
    tally = Tally({"q": ("q",)})
    for name in tried | told:
        tally.attempt("q", str(name))
    for name in told:
        tally.acknowledge("q", str(name), "primary")
    for number, name in enumerate(came):
        tally.receive("q", str(name), number)
    found = tally.verdict()
    assert found.lost == len(told - set(came))
    assert found.ok == len((told | tried) & set(came))
    assert found.unexpected == len(set(came) - tried - told)
    assert found.duplicated == len({name for name in came if came.count(name) > 1})


def test_paths_of_a_destination_are_its_queue_or_its_subscriptions() -> None:
    assert Destination("orders").receiving_paths == ("orders",)
    assert Destination("events", ("a", "b")).receiving_paths == ("events/a", "events/b")
