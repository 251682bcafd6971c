"""Tests the plots over time: states, time without rows, and where plots end; and folding, latency, bill by day."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.pipeline.report.html_page import Element
from tests.pipeline.report.sample_tables import START, SampleTables, moment
from tests.pipeline.report.test_html import NAMES, NOW, page_of

from twinbus.report.assemble import Wishes, assemble, open_results
from twinbus.report.cost.prices import load_prices
from twinbus.report.document import Report
from twinbus.report.render.formats import DAY, HOUR, MINUTE, SECOND
from twinbus.report.render.terminal import sparkline

COLUMNS = 360


def report_of(tables: SampleTables, folder: Path, now: datetime = NOW, **wishes: datetime) -> Report:
    tables.write(folder)
    return assemble(open_results(str(folder)), Wishes(book=load_prices(), **wishes), now=now)


def tracks(figure: Element) -> dict[str, Element]:
    """Return the tracks of a timeline by entity."""
    found = {}
    for track in figure.every("div"):
        if track.attributes.get("class") == "track" and track.every("svg"):
            found[track.every("bdi")[0].text] = track
    return found


def drawn(element: Element, class_: str) -> list[tuple[int, int]]:
    """Return the columns of a path of straight lines, as pairs of begin and end."""
    paths = [path.attributes["d"] for path in element.every("path") if path.attributes["class"] == class_]
    return [(int(begin), int(end)) for path in paths for begin, end in re.findall(r"M(\d+) \d+H(\d+)", path)]


def column(at: int, since: int, until: int) -> int:
    return COLUMNS * (at - since) // (until - since)


def text_of(element: Element) -> str:
    return element.text.replace("\N{NO-BREAK SPACE}", " ")


def two_outages() -> SampleTables:
    """A week without rows on its third and fourth day; `mail` has rows on the first day only."""
    tables = SampleTables().traffic(NAMES[:2], days=[0, 1, 4, 5, 6]).traffic(["mail"], days=[0])
    return tables.outage(NAMES, START + HOUR, 20).outage(["orders"], START + 5 * DAY, 20).reconciled(NAMES)


def test_time_without_rows_is_drawn_as_no_data_and_not_as_healthy(tmp_path: Path) -> None:
    page = page_of(two_outages(), tmp_path)[1]
    timeline = tracks(page.every("figure")[0])
    third, fifth = column(START + 2 * DAY, START, START + 7 * DAY), column(START + 4 * DAY, START, START + 7 * DAY)
    assert drawn(timeline["orders"], "no-data") == [(third + 1, fifth)]
    assert drawn(timeline["orders"], "healthy") == [(0, third + 1), (fifth, COLUMNS)]
    assert drawn(timeline["mail"], "no-data") == [(52, COLUMNS)]
    (depth,) = (
        block for block in page.every("figure")[0].every("div") if "track-area" in block.attributes.get("class", "")
    )
    assert drawn(depth, "gap") == [(third + 1, fifth)]
    assert [text.text for text in depth.every("text") if text.attributes["class"] == "tick"][-1] == "no data"
    peaks = [text.text for text in depth.every("text") if text.attributes["class"] == "peak"]
    assert len(peaks) == 72
    assert sum(text.startswith("no data · ") for text in peaks) == 20


def test_the_legend_and_the_table_name_time_without_rows(tmp_path: Path) -> None:
    page = page_of(two_outages(), tmp_path)[1]
    assert [item.text for item in page.every("ul")[0].every("li")] == [
        "healthy", "suspect", "failed over", "draining the backlog", "no data",
    ]  # fmt: skip
    rows = [text_of(row) for row in page.every("figure")[0].every("tr")]
    assert "orders no data for 2 days, 2 Nov 2026 23:59:59 to 5 Nov 2026 00:00:00" in rows
    assert "orders suspect for 1 min, 1 Nov 2026 01:00:00 to 01:01:00" in rows
    assert "No data for 2 days of the period." in text_of(page)


def test_without_gaps_no_data_is_not_mentioned(tmp_path: Path) -> None:
    page = page_of(SampleTables().traffic(NAMES).outage(NAMES, START + DAY, 20).reconciled(NAMES), tmp_path)[1]
    assert "no data" not in page.text.lower().replace(".no-data", "")


def test_a_period_with_gaps_is_not_called_healthy(tmp_path: Path) -> None:
    page = page_of(SampleTables().traffic(NAMES, days=[0, 1, 4]).reconciled(NAMES), tmp_path)[1]
    assert "healthy" not in page.every("section")[0].text
    card = text_of(page.every("a")[0])
    assert (
        card
        == "What happened? No outage No failure in the time that the ledger covers. No data for 2 days of the period."
    )


def test_the_ends_of_a_chosen_period_count_as_gaps(tmp_path: Path) -> None:
    tables = SampleTables().traffic(NAMES, days=[2]).reconciled(NAMES)
    assert report_of(tables, tmp_path / "whole").no_data == []
    report = report_of(tables, tmp_path / "chosen", since=moment(START), until=moment(START + 7 * DAY))
    assert [(span.since, span.until) for span in report.no_data] == [
        (START, START + 2 * DAY),
        (START + 3 * DAY - 1, START + 7 * DAY),
    ]
    assert report.to_json()["no_data"][0] == {
        "since": "2026-11-01T00:00:00.000000Z",
        "until": "2026-11-03T00:00:00.000000Z",
    }


def test_chosen_period_without_rows_has_no_data(tmp_path: Path) -> None:
    tables = SampleTables().traffic(NAMES, days=[0]).reconciled(NAMES)
    report = report_of(tables, tmp_path, since=moment(START + 3 * DAY), until=moment(START + 4 * DAY))
    assert [(span.since, span.until) for span in report.no_data] == [(START + 3 * DAY, START + 4 * DAY)]


def test_days_without_rows_are_drawn_in_the_cost_by_day(tmp_path: Path) -> None:
    page = page_of(two_outages(), tmp_path)[1]
    (days,) = (block for block in page.every("div") if block.attributes.get("class") == "columns")
    titles = [title.text for title in days.every("title")]
    assert len(titles) == 7
    assert titles[2:4] == ["3 Nov: no data", "4 Nov: no data"]


def test_the_sparkline_of_the_terminal_marks_time_without_rows(tmp_path: Path) -> None:
    line = sparkline(report_of(two_outages(), tmp_path), 70)
    assert line[20:40] == 20 * "·"
    assert "·" not in line[:20] + line[40:]


def test_nothing_is_in_the_backlog_before_the_first_failure(tmp_path: Path) -> None:
    began = START + HOUR + 13 * SECOND + 700_000
    report = report_of(SampleTables(days=1).traffic(NAMES).outage(NAMES, began, 20, each=1).reconciled(NAMES), tmp_path)
    assert min(outage.suspected_at for outage in report.outages) == began
    assert min(point.at for point in report.backlog.series if point.depth) >= began + 2 * SECOND


def test_no_state_is_drawn_before_the_first_failure(tmp_path: Path) -> None:
    tables = SampleTables(days=1).traffic(NAMES).outage(NAMES, START + HOUR, 20).reconciled(NAMES)
    page = page_of(tables, tmp_path)[1]
    places = [
        float(bar.attributes["x"][:-1]) for bar in page.every("rect") if "state" in bar.attributes.get("class", "")
    ]
    # 20 minutes and five seconds of drain, with 4 % of room on both sides.
    assert min(places) == pytest.approx(100 * 0.04 / 1.08, abs=0.01)


def open_outage() -> SampleTables:
    """An outage that is not over; the last row is of 11:23."""
    tables = SampleTables(days=1).traffic(NAMES).without_rows(START + 12 * HOUR, START + DAY)
    tables.outage(NAMES, START + 11 * HOUR + 3 * MINUTE, 20, is_back=False).reconciled(NAMES, in_flight=600)
    return tables.ending(START + 11 * HOUR + 23 * MINUTE)


def test_nothing_is_drawn_after_the_report_was_made(tmp_path: Path) -> None:
    made_at = START + 11 * HOUR + 30 * MINUTE
    page = page_of(open_outage(), tmp_path, moment(made_at))[1]
    assert "1 Nov 2026 00:00–11:30 UTC" in page.every("p")[0].text  # noqa: RUF001 - what is shown
    ticks = [text.text for text in page.every("text") if text.attributes["class"].startswith("tick")]
    clocks = [text for text in ticks if re.fullmatch(r"\d\d:\d\d", text)]
    assert max(clocks) == "11:30"
    since = START + 11 * HOUR + 3 * MINUTE - round(0.04 * 27 * MINUTE)
    ends = {
        round(float(bar.attributes["x"][:-1]) + float(bar.attributes["width"][:-1]), 1)
        for bar in page.every("rect")
        if bar.attributes.get("class") == "state failed_over"
    }
    # An open outage is drawn up to the newest row, and no data after it.
    assert ends == {round(100 * (START + 11 * HOUR + 23 * MINUTE - since) / (made_at - since), 1)}
    for track in tracks(page.every("figure")[0]).values():
        assert drawn(track, "no-data")[-1][1] == COLUMNS
    assert "Not over at 1 Nov 2026 11:23 UTC, the time of the newest row." in page.every("a")[0].text


def test_time_without_rows_takes_at_most_half_of_an_open_incident(tmp_path: Path) -> None:
    tables = open_outage()
    page = page_of(tables, tmp_path, moment(START + 12 * HOUR))[1]
    # 20 minutes with rows and 20 without, and 4 % of room on the left and on the right.
    (begin, end) = drawn(tracks(page.every("figure")[0])["orders"], "no-data")[-1]
    assert end - begin == pytest.approx(COLUMNS * (20 + 1.6) / (40 + 3.2), abs=2)


def test_rows_of_a_fast_clock_are_not_hidden(tmp_path: Path) -> None:
    report = report_of(open_outage(), tmp_path, moment(START + 11 * HOUR))
    assert report.seen_until == START + 11 * HOUR + 23 * MINUTE


def test_with_a_single_incident_there_is_no_overview(tmp_path: Path) -> None:
    tables = SampleTables().traffic(NAMES).outage(NAMES, START + DAY, 20).reconciled(NAMES)
    page = page_of(tables, tmp_path / "one")[1]
    happened = page.every("section")[0]
    assert (len(happened.every("figure")), len(happened.every("article"))) == (1, 1)
    assert "The whole period" not in happened.text
    tables.outage(NAMES, START + 3 * DAY, 20)
    happened = page_of(tables, tmp_path / "two")[1].every("section")[0]
    assert (len(happened.every("figure")), len(happened.every("article"))) == (3, 2)
    assert "The whole period (UTC): every affected entity" in happened.text


def test_a_forced_failover_is_not_an_outage(tmp_path: Path) -> None:
    tables = SampleTables().traffic(NAMES).forced_failover(["orders"], START + DAY, 30).reconciled(NAMES)
    report = report_of(tables, tmp_path / "results")
    assert (report.outages, report.incidents) == ((), ())
    (forced,) = report.forced_failovers
    assert (forced.entity, forced.diverted, forced.moved, forced.failed_sends) == ("orders", 300, 300, 0)
    found = report.to_json()
    assert found["outages"] == found["incidents"] == []
    assert [forced["entity"] for forced in found["forced_failovers"]] == ["orders"]
    assert set(found["forced_failovers"][0]) == {
        "pairing", "entity", "suspected_at", "failed_over_at", "recovered_at", "drained_at", "diverted", "moved",
        "expired", "poison", "pings", "failed_sends", "backlog_seconds_p50", "backlog_seconds_p99",
        "backlog_seconds_max",
    }  # fmt: skip
    assert [interval["state"] for interval in found["timeline"][0]["intervals"]] == ["forced", "draining"]

    page = page_of(tables, tmp_path / "page")[1]
    card = text_of(page.every("a")[0])
    assert card == "What happened? No outage Failed over by hand: 1 entity, 300 messages diverted."
    assert page.every("h3")[0].text.startswith("Failed over by hand: 2 Nov 2026 00:00")
    story = text_of(page.every("article")[0])
    assert "messages to one entity went to the backlog although no send had failed" in story
    assert "began to fail" not in story
    classes = {bar.attributes.get("class") for bar in page.every("rect")}
    assert {"state forced", "state draining"} <= classes
    assert not {"state suspect", "state failed_over"} & classes


def test_an_outage_and_a_forced_failover_are_counted_apart(tmp_path: Path) -> None:
    tables = (
        SampleTables().traffic(NAMES).forced_failover(["orders"], START + DAY, 30).outage(["mail"], START + 3 * DAY, 10)
    )
    page = page_of(tables.reconciled(NAMES), tmp_path)[1]
    card = text_of(page.every("a")[0])
    assert card.startswith("What happened? 1 outage 1 entity, 100 messages diverted. The longest lasted 10 min.")
    assert card.endswith("Failed over by hand: 1 entity, 300 messages diverted.")
    assert len(page.every("article")) == 2


def test_latency_marks_show_how_many_operations_they_stand_for(tmp_path: Path) -> None:
    page = page_of(SampleTables(days=1).traffic(["orders"], operations=50).reconciled(["orders"]), tmp_path)[1]
    (plot,) = (block for block in page.every("div") if block.attributes.get("class") == "tracks ranges")
    assert [text_of(note) for note in plot.every("span") if note.attributes["class"] == "track-note"] == [
        "operations · p50 · p99", "1,200 · 4.2 ms · 4.2 ms", "",
    ]  # fmt: skip
    assert [text_of(title) for title in plot.every("title")] == [
        "1,200 operations: 600 within 4.2 ms, 1,080 within 4.2 ms, 1,188 within 4.2 ms, the slowest 90 ms"
    ]


def test_tiles_of_zero_are_folded_away(tmp_path: Path) -> None:
    page = page_of(SampleTables().traffic(NAMES).reconciled(NAMES, lost=2, duplicated=1), tmp_path)[1]
    shown, folded = (block for block in page.every("dl") if block.attributes.get("class") == "words")
    assert [term.text for term in shown.every("dt")] == ["attempted", "acknowledged", "ok", "lost", "duplicated"]
    assert shown.within("details") is None
    details = folded.within("details")
    assert details is not None
    assert "open" not in details.attributes
    assert details.every("summary")[0].text == "0 unexpected, recovered, in flight, dead lettered, unconfirmed"
    assert {figure.text for figure in folded.every("strong")} == {"0"}


def test_lengths_of_time_in_tables_have_no_replacement_character(tmp_path: Path) -> None:
    html, _ = page_of(two_outages(), tmp_path)
    assert "\N{REPLACEMENT CHARACTER}" not in html


def test_report_of_a_running_hour_ends_when_it_was_made(tmp_path: Path) -> None:
    report = report_of(open_outage(), tmp_path, datetime(2026, 11, 1, 11, 30, tzinfo=UTC))
    assert report.seen_until == START + 11 * HOUR + 30 * MINUTE
    assert report.period is not None
    assert report.period.until == START + 12 * HOUR
