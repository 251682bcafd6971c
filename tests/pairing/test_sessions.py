"""Sessions whose order is kept: once diverted, they stay so until none of their messages is left in the backlog."""

from __future__ import annotations

from twinbus.pairing.sessions import DivertedSessions, Session

A = Session("orders", "a")
B = Session("orders", "b")


def test_a_session_is_sent_directly_until_one_of_its_messages_is_diverted() -> None:
    sessions = DivertedSessions()
    assert sessions.is_diverted("orders", "a") is None
    sessions.divert("orders", "a", 3)
    assert sessions.is_diverted("orders", "a") == 3
    assert sessions.is_diverted("orders", "b") is None
    assert sessions.is_diverted("invoices", "a") is None


def test_the_spelling_of_the_path_does_not_matter() -> None:
    sessions = DivertedSessions()
    sessions.divert("Orders", "a", 0)
    assert sessions.is_diverted("/orders", "a") == 0
    assert sessions.is_diverted("orders", "A") is None


def test_a_session_counts_as_diverted_from_the_beginning_of_the_attempt() -> None:
    sessions = DivertedSessions()
    with sessions.diverting("orders", ["a"], 1):
        assert sessions.is_diverted("orders", "a") == 1


def test_a_look_that_finds_none_of_its_messages_releases_a_session() -> None:
    sessions = DivertedSessions()
    for session in (A, B):
        sessions.divert(*session, 1)
    assert sessions.end_scan(sessions.begin_scan(1), {B}) == [A]
    assert sessions.is_diverted(*A) is None
    assert sessions.is_diverted(*B) == 1


def test_a_look_into_another_queue_releases_nothing() -> None:
    sessions = DivertedSessions()
    sessions.divert(*A, 1)
    assert sessions.end_scan(sessions.begin_scan(0), ()) == []
    assert sessions.is_diverted(*A) == 1


def test_a_message_that_was_sent_since_the_look_began_keeps_the_session() -> None:
    sessions = DivertedSessions()
    sessions.divert(*A, 1)
    scan = sessions.begin_scan(1)
    sessions.divert(*A, 1)
    assert sessions.end_scan(scan, ()) == []
    assert sessions.end_scan(sessions.begin_scan(1), ()) == [A]


def test_a_message_that_is_on_its_way_to_the_queue_keeps_the_session() -> None:
    sessions = DivertedSessions()
    with sessions.diverting("orders", ["a"], 1):
        assert sessions.end_scan(sessions.begin_scan(1), ()) == []
        scan = sessions.begin_scan(1)
    # It may have arrived after the look.
    assert sessions.end_scan(scan, ()) == []
    assert sessions.end_scan(sessions.begin_scan(1), ()) == [A]


def test_a_session_in_two_queues_is_released_when_both_are_without_it() -> None:
    sessions = DivertedSessions()
    sessions.divert(*A, 1)
    sessions.divert(*A, 2)
    assert sessions.is_diverted(*A) == 2
    assert sessions.queues() == [1, 2]
    assert sessions.end_scan(sessions.begin_scan(1), ()) == []
    assert sessions.end_scan(sessions.begin_scan(2), ()) == [A]


def test_a_look_is_over_as_soon_as_it_cannot_release_anything() -> None:
    sessions = DivertedSessions()
    sessions.divert(*A, 1)
    scan = sessions.begin_scan(1)
    assert sessions.is_awaited(scan, ())
    assert not sessions.is_awaited(scan, {A})


def test_only_the_queues_of_entities_that_are_back_are_looked_through() -> None:
    sessions = DivertedSessions()
    sessions.divert("orders", "a", 1)
    sessions.divert("invoices", "a", 2)
    assert sessions.queues(["Invoices"]) == [2]
    assert sessions.queues([]) == []
