"""Tests the summary of a reconciliation from the tables."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipeline.report.sample_tables import DAY, START, LeftOut, SampleTables

from twinbus.report.assemble import Wishes, assemble, open_results
from twinbus.report.cost.prices import load_prices
from twinbus.report.document import Report
from twinbus.tables.verdict import WORDS

BOOK = load_prices()


def report_of(tables: SampleTables, folder: Path | str) -> Report:
    tables.write(folder)
    return assemble(open_results(str(folder)), Wishes(book=BOOK))


def summary_of(tables: SampleTables, folder: Path | str) -> dict[str, Any]:
    found = report_of(tables, folder).summary
    assert found is not None
    return dict(found)


def test_words_are_summed_over_days_and_spellings(tmp_path: Path) -> None:
    tables = SampleTables().traffic(["orders"], days=[0, 1])
    tables.verdict("orders", "namespace", day=0, attempted=3, ok=2, lost=1)
    tables.verdict("Orders", "receivers", day=1, attempted=4, ok=4).verdict("bills", "namespace", attempted=5, ok=5)
    found = summary_of(tables, tmp_path)
    assert (found["attempted"], found["ok"], found["lost"], found["valid"], found["verdict"]) == (
        12, 11, 1, False, "invalid",
    )  # fmt: skip
    assert [(entity["entity"], entity["attempted"], entity["evidence"]) for entity in found["entities"]] == [
        ("bills", 5, "namespace"),
        ("Orders", 7, "receivers"),
    ]
    assert "subscriptions" not in found["entities"][0]


def test_arrivals_are_summed_by_subscription(tmp_path: Path) -> None:
    tables = SampleTables().traffic(["events"], days=[0]).verdict("events", attempted=5, ok=5)
    tables.arrived("events", "events/subscriptions/b", 2).arrived("Events", "events/subscriptions/b", 3, day=1)
    tables.arrived("events", "events/subscriptions/a", 5).arrived("other", "other/subscriptions/a", 9)
    (found,) = summary_of(tables, tmp_path)["entities"]
    assert found["subscriptions"] == {"events/subscriptions/a": 5, "events/subscriptions/b": 5}
    assert list(found["subscriptions"]) == sorted(found["subscriptions"])


def test_reconciliation_without_gaps_has_no_notes(tmp_path: Path) -> None:
    found = summary_of(SampleTables().traffic(["orders"], days=[0]).reconciled(["orders"]), tmp_path)
    assert (found["notes"], found["valid"], found["verdict"]) == ([], True, "valid")
    assert (found["dropped_rows"], found["left_out"]) == (0, 0)


def noted(tables: SampleTables, folder: Path) -> str:
    (note,) = summary_of(tables.traffic(["orders"], days=[0]), folder)["notes"]
    return str(note)


def test_every_gap_has_a_note(tmp_path: Path) -> None:
    def reconciled(**words: int) -> SampleTables:
        return SampleTables().reconciled(["orders"], **words)

    def left_out(status: str, count: int) -> SampleTables:
        return SampleTables(left_out=[LeftOut(f"{number}.parquet", status) for number in range(count)]).reconciled(
            ["orders"]
        )

    cases = {
        "orders: no receiver records there": SampleTables().reconciled(["orders"], "namespace"),
        "orders: 7 messages were accepted before receivers": reconciled(before_receivers=7),
        "Messages in flight were accepted": reconciled(in_flight=1),
        "Scheduled messages were cancelled (3 requests)": reconciled().cancelled(3),
        "The ledger lacks 6 rows": reconciled().dropped(6),
        "2 files of the ledger could not be read": left_out("unreadable", 2),
        "1 file of the ledger came after its day": left_out("late", 1),
        "3 files of the ledger have rows outside a plausible clock": left_out("clock", 3),
        "Operations of 1 message came more than 14 days": reconciled().anomaly("late", "id-1", "orders"),
    }
    for number, (words, tables) in enumerate(cases.items()):
        assert words in noted(tables, tmp_path / str(number))


def test_failed_cancel_is_not_counted_as_cancelled(tmp_path: Path) -> None:
    tables = SampleTables().traffic(["orders"], days=[0]).reconciled(["orders"]).cancelled(3)
    tables.usage[-1]["outcome"] = "failed"
    assert summary_of(tables, tmp_path)["notes"] == []


def test_only_files_whose_rows_are_missing_are_listed(tmp_path: Path) -> None:
    day = date(2026, 11, 2)
    left_out = [
        LeftOut("old.parquet", "replaced"),
        LeftOut("late.parquet", "late", day=day),
        LeftOut("odd.parquet", "code_25", "new"),
        LeftOut("", "clock", "the year is 1970", day),
    ]
    report = report_of(SampleTables(left_out=left_out).traffic(["orders"], days=[0]).reconciled(["orders"]), tmp_path)
    assert [tuple(file) for file in report.left_out] == [
        ("day=2026-11-01/odd.parquet", "new"),
        ("day=2026-11-02", "the year is 1970"),
        ("day=2026-11-02/late.parquet", "late"),
    ]
    assert report.summary is not None
    assert (report.summary["left_out"], report.source.files, report.headline.word) == (3, 1, "gaps")


def test_worst_anomalies_are_listed_and_late_ones_only_counted(tmp_path: Path) -> None:
    tables = (
        SampleTables()
        .traffic(["orders"], days=[0])
        .reconciled(["orders"], lost=150, duplicated=150, in_flight=1, recovered=1)
    )
    for number in range(150):
        at = START + (number % 3) * DAY + number
        tables.anomaly("duplicated", f"copy-{number}", "orders", at).anomaly("lost", f"lost-{number}", "orders", at)
    tables.anomaly("in_flight", "flying", "orders").anomaly("late", "late", "orders").anomaly(
        "recovered", "r", "orders"
    )
    report = report_of(tables, tmp_path)
    shown = [(row["word"], row["first_us"]) for row in report.anomalies.shown]
    assert [word for word, _ in shown] == ["lost"] * 150 + ["duplicated"] * 50
    assert shown[:150] == sorted(shown[:150])
    assert report.anomalies.count == 301


destinations = st.sampled_from(["orders", "Orders", "bills", "EVENTS", "events"])
verdict_rows = st.lists(
    st.tuples(destinations, st.integers(0, 6), st.sampled_from(["receivers", "namespace"]), st.integers(0, 9)),
    max_size=20,
)


@settings(deadline=None, max_examples=25)
@given(rows=verdict_rows, unreadable=st.integers(0, 2))
def test_sums_do_not_depend_on_the_order_of_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, str, int]], unreadable: int
) -> None:
    files = [LeftOut(f"{number}.parquet", "unreadable") for number in range(unreadable)]
    tables = SampleTables(is_reconciled=True, left_out=files).traffic(["orders"], days=[0])
    for destination, day, evidence, count in rows:
        tables.verdict(destination, evidence, day, **{word: count + place for place, word in enumerate(WORDS)})
    folder = tmp_path_factory.mktemp("sums")
    found = summary_of(tables, folder)
    for place, word in enumerate(WORDS):
        assert found[word] == sum(count + place for *_, count in rows)
        assert found[word] == sum(entity[word] for entity in found["entities"])
    keys = {destination.lower() for destination, *_ in rows}
    assert [entity["entity"].lower() for entity in found["entities"]] == sorted(keys)
    for entity in found["entities"]:
        mine = {evidence for destination, _, evidence, _ in rows if destination.lower() == entity["entity"].lower()}
        assert (entity["evidence"] == "receivers") == ("receivers" in mine)
    valid = not found["lost"] and not found["unexpected"]
    assert found["valid"] is (None if unreadable else valid)
    assert found["verdict"] == ("unknown" if unreadable else "valid" if valid else "invalid")
