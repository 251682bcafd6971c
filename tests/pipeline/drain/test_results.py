"""What slices add up to."""

from __future__ import annotations

from twinbus.spark.draining import task_words as words
from twinbus.spark.draining.drain_loop import DrainProgress
from twinbus.spark.draining.drain_progress import line_of, table_of
from twinbus.spark.draining.slice_results import Account, Figure, SliceResult
from twinbus.syphon.settlement import facts


def figure(outcome: str, count: int = 1, destination: str = "orders", detail: str | None = None) -> Figure:
    return Figure("backlog", destination, outcome, detail, count, count * 100, count * 1000)


def test_a_slice_is_finished_when_no_pump_was_cut_short() -> None:
    assert SliceResult.of([figure(words.FINISHED, 3)]).is_finished
    assert not SliceResult.of([figure(words.FINISHED, 3), figure(words.UNFINISHED)]).is_finished


def test_what_is_deferred_is_what_the_last_slice_says_and_what_was_moved_is_the_sum() -> None:
    account = Account()
    account.add(
        SliceResult.of([figure(facts.MOVED, 5), figure(words.LEFT_DEFERRED, 4, "bills"), figure(facts.REFUSED, 2)])
    )
    account.add(SliceResult.of([figure(facts.MOVED, 7), figure(words.LEFT_DEFERRED, 1, "bills")]))
    found = account.report(1.5, ["gone"]).to_json()
    assert found["destinations"] == {
        "orders": {"moved": 12, "expired": 0, "poison": 2, "deferred": 0},
        "bills": {"moved": 0, "expired": 0, "poison": 0, "deferred": 1},
    }
    assert {name: found[name] for name in ("moved", "deferred", "slices", "bytes", "oldest_seconds", "missing")} == {
        "moved": 12,
        "deferred": 1,
        "slices": 2,
        "bytes": 1200,
        "oldest_seconds": 7.0,
        "missing": ["gone"],
    }


def test_messages_that_were_given_back_bring_nothing_forward() -> None:
    assert SliceResult.of([figure(facts.ABANDONED, 9), figure(facts.UNCONFIRMED, 9)]).settled == 0
    assert SliceResult.of([figure(facts.DEFERRED, 2), figure(facts.MALFORMED), figure(facts.MOVED)]).settled == 4


def test_failures_keep_their_words() -> None:
    found = SliceResult.of([figure(words.FAILED, detail="no way"), figure(words.LEDGER_FAILED, detail="disk full")])
    assert (found.failure, found.ledger_failure) == ("no way", "disk full")


def test_a_pump_that_failed_has_not_finished_whatever_the_others_say() -> None:
    assert not SliceResult.of([figure(words.FINISHED), figure(facts.MOVED, 5), figure(words.FAILED)]).is_finished


def test_progress_says_moved_remaining_rate_time_left_and_what_is_deferred() -> None:
    account = Account()
    account.add(SliceResult.of([figure(facts.MOVED, 12_000), figure(words.LEFT_DEFERRED, 3, "[red]")]))
    progress = DrainProgress(account, 600_000, 1000.0, pumps=4, ends_at=110.0)
    assert line_of(progress, 100.0) == (
        "12,000 moved, about 600,000 remaining, 1,000 a second, 10 min left, 3 deferred, slice 2, 4 pumps, 10 s to go"
    )
    assert table_of(progress).row_count == 2


def test_before_the_first_slice_has_ended_nothing_is_said_to_be_moved() -> None:
    assert line_of(DrainProgress(Account(), 500, 50.0, pumps=2, ends_at=10.0), 0.0) == (
        "about 500 remaining, 50 a second, 10 s left, slice 1, 2 pumps, 10 s to go"
    )
