"""Ordered sessions stay diverted until none of their messages is left in the backlog."""

from __future__ import annotations

import pytest

from twinbus.pairing.sending._sync.synchronization import Waiter
from twinbus.pairing.sending.diverted_sessions import FIRST_HOLD_PAUSE, HOLD_SECONDS, DivertedSessions, Session

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


def test_failed_attempt_keeps_the_session_diverted_and_the_queue_open() -> None:
    sessions = DivertedSessions()
    fail(sessions, *A, 1)
    assert sessions.is_diverted(*A)  # it may be there after all
    assert sessions.queue_of(*A) is None
    assert sessions.queues() == [1]


def test_after_only_failed_attempts_any_queue_is_allowed() -> None:
    sessions = DivertedSessions()
    fail(sessions, *A, 0)
    divert(sessions, *A, 2)
    assert sessions.queue_of(*A) == 2


def test_scan_without_its_messages_releases_a_session() -> None:
    sessions = DivertedSessions()
    for session in (A, B):
        divert(sessions, *session, 1)
    assert sessions.end_scan(sessions.begin_scan(1), {B}) == [A]
    assert not sessions.is_diverted(*A)
    assert sessions.queue_of(*B) == 1


def test_scan_of_another_queue_releases_nothing() -> None:
    sessions = DivertedSessions()
    divert(sessions, *A, 1)
    assert sessions.end_scan(sessions.begin_scan(0), ()) == []
    assert sessions.queue_of(*A) == 1


def test_message_sent_since_the_scan_began_keeps_the_session() -> None:
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


def test_session_in_two_queues_is_released_when_neither_has_it() -> None:
    sessions = DivertedSessions()
    fail(sessions, *A, 1)
    divert(sessions, *A, 2)
    assert sessions.queue_of(*A) == 2
    assert sessions.queues() == [1, 2]
    assert sessions.end_scan(sessions.begin_scan(1), ()) == []
    assert sessions.end_scan(sessions.begin_scan(2), ()) == [A]


def test_session_follows_its_last_sent_message_despite_a_late_scan() -> None:
    sessions = DivertedSessions()
    fail(sessions, *A, 0)  # its acknowledgement was lost: a copy lies there
    divert(sessions, *A, 2)
    sessions.record_found(*A, 2, stored_at=20.0)
    sessions.record_found(*A, 0, stored_at=10.0)
    sessions.record_found(*A, 1, stored_at=30.0)  # an earlier process left it there
    assert sessions.queue_of(*A) == 2
    assert sessions.queues() == [0, 1, 2]


def test_session_follows_the_queue_with_its_newest_message() -> None:
    for order in ([1, 2], [2, 1]):
        sessions = DivertedSessions()
        for queue in order:
            sessions.record_found(*A, queue, stored_at=10.0 * queue)
        assert sessions.queue_of(*A) == 2
    assert sessions.end_scan(sessions.begin_scan(2), ()) == []
    assert sessions.queue_of(*A) == 1


def test_scan_ends_once_it_cannot_release_anything() -> None:
    sessions = DivertedSessions()
    divert(sessions, *A, 1)
    scan = sessions.begin_scan(1)
    assert sessions.is_awaited(scan, ())
    assert not sessions.is_awaited(scan, {A})


def test_only_queues_of_recovered_entities_are_scanned() -> None:
    sessions = DivertedSessions()
    divert(sessions, "orders", "a", 1)
    divert(sessions, "invoices", "a", 2)
    assert sessions.queues(["Invoices"]) == [2]
    assert sessions.queues([]) == []


def test_failed_holds_are_followed_by_growing_bounded_pauses() -> None:
    sessions = DivertedSessions()
    waiter: Waiter[bool] = Waiter()
    divert(sessions, *A, 0)

    def hold(began: float, seconds: float) -> bool:
        if not sessions.hold(A, waiter, began):
            return False
        sessions.end_hold(A, waiter, began, began + seconds, is_released=False)
        return True

    # Impatient callers: each is held, until that took as long as one patient caller is held.
    assert [hold(began, 1.0) for began in (0.0, 1.0, 2.0, 3.0, 4.0)] == [True] * 5
    assert not hold(5.0 + FIRST_HOLD_PAUSE - 0.01, 1.0)
    assert hold(5.0 + FIRST_HOLD_PAUSE, HOLD_SECONDS)
    assert not hold(10.0 + FIRST_HOLD_PAUSE + 2 * FIRST_HOLD_PAUSE - 0.01, 1.0)
    assert hold(10.0 + FIRST_HOLD_PAUSE + 2 * FIRST_HOLD_PAUSE, 1.0)
