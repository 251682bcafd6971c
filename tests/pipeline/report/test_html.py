"""Tests the HTML file: accessible, loads nothing, and safe with hostile names."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from tests.pipeline.report.html_page import Element, parse
from tests.pipeline.report.sample_tables import START, LeftOut, SampleTables

from twinbus.report.assemble import Wishes, assemble, open_results
from twinbus.report.cost.prices import load_prices
from twinbus.report.render.formats import DAY, HOUR, MINUTE
from twinbus.report.render.html import render

NOW = datetime(2026, 11, 16, 9, tzinfo=UTC)
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "{{ 7 * 7 }}",
    "</style></title><base href=//evil.example>",
    "javascript:alert(1)",
    "\u202etxt.exe\x1b[31m\x00",
    "a" * 260,
]
NAMES = ["orders", "events", "mail"]


def page_of(tables: SampleTables, folder: Path, now: datetime = NOW) -> tuple[str, Element]:
    tables.write(folder)
    html = render(assemble(open_results(str(folder)), Wishes(book=load_prices()), now=now))
    return html, parse(html)


def full() -> SampleTables:
    """Return a week with two outages, lost messages and defects of the ledger."""
    tables = SampleTables(left_out=[LeftOut("odd.parquet", "late", "its day has expired")]).traffic(NAMES).dropped(7)
    tables.outage(NAMES, START + DAY, 30).outage(NAMES[:1], START + 3 * DAY + HOUR, 10, each=500)
    return (
        tables.reconciled(NAMES, lost=2, duplicated=1)
        .anomaly("lost", "id-1", "orders")
        .anomaly("lost", "id-2", "orders")
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Element:
    return page_of(full(), tmp_path_factory.mktemp("full"))[1]


def test_the_three_questions_are_answered_in_order_below_the_verdict(page: Element) -> None:
    assert [heading.text for heading in page.every("h1")] == ["2 accepted messages did not arrive."]
    heads = [heading.text for heading in page.every("h2")]
    assert heads[:3] == ["What happened", "Is anything missing?", "What did it cost?"]
    cards = [link.text for link in page.every("a")]
    assert cards[0].startswith("What happened? 2 outages 3 entities, 5,900 messages diverted.")
    assert cards[1].startswith("Is anything missing? 2 lost")
    assert cards[2].startswith("What did it cost? USD ")


def test_headings_skip_no_level_and_links_have_targets(page: Element) -> None:
    levels = [int(element.name[1]) for element in page.every() if re.fullmatch("h[1-6]", element.name)]
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    ids = [element.attributes["id"] for element in page.every() if "id" in element.attributes]
    assert len(set(ids)) == len(ids)
    assert {link.attributes["href"] for link in page.every("a")} <= {f"#{name}" for name in ids}


def test_every_plot_has_a_label_and_a_table(page: Element) -> None:
    plots = [element for element in page.every() if element.attributes.get("role") == "img"]
    assert len(plots) == 7  # the period, two incidents, cost by stage, day and entity, latency
    for plot in plots:
        figure = plot.within("figure")
        assert figure is not None
        assert plot.attributes["aria-label"]
        assert figure.every("table")
    assert all(
        svg.attributes["aria-hidden"] == "true"
        for svg in page.every("svg")
        if "height" in svg.attributes and svg.parent and svg.parent.name != "svg"
    )
    assert all(head.attributes.get("scope") in ("col", "row") for head in page.every("th"))


def test_period_and_time_zone_are_shown(page: Element) -> None:
    assert "1 Nov 2026 00:00 – 8 Nov 2026 00:00 UTC" in page.text  # noqa: RUF001 - what is shown
    assert page.every("html")[0].attributes["lang"] == "en"
    assert "twinbus report, 1 Nov 2026" in page.every("title")[0].text


def test_defects_of_the_ledger_are_shown(page: Element) -> None:
    assert "7 rows are missing in the ledger" in page.text
    assert "day=2026-11-01/odd.parquet" in page.text
    assert "its day has expired" in page.text
    assert "1 file of the ledger came after its day had expired" in page.text


def test_incident_has_a_story(page: Element) -> None:
    story = page.every("article")[0].every("p")[0].text.replace("\N{NO-BREAK SPACE}", " ")
    assert "sends to 3 entities began to fail" in story
    assert "900 messages went to the backlog instead." in story


def loads(html: str, page: Element) -> list[str]:
    """Return everything that a browser would fetch or run."""
    found = [f"<{element.name}>" for element in page.every() if element.name in FETCHING]
    for element in page.every():
        for name, value in element.attributes.items():
            is_link = name in ("src", "srcset", "href", "xlink:href", "action", "data", "poster", "background")
            if name.startswith("on") or (is_link and not value.startswith("#")):
                found.append(f"{element.name} {name}={value}")
            if "url(" in value.lower() or ("javascript:" in value.lower() and name != "title"):
                found.append(f"{element.name} {name}={value}")
    style = " ".join(style.text for style in page.every("style"))
    return found + re.findall(r"@import|url\s*\(|expression\s*\(|https?:", style)


FETCHING = {
    "script",
    "link",
    "img",
    "iframe",
    "object",
    "embed",
    "base",
    "image",
    "use",
    "form",
    "video",
    "audio",
    "foreignobject",
}


def test_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    html, page = page_of(full(), tmp_path)
    assert loads(html, page) == []
    policy = page.every("meta")[1].attributes
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert policy["content"].startswith("default-src 'none'; style-src 'unsafe-inline';")
    assert [element.name for element in page.every("head")[0].children][:2] == [
        "meta",
        "meta",
    ]  # before anything it is about


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    tables = (
        SampleTables(left_out=[LeftOut(HOSTILE[0], "late", HOSTILE[1])])
        .traffic(HOSTILE)
        .outage(HOSTILE, START + DAY, 20)
    )
    tables.reconciled(HOSTILE, lost=len(HOSTILE))
    for name in HOSTILE:
        tables.anomaly("lost", name, name)
    for name in HOSTILE:
        tables.arrived(HOSTILE[0], name, 5).verdict(name, "namespace", before_receivers=1)  # names in notes
    html, page = page_of(tables, tmp_path)
    assert loads(html, page) == []
    assert len(page.every("style")) == len(page.every("head")[0].every("title")) == 1
    for name in HOSTILE[:6]:
        assert " ".join(name.split()) in page.text
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "\x00" not in html


def test_empty_ledger_has_a_page(tmp_path: Path) -> None:
    page = page_of(SampleTables(), tmp_path)[1]
    assert page.every("h1")[0].text == "The ledger is empty."
    assert "No rows" not in page.text
    assert not page.every("figure")


def test_week_without_failures_is_healthy(tmp_path: Path) -> None:
    page = page_of(SampleTables().traffic(NAMES).reconciled(NAMES), tmp_path)[1]
    assert page.every("h1")[0].text == "Everything arrived."
    assert "Every entity was healthy for the whole period." in page.text


def test_drain_without_rows_of_senders_is_not_called_healthy(tmp_path: Path) -> None:
    page = page_of(SampleTables().moved_by_syphon(NAMES[:1], START + DAY, 7).reconciled(NAMES), tmp_path)[1]
    assert "No outage" not in page.text
    assert "Every entity was healthy" not in page.text
    assert (
        "A syphon moved messages from the backlog (7 operations), but no sender keeps rows in this ledger." in page.text
    )


def test_open_outage_is_drawn_to_the_end_of_the_rows(tmp_path: Path) -> None:
    tables = (
        SampleTables(days=2)
        .traffic(NAMES)
        .outage(NAMES, START + DAY, 90, is_back=False)
        .reconciled(NAMES, in_flight=2_700)
    )
    page = page_of(tables, tmp_path)[1]
    assert "3 entities are not back yet." in page.text
    assert page.every("h3")[0].text == "Since 2 Nov 2026 00:00 UTC"
    bars = [bar for bar in page.every("rect") if bar.attributes.get("class") == "state failed_over"]
    ends = [float(bar.attributes["x"][:-1]) + float(bar.attributes["width"][:-1]) for bar in bars]
    assert ends == [pytest.approx(100, abs=0.01) for _ in ends]


def test_plot_of_an_open_drain_is_cut_so_that_the_outage_is_visible(tmp_path: Path) -> None:
    tables = SampleTables(days=7).traffic(NAMES).outage(NAMES, START + DAY, 30, left=9).reconciled(NAMES, in_flight=27)
    page = page_of(tables, tmp_path)[1]
    incident = page.every("article")[0]
    assert "27 messages are still in the backlog." in incident.text
    bar = next(bar for bar in incident.every("rect") if bar.attributes.get("class") == "state failed_over")
    assert float(bar.attributes["width"][:-1]) > 15


def test_page_of_thousands_of_entities_is_small_and_counts_the_rest(tmp_path: Path) -> None:
    names = [f"queue-{number:04}" for number in range(2_000)]
    tables = SampleTables(days=2).traffic(names[:300], operations=5)
    for number in range(3):
        tables.outage(names, START + number * 6 * HOUR, 4)
    html, page = page_of(tables.reconciled(names), tmp_path)
    assert len(html) < 1_000_000
    assert "the 24 of 2,000 affected entities with the most diverted messages" in page.text
    assert "1,900 more entities" in page.text
    assert any(span.text == "entities failed over" for span in page.every("span"))


def test_long_history_shows_the_largest_incidents_and_counts_the_others(tmp_path: Path) -> None:
    tables = SampleTables(days=10).traffic(NAMES, operations=5)
    for number in range(20):
        tables.outage(NAMES, START + number * 12 * HOUR, 10, each=1 + number)
    page = page_of(tables.reconciled(NAMES), tmp_path)[1]
    assert len(page.every("article")) == 6
    assert "14 smaller outages are not drawn one by one." in page.text
    assert "10 Nov 2026 12:00" in page.every("article")[-1].text


def test_short_interval_of_a_long_period_is_visible(tmp_path: Path) -> None:
    tables = SampleTables(days=90).outage(["orders"], START + 40 * DAY, 2).outage(["orders"], START + 60 * DAY, 2)
    tables.reconciled(["orders"])
    tables.traffic(["orders"], operations=1)
    page = page_of(tables, tmp_path)[1]
    bar = next(bar for bar in page.every("rect") if bar.attributes.get("class") == "state failed_over")
    assert bar.attributes["x"] == f"{round(100 * (40 * DAY + MINUTE) / (90 * DAY), 3)}%"
    assert "stroke-width: 1.5" in page.every("style")[0].text  # a stroke is as wide as it is, whatever the bar's width


def test_words_that_are_zero_for_every_entity_have_no_column(page: Element) -> None:
    (table,) = [element for element in page.every("table") if "seen by" in element.text]
    heads = [head.text for head in table.every("th") if head.attributes.get("scope") == "col"]
    assert heads == ["entity", "seen by", "attempted", "acknowledged", "ok", "lost", "duplicated"]
