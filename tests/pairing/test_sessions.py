"""Sessions whose order is kept: once diverted, they stay so until none of their messages is left in the backlog."""

from __future__ import annotations

import pytest

from twinbus.pairing.sessions import DivertedSessions, Session

A = Session("orders", "a")
B = Session("orders", "b")


def divert(sessions: DivertedSessions, entity: str, session: str, queue: int) -> None:
    with sessions.diverting(entity, session, queue):
        pass


def fail(sessions: DivertedSessions, entity: str, session: str, queue: int) -> None:
    with pytest.raises(TimeoutError), sessions.diverting(entity, session, queue):
        raise TimeoutError


def test_a_session_is_sent_directly_until_one_of_its_messages_is_diverted() -> None:
    sessions = DivertedSessions()
    assert not sessions.is_diverted("orders", "a")
    divert(sessions, "orders", "a", 3)
    assert sessions.queue_of("orders", "a") == 3
    assert not sessions.is_diverted("orders", "b")
    assert not sessions.is_diverted("invoices", "a")


def test_the_spelling_of_the_path_does_not_matter() -> None:
    sessions = DivertedSessions()
    divert(sessions, "Orders", "a", 0)
    assert sessions.queue_of("/orders", "a") == 0
    assert not sessions.is_diverted("orders", "A")


def test_a_session_counts_as_diverted_from_the_beginning_of_the_attempt() -> None:
    sessions = DivertedSessions()
    with sessions.diverting("orders", "a", 1):
        assert sessions.is_diverted("orders", "a")


def test_an_attempt_in_vain_keeps_the_session_in_the_backlog_and_leaves_the_queue_open() -> None:
    sessions = DivertedSessions()
    fail(sessions, *A, 1)
    assert sessions.is_diverted(*A)  # it may be there after all
    assert sessions.queue_of(*A) is None
    assert sessions.queues() == [1]


def test_where_all_attempts_were_in_vain_the_next_one_may_go_elsewhere() -> None:
    sessions = DivertedSessions()
    fail(sessions, *A, 0)
    divert(sessions, *A, 2)
    assert sessions.queue_of(*A) == 2


def test_a_look_that_finds_none_of_its_messages_releases_a_session() -> None:
    sessions = DivertedSessions()
    for session in (A, B):
        divert(sessions, *session, 1)
    assert sessions.end_scan(sessions.begin_scan(1), {B}) == [A]
    assert not sessions.is_diverted(*A)
    assert sessions.queue_of(*B) == 1


def test_a_look_into_another_queue_releases_nothing() -> None:
    sessions = DivertedSessions()
    divert(sessions, *A, 1)
    assert sessions.end_scan(sessions.begin_scan(0), ()) == []
    assert sessions.queue_of(*A) == 1


def test_a_message_that_was_sent_since_the_look_began_keeps_the_session() -> None:
    sessions = DivertedSessions()
    divert(sessions, *A, 1)
    scan = sessions.begin_scan(1)
    divert(sessions, *A, 1)
    assert sessions.end_scan(scan, ()) == []
    assert sessions.end_scan(sessions.begin_scan(1), ()) == [A]


def test_a_message_that_is_on_its_way_to_the_queue_keeps_the_session() -> None:
    sessions = DivertedSessions()
    with sessions.diverting("orders", "a", 1):
        assert sessions.end_scan(sessions.begin_scan(1), ()) == []
        scan = sessions.begin_scan(1)
    # It may have arrived after the look.
    assert sessions.end_scan(scan, ()) == []
    assert sessions.end_scan(sessions.begin_scan(1), ()) == [A]


def test_a_session_in_two_queues_is_released_when_both_are_without_it() -> None:
    sessions = DivertedSessions()
    fail(sessions, *A, 1)
    divert(sessions, *A, 2)
    assert sessions.queue_of(*A) == 2
    assert sessions.queues() == [1, 2]
    assert sessions.end_scan(sessions.begin_scan(1), ()) == []
    assert sessions.end_scan(sessions.begin_scan(2), ()) == [A]


def test_a_session_goes_on_to_where_its_last_message_was_sent_whatever_a_late_look_finds_elsewhere() -> None:
    sessions = DivertedSessions()
    fail(sessions, *A, 0)  # its acknowledgement was lost: a copy lies there
    divert(sessions, *A, 2)
    sessions.found(*A, 2, stored_at=20.0)
    sessions.found(*A, 0, stored_at=10.0)
    sessions.found(*A, 1, stored_at=30.0)  # an earlier process left it there
    assert sessions.queue_of(*A) == 2
    assert sessions.queues() == [0, 1, 2]


def test_of_the_queues_in_which_a_look_finds_a_session_the_one_with_its_newest_message_is_followed() -> None:
    for order in ([1, 2], [2, 1]):
        sessions = DivertedSessions()
        for queue in order:
            sessions.found(*A, queue, stored_at=10.0 * queue)
        assert sessions.queue_of(*A) == 2
    assert sessions.end_scan(sessions.begin_scan(2), ()) == []
    assert sessions.queue_of(*A) == 1


def test_a_look_is_over_as_soon_as_it_cannot_release_anything() -> None:
    sessions = DivertedSessions()
    divert(sessions, *A, 1)
    scan = sessions.begin_scan(1)
    assert sessions.is_awaited(scan, ())
    assert not sessions.is_awaited(scan, {A})


def test_only_the_queues_of_entities_that_are_back_are_looked_through() -> None:
    sessions = DivertedSessions()
    divert(sessions, "orders", "a", 1)
    divert(sessions, "invoices", "a", 2)
    assert sessions.queues(["Invoices"]) == [2]
    assert sessions.queues([]) == []
