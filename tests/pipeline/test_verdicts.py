"""The rule for every word of a verdict on Spark: each at a queue of its own, all in one ledger."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.reconciling import (
    DAY,
    HOUR,
    QUEUE,
    SECOND,
    Reconciled,
    backlog,
    diverted,
    moved,
    received,
    row,
    run,
    sent,
    write,
)

from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

UNKNOWN, FAILED = Outcome.UNKNOWN, Outcome.FAILED
#: Later than anybody's patience.
LATE = 3 * HOUR


def went_on(path: str) -> list[Operation]:
    """The receivers of a path have reported from the beginning, and gone on for long."""
    early, late = f"early at {path}", f"late at {path}"
    return [
        *(sent(path, early, -SECOND), *received(path, early, 998, -SECOND)),
        *(sent(path, late, LATE - SECOND), *received(path, late, 999, LATE)),
    ]


def histories() -> list[Operation]:
    topic, subscriptions = "news", ["news/Subscriptions/all", "news/Subscriptions/some"]
    scheduled = row(OperationKind.SCHEDULE, Stage.DIRECT, "planned", "p1", 0, destination="planned")
    neither = {"namespace": NamespaceRole.NEITHER, "outcome": FAILED, "count": 9}
    return [
        # One attempt without an answer, then one with; the receiver got one of them, twice under one number.
        sent("once", "o1", 0, UNKNOWN),
        sent("once", "o1", 1),
        *received("once", "o1", 5),
        *received("once", "o1", 5, 2 * SECOND),
        # Both attempts arrived.
        sent("twice", "t1", 0, UNKNOWN),
        sent("twice", "t1", 1),
        *received("twice", "t1", 5),
        *received("twice", "t1", 6),
        *received("twice", "t1", 8),
        # The sender was told no, and it arrived all the same.
        sent("yet", "y1", 0, UNKNOWN),
        *received("yet", "y1", 1),
        # Accepted, and never seen, though others were, much later; and one of the last minutes.
        sent("gone", "g1"),
        sent("gone", "g2", LATE - 2 * SECOND),
        *went_on("gone"),
        # It arrived without having been sent.
        *received("unsent", "n1", 1),
        # The sender of these was told that they failed: nothing is promised.
        sent("failed", "f1", 0, FAILED),
        sent("failed", "f2", 0, UNKNOWN),
        # Diverted: moved, not yet moved, dead-lettered, tried to be moved.
        *(diverted("home", f"h{number}") for number in range(1, 5)),
        *moved("home", "h1"),
        backlog(OperationKind.RECEIVE, "home", "h3"),
        backlog(OperationKind.DEAD_LETTER, "home", "h3", 1),
        *moved("home", "h4", 0, UNKNOWN),
        # Moved twice: the acknowledgement of the first move was lost.
        diverted("again", "a1"),
        *moved("again", "a1", 0, UNKNOWN),
        *moved("again", "a1", SECOND),
        *moved("again", "a1", 2 * SECOND),
        # The sender's row is missing, but the message lay in the backlog.
        *moved("rowless", "r1"),
        # Completed without a move.
        diverted("broken", "b1"),
        backlog(OperationKind.COMPLETE, "broken", "b1", 1),
        # A topic: once at each subscription, at one only, twice at one.
        *(sent(topic, f"s{number}") for number in range(1, 4)),
        *(one for path in subscriptions for one in received(path, "s1", 1)),
        *received(subscriptions[0], "s2", 2),
        *received(subscriptions[0], "s3", 3),
        *received(subscriptions[0], "s3", 4),
        *received(subscriptions[1], "s3", 3),
        # Other letters, the same queue; and what comes from the dead letters has arrived before.
        sent("Letters", "l1"),
        *received("LETTERS", "l1", 1),
        *received("letters/$DeadLetterQueue", "l1", 2),
        # Receivers began to record only later.
        sent("begun", "e1"),
        *received("begun", "e2", 2, HOUR),
        sent("begun", "e2", HOUR - SECOND),
        # Scheduled for somewhen.
        scheduled,
        *went_on("planned"),
        row(OperationKind.CANCEL, Stage.DIRECT, "planned", None, 5),
        # One id at two queues is two messages.
        sent("left", "same"),
        sent("right", "same"),
        *received("left", "same", 1),
        *received("right", "same", 1),
        # What is said of no message.
        *received("once", None, 77),
        row(OperationKind.PING, Stage.PING, "once", None, 0),
        row(OperationKind.DROPPED, Stage.LEDGER, "", None, 0, **neither),
        row(OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, "once", None, 0, outcome=Outcome.EMPTY, count=0),
        backlog(OperationKind.RENEW, "home", "h2"),
    ]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    # Two ids with one key are two messages.
    shared = [sent("keys", "k1"), sent("keys", "k2", 1), *received("keys", "k1", 1), *received("keys", "k2", 2)]
    write(folder, [*histories(), *shared], keys={"k1": 42, "k2": 42})
    return folder


@pytest.fixture(scope="module")
def found(spark: SparkSession, ledger: Path) -> Reconciled:
    return run(spark, ledger)


@pytest.fixture(scope="module")
def drained(spark: SparkSession, ledger: Path) -> Reconciled:
    return run(spark, ledger, drained=True)


OK = {"attempted": 1, "acknowledged": 1, "ok": 1}


def test_a_redelivery_is_no_duplicate_and_a_retry_no_second_message(found: Reconciled) -> None:
    assert found.words("once") == OK
    assert found.of("o1") == []


def test_a_message_that_arrived_under_several_numbers_is_duplicated(found: Reconciled) -> None:
    assert found.words("twice") == {**OK, "duplicated": 1}
    [anomaly] = found.of("t1")
    assert (anomaly["word"], anomaly["sends"], anomaly["moves"], anomaly["arrivals"]) == ("duplicated", 2, 0, 3)
    assert anomaly["last_time"] - anomaly["first_time"] == timedelta(seconds=1)
    assert anomaly["evidence"] == "receivers"


def test_what_arrived_though_the_sender_was_not_told_so_is_recovered(found: Reconciled) -> None:
    assert found.words("yet") == {"attempted": 1, "ok": 1, "recovered": 1}
    assert found.ids("recovered", "yet") == ["y1"]


def test_what_was_accepted_and_not_seen_is_lost_when_its_receivers_went_on_for_long(found: Reconciled) -> None:
    assert found.words("gone") == {"attempted": 4, "acknowledged": 4, "ok": 2, "lost": 1, "in_flight": 1}
    assert (found.ids("lost", "gone"), found.ids("in_flight", "gone")) == (["g1"], ["g2"])


def test_what_nobody_sent_is_unexpected(found: Reconciled) -> None:
    assert found.words("unsent") == {"unexpected": 1}
    assert found.ids("unexpected") == ["n1"]


def test_nothing_is_promised_of_what_was_not_accepted(found: Reconciled) -> None:
    assert found.words("failed") == {"attempted": 2, "unconfirmed": 2}
    assert found.of("f1") == found.of("f2") == []


def test_a_diverted_message_is_in_flight_until_it_is_moved_and_a_dead_letter_is_apart(found: Reconciled) -> None:
    expected = {"attempted": 4, "acknowledged": 4, "ok": 1, "in_flight": 2, "dead_lettered": 1}
    assert found.words("home") == expected
    assert (found.ids("in_flight", "home"), found.ids("dead_lettered")) == (["h2", "h4"], ["h3"])


def test_two_moves_that_were_accepted_are_a_duplicate_by_the_namespaces_word(found: Reconciled) -> None:
    assert found.words("again") == {**OK, "duplicated": 1}
    [anomaly] = found.of("a1")
    assert (anomaly["sends"], anomaly["moves"], anomaly["arrivals"], anomaly["evidence"]) == (1, 2, 2, "namespace")


def test_a_message_of_the_backlog_was_attempted_whoever_put_it_there(found: Reconciled) -> None:
    assert found.words("rowless") == {"attempted": 1, "ok": 1, "recovered": 1}


def test_what_was_completed_without_a_move_is_lost(found: Reconciled) -> None:
    assert found.words("broken") == {"attempted": 1, "acknowledged": 1, "lost": 1}


def test_a_topics_message_arrives_once_at_each_subscription(found: Reconciled) -> None:
    assert found.words("news") == {"attempted": 3, "acknowledged": 3, "ok": 3, "duplicated": 1}
    [anomaly] = [one for one in found.rows if one["destination"] == "news"]
    assert (anomaly["message_id"], anomaly["arrivals"]) == ("s3", 2)
    assert found.at_subscriptions("news") == {"news/Subscriptions/all": 3, "news/Subscriptions/some": 2}


def test_letters_of_paths_do_not_matter_and_dead_letters_do_not_arrive_again(found: Reconciled) -> None:
    assert found.words("LETTERS") == OK


def test_what_was_accepted_before_receivers_recorded_is_judged_by_the_namespaces_word(found: Reconciled) -> None:
    assert found.words("begun") == {"attempted": 2, "acknowledged": 2, "ok": 2}


def test_a_scheduled_message_may_still_come(found: Reconciled) -> None:
    assert found.ids("in_flight", "planned") == ["p1"]


def test_one_id_at_two_queues_is_two_messages(found: Reconciled) -> None:
    assert found.words("left") == found.words("right") == OK


def test_two_ids_that_share_a_key_are_two_messages(found: Reconciled) -> None:
    assert found.words("keys") == {"attempted": 2, "acknowledged": 2, "ok": 2}


def test_the_evidence_is_named(found: Reconciled) -> None:
    for name in ("once", "news", "begun", "LETTERS"):
        assert found.evidence(name) == {"receivers"}
    for name in ("home", "again", "rowless", "failed"):
        assert found.evidence(name) == {"namespace"}
    assert [one["before_receivers"] for one in found.verdicts if one["destination"] == "begun"] == [1]


def test_no_row_is_about_the_backlog_queue_as_a_destination(found: Reconciled) -> None:
    assert QUEUE not in {one["destination"] for one in found.verdicts}


def test_what_has_not_arrived_is_lost_once_everything_is_known_to_be_drained(drained: Reconciled) -> None:
    assert drained.count("in_flight") == 0
    assert drained.ids("lost") == ["b1", "g1", "g2", "h2", "h4", "p1"]
    assert drained.ids("dead_lettered") == ["h3"]


def test_a_ledger_without_messages_has_nothing_to_say(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "ledger", [row(OperationKind.POLL, Stage.POLL, QUEUE, None, 0, outcome=Outcome.EMPTY)])
    quiet = run(spark, tmp_path / "ledger")
    assert (quiet.verdicts, quiet.arrivals, quiet.rows) == ([], [], [])


def test_days_are_joined(spark: SparkSession, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    topic, path = "news", "news/subscriptions/all"
    write(
        ledger,
        [
            # Sent on one day and received on another; and again under the same number; and a copy, days later.
            sent("orders", "m1"),
            *received("orders", "m1", 1, DAY),
            sent("orders", "m2"),
            *received("orders", "m2", 2),
            *received("orders", "m2", 2, DAY),
            sent("orders", "m3"),
            *received("orders", "m3", 3),
            *received("orders", "m3", 4, 3 * DAY),
            # Settled on two days, for it was sent twice.
            sent("orders", "m4"),
            *received("orders", "m4", 5),
            sent("orders", "m4", 3 * DAY),
            *received("orders", "m4", 6, 3 * DAY + SECOND),
            # The same, by the namespace's word.
            sent("plain", "p1"),
            sent("plain", "p1", 3 * DAY),
            diverted("plain", "p2"),
            *moved("plain", "p2", DAY),
            sent(topic, "t1"),
            *received(path, "t1", 1),
            *received(path, "t1", 1, DAY),
            sent(topic, "t2"),
            *received(path, "t2", 2),
            *received(path, "t2", 3, 2 * DAY),
        ],
    )
    found = run(spark, ledger)
    assert found.words("orders") == {"attempted": 4, "acknowledged": 4, "ok": 4, "duplicated": 2}
    assert found.ids("duplicated") == ["m3", "m4", "p1", "t2"]
    assert found.words("plain") == {"attempted": 2, "acknowledged": 2, "ok": 2, "duplicated": 1}
    assert (found.words(topic)["ok"], found.words(topic)["duplicated"]) == (2, 1)
    assert found.at_subscriptions(topic) == {path: 2}
    [m4] = found.of("m4")
    assert (m4["sends"], m4["arrivals"]) == (2, 2)
    assert m4["last_time"] - m4["first_time"] == timedelta(days=3, seconds=1)


def late(days: int) -> int:
    return days * DAY


def test_operations_beyond_the_horizon_are_listed_and_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    write(
        tmp_path,
        [
            # Lost within its horizon, and arrived after it.
            sent("orders", "m1"),
            *went_on("orders"),
            *received("orders", "m1", 7, late(20)),
            # Sent and received, and received again under another number, in steps that each reach the next.
            sent("orders", "m2"),
            *received("orders", "m2", 8),
            *received("orders", "m2", 9, late(10)),
            *received("orders", "m2", 10, late(18)),
            # The same id is used again much later: another message.
            sent("orders", "m3"),
            *received("orders", "m3", 11),
            sent("orders", "m3", late(20)),
            *received("orders", "m3", 12, late(20) + SECOND),
        ],
    )
    found = run(spark, tmp_path)
    assert found.ids("lost") == ["m1"]
    assert sorted(found.ids("late")) == ["m1", "m2"]
    assert found.ids("duplicated") == ["m2"]
    assert found.ids("unexpected") == []
    assert found.words("orders")["ok"] == 5


def test_the_clock_of_one_receiver_cannot_make_messages_lost(spark: SparkSession, tmp_path: Path) -> None:
    """The sender's clock is right, that of the receiver two hours fast: nothing proves that an hour has passed."""
    fast = 2 * HOUR
    arrival = row(
        OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, "orders", "m1", fast, client="receiver", sequence_number=1
    )
    early = row(
        OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, "orders", "m0", -HOUR, client="receiver", sequence_number=0
    )
    sends = [sent("orders", f"m{number}", at) for number, at in enumerate((-2 * HOUR, -SECOND, 0, SECOND))]
    write(tmp_path, [*sends, early, arrival])
    found = run(spark, tmp_path)
    assert found.ids("lost") == []
    assert found.ids("in_flight") == ["m2", "m3"]
    # As soon as another client has reached that time, too, it has passed.
    poll = row(OperationKind.POLL, Stage.POLL, QUEUE, None, fast, client="syphon", outcome=Outcome.EMPTY)
    write(tmp_path, [poll], number=2)
    assert run(spark, tmp_path).ids("lost") == ["m2", "m3"]


def test_a_clock_skew_is_tolerated(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [*went_on("orders"), sent("orders", "m1", LATE - HOUR - 60 * SECOND)])
    assert run(spark, tmp_path).ids("in_flight") == ["m1"]
    assert run(spark, tmp_path, clock_skew=timedelta(seconds=30)).ids("lost") == ["m1"]
