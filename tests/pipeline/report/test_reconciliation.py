"""The summary of a reconciliation, from the tables."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipeline.report.made import DAY, START, LeftOut, Made

from twinbus.report.assemble import Wishes, assemble, open_results
from twinbus.report.cost.prices import load_prices
from twinbus.report.document import Report
from twinbus.tables.verdict import WORDS

BOOK = load_prices()


def report_of(made: Made, folder: Path | str) -> Report:
    made.write(folder)
    return assemble(open_results(str(folder)), Wishes(book=BOOK))


def summary_of(made: Made, folder: Path | str) -> dict[str, Any]:
    found = report_of(made, folder).summary
    assert found is not None
    return dict(found)


def test_words_are_summed_over_days_and_spellings(tmp_path: Path) -> None:
    made = Made().traffic(["orders"], days=[0, 1])
    made.verdict("orders", "namespace", day=0, attempted=3, ok=2, lost=1)
    made.verdict("Orders", "receivers", day=1, attempted=4, ok=4).verdict("bills", "namespace", attempted=5, ok=5)
    found = summary_of(made, tmp_path)
    assert (found["attempted"], found["ok"], found["lost"], found["valid"], found["verdict"]) == (
        12, 11, 1, False, "invalid",
    )  # fmt: skip
    assert [(one["entity"], one["attempted"], one["evidence"]) for one in found["entities"]] == [
        ("bills", 5, "namespace"),
        ("Orders", 7, "receivers"),
    ]
    assert "subscriptions" not in found["entities"][0]


def test_arrivals_are_summed_by_subscription(tmp_path: Path) -> None:
    made = Made().traffic(["events"], days=[0]).verdict("events", attempted=5, ok=5)
    made.arrived("events", "events/subscriptions/b", 2).arrived("Events", "events/subscriptions/b", 3, day=1)
    made.arrived("events", "events/subscriptions/a", 5).arrived("other", "other/subscriptions/a", 9)
    (found,) = summary_of(made, tmp_path)["entities"]
    assert found["subscriptions"] == {"events/subscriptions/a": 5, "events/subscriptions/b": 5}
    assert list(found["subscriptions"]) == sorted(found["subscriptions"])


def test_a_quiet_reconciliation_has_no_notes(tmp_path: Path) -> None:
    found = summary_of(Made().traffic(["orders"], days=[0]).judged(["orders"]), tmp_path)
    assert (found["notes"], found["valid"], found["verdict"]) == ([], True, "valid")
    assert (found["dropped_rows"], found["left_out"]) == (0, 0)


def noted(made: Made, folder: Path) -> str:
    (note,) = summary_of(made.traffic(["orders"], days=[0]), folder)["notes"]
    return str(note)


def test_every_gap_has_a_note(tmp_path: Path) -> None:
    def judged(**words: int) -> Made:
        return Made().judged(["orders"], **words)

    def left_out(status: str, count: int) -> Made:
        return Made(left_out=[LeftOut(f"{number}.parquet", status) for number in range(count)]).judged(["orders"])

    cases = {
        "orders: no receiver records there": Made().judged(["orders"], "namespace"),
        "orders: 7 messages were accepted before receivers": judged(before_receivers=7),
        "Messages in flight were accepted": judged(in_flight=1),
        "Scheduled messages were cancelled (3 requests)": judged().cancelled(3),
        "The ledger lacks 6 rows": judged().dropped(6),
        "2 files of the ledger could not be read": left_out("unreadable", 2),
        "1 file of the ledger came after its day": left_out("late", 1),
        "3 files of the ledger have rows outside a plausible clock": left_out("clock", 3),
        "Operations of 1 message came more than 14 days": judged().anomaly("late", "id-1", "orders"),
    }
    for number, (words, made) in enumerate(cases.items()):
        assert words in noted(made, tmp_path / str(number))


def test_a_cancel_that_failed_is_no_cancelled_message(tmp_path: Path) -> None:
    made = Made().traffic(["orders"], days=[0]).judged(["orders"]).cancelled(3)
    made.usage[-1]["outcome"] = "failed"
    assert summary_of(made, tmp_path)["notes"] == []


def test_only_files_whose_rows_are_missing_are_listed(tmp_path: Path) -> None:
    day = date(2026, 11, 2)
    left_out = [
        LeftOut("old.parquet", "replaced"),
        LeftOut("late.parquet", "late", day=day),
        LeftOut("odd.parquet", "code_25", "new"),
        LeftOut("", "clock", "the year is 1970", day),
    ]
    report = report_of(Made(left_out=left_out).traffic(["orders"], days=[0]).judged(["orders"]), tmp_path)
    assert [tuple(one) for one in report.left_out] == [
        ("day=2026-11-01/odd.parquet", "new"),
        ("day=2026-11-02", "the year is 1970"),
        ("day=2026-11-02/late.parquet", "late"),
    ]
    assert report.summary is not None
    assert (report.summary["left_out"], report.source.files, report.headline.word) == (3, 1, "gaps")


def test_the_worst_anomalies_are_listed_and_late_ones_are_only_counted(tmp_path: Path) -> None:
    made = Made().traffic(["orders"], days=[0]).judged(["orders"], lost=150, duplicated=150, in_flight=1, recovered=1)
    for number in range(150):
        at = START + (number % 3) * DAY + number
        made.anomaly("duplicated", f"copy-{number}", "orders", at).anomaly("lost", f"lost-{number}", "orders", at)
    made.anomaly("in_flight", "flying", "orders").anomaly("late", "late", "orders").anomaly("recovered", "r", "orders")
    report = report_of(made, tmp_path)
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
def test_sums_are_those_of_the_rows_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, str, int]], unreadable: int
) -> None:
    files = [LeftOut(f"{number}.parquet", "unreadable") for number in range(unreadable)]
    made = Made(is_reconciled=True, left_out=files).traffic(["orders"], days=[0])
    for destination, day, evidence, count in rows:
        made.verdict(destination, evidence, day, **{word: count + place for place, word in enumerate(WORDS)})
    folder = tmp_path_factory.mktemp("sums")
    found = summary_of(made, folder)
    for place, word in enumerate(WORDS):
        assert found[word] == sum(count + place for *_, count in rows)
        assert found[word] == sum(one[word] for one in found["entities"])
    keys = {destination.lower() for destination, *_ in rows}
    assert [one["entity"].lower() for one in found["entities"]] == sorted(keys)
    for one in found["entities"]:
        mine = {evidence for destination, _, evidence, _ in rows if destination.lower() == one["entity"].lower()}
        assert (one["evidence"] == "receivers") == ("receivers" in mine)
    valid = not found["lost"] and not found["unexpected"]
    assert found["valid"] is (None if unreadable else valid)
    assert found["verdict"] == ("unknown" if unreadable else "valid" if valid else "invalid")
