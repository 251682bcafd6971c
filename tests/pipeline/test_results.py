"""The store of results, without Spark."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from twinbus.ledger.reading import SetAside
from twinbus.ledger.schema import pa, pq
from twinbus.pipeline.results import (
    DayResults,
    Outrun,
    Results,
    ResultsOfLaterRelease,
    Snapshot,
    default_results,
    new_run,
)

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


def a_day(path: str = "rollups/x/usage/day=2026-11-16/part-0.parquet") -> DayResults:
    return DayResults(
        rollups={"usage": [path]},
        inventory="rollups/x/inventory/2026-11-16.parquet",
        files=2,
        bytes=100,
        rows_in_files=12,
        rows=10,
        dropped=3,
        first_us=1,
        last_us=2,
    )


@pytest.fixture(params=["folder", "memory"])
def results(request: pytest.FixtureRequest, tmp_path: Path) -> Results:
    return Results.open(tmp_path / "results" if request.param == "folder" else f"memory://{tmp_path.name}/results")


def test_a_snapshot_comes_back_as_it_was_published(results: Results) -> None:
    assert results.latest() is None
    snapshot = Snapshot(
        run=new_run(),
        versions={"twinbus": "1"},
        days={"2026-11-16": a_day()},
        set_aside=(SetAside("x", "not a file of a ledger"),),
        reconciliation={"summary": {"lost": 0}},
    )
    published = results.publish(snapshot, after=results.highest())
    assert published.number == 1
    assert results.latest() == published
    assert published.dropped == 3


def test_the_newest_snapshot_counts(results: Results) -> None:
    for number in range(12):
        results.publish(Snapshot(run=f"run {number}"), after=number)
    latest = results.latest()
    assert latest is not None
    assert (latest.number, latest.run) == (12, "run 11")


def test_who_comes_second_has_changed_nothing(results: Results) -> None:
    results.publish(Snapshot(run="first"), after=0)
    with pytest.raises(Outrun):
        results.publish(Snapshot(run="second"), after=0)
    latest = results.latest()
    assert latest is not None
    assert latest.run == "first"
    assert results.names("snapshots") == ["0000000001.json"]


def test_where_there_are_no_links_a_snapshot_is_published_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "link", no_link)
    results = Results.open(tmp_path)
    results.publish(Snapshot(run="first"), after=0)
    with pytest.raises(Outrun):
        results.publish(Snapshot(run="second"), after=0)
    assert results.latest() is not None


def test_a_snapshot_that_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    results = Results.open(tmp_path)
    results.publish(Snapshot(run="first"), after=0)
    (tmp_path / "snapshots" / "0000000002.json").write_text('{"version"')
    latest = results.latest()
    assert latest is not None
    assert latest.number == 1
    assert results.publish(Snapshot(run="third"), after=results.highest()).number == 3


def test_results_of_a_later_release_are_refused(tmp_path: Path) -> None:
    results = Results.open(tmp_path)
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "0000000001.json").write_text('{"version": 2, "versions": {"twinbus": "9.9"}}')
    with pytest.raises(ResultsOfLaterRelease, match=r"9\.9"):
        results.latest()


def test_files_of_a_rollup_are_those_of_the_days_asked_for() -> None:
    days = {f"2026-11-{day}": a_day(f"day {day}") for day in (15, 16, 17)}
    snapshot = Snapshot(run="x", days=days)
    assert snapshot.paths("usage") == ["day 15", "day 16", "day 17"]
    assert snapshot.paths("usage", since="2026-11-16", until="2026-11-16") == ["day 16"]
    assert snapshot.paths("latency") == []


def test_tables_are_read_with_the_columns_asked_for(tmp_path: Path) -> None:
    results = Results.open(tmp_path)
    for number in (1, 2):
        pq.write_table(pa.table({"b": pa.array([number], pa.int8()), "a": ["x"]}), tmp_path / f"{number}.parquet")
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    assert results.table(["1.parquet", "2.parquet"], schema).to_pylist() == [{"a": "x", "b": 1}, {"a": "x", "b": 2}]
    assert results.table([], schema).num_rows == 0


def test_what_no_snapshot_of_the_last_day_names_is_removed(tmp_path: Path) -> None:
    results = Results.open(tmp_path)
    hours = {
        name: new_run(NOW - timedelta(hours=ago))
        for name, ago in (("old", 60), ("older", 50), ("kept", 40), ("new", 1))
    }
    for run in hours.values():
        results.write_bytes(f"rollups/{run}/a.parquet", b"x")
    for number, name in enumerate(("old", "older", "kept")):
        day = a_day(f"rollups/{hours[name]}/a.parquet")
        results.publish(Snapshot(run=hours[name], days={"2026-11-16": day}), after=number)
    # Two snapshots were followed by one more than a day ago; the run of the last hour is perhaps still at work.
    assert results.sweep(NOW) == 4
    assert results.names("snapshots") == ["0000000003.json"]
    assert results.names("rollups") == sorted([hours["kept"], hours["new"]])
    assert results.sweep(NOW) == 0


def test_nothing_is_removed_where_there_are_no_results_yet(tmp_path: Path) -> None:
    results = Results.open(tmp_path)
    results.write_bytes(f"rollups/{new_run(NOW - timedelta(days=9))}/a.parquet", b"x")
    assert results.sweep(NOW) == 0


def test_results_lie_beside_the_ledger_unless_somebody_says_otherwise() -> None:
    assert default_results("./ledger/") == "./ledger-results"
    assert default_results("abfs://container/ledger") == "abfs://container/ledger-results"


def test_a_place_where_files_do_not_appear_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="sftp"):
        Results.open("sftp://host/results")
