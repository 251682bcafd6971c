"""The HTML file: readable by everyone, loads nothing, and no name can do anything in it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from tests.pipeline.report.made import START, LeftOut, Made
from tests.pipeline.report.page import Element, parse

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


def page_of(made: Made, folder: Path, now: datetime = NOW) -> tuple[str, Element]:
    made.write(folder)
    html = render(assemble(open_results(str(folder)), Wishes(book=load_prices()), now=now))
    return html, parse(html)


def full() -> Made:
    """A week with two outages, something lost and something wrong with the ledger."""
    made = Made(left_out=[LeftOut("odd.parquet", "late", "its day has expired")]).traffic(NAMES).dropped(7)
    made.outage(NAMES, START + DAY, 30).outage(NAMES[:1], START + 3 * DAY + HOUR, 10, each=500)
    return made.judged(NAMES, lost=2, duplicated=1).anomaly("lost", "id-1", "orders").anomaly("lost", "id-2", "orders")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Element:
    return page_of(full(), tmp_path_factory.mktemp("full"))[1]


def test_the_three_questions_are_answered_in_order_below_the_verdict(page: Element) -> None:
    assert [one.text for one in page.every("h1")] == ["2 accepted messages did not arrive."]
    heads = [one.text for one in page.every("h2")]
    assert heads[:3] == ["What happened", "Is anything missing?", "What did it cost?"]
    cards = [one.text for one in page.every("a")]
    assert cards[0].startswith("What happened? 2 outages 3 entities, 5,900 messages diverted.")
    assert cards[1].startswith("Is anything missing? 2 lost")
    assert cards[2].startswith("What did it cost? USD ")


def test_headings_leave_out_no_level_and_links_lead_somewhere(page: Element) -> None:
    levels = [int(one.name[1]) for one in page.every() if re.fullmatch("h[1-6]", one.name)]
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    ids = [one.attributes["id"] for one in page.every() if "id" in one.attributes]
    assert len(set(ids)) == len(ids)
    assert {one.attributes["href"] for one in page.every("a")} <= {f"#{one}" for one in ids}


def test_every_plot_says_what_it_shows_and_has_a_table_that_says_the_same(page: Element) -> None:
    plots = [one for one in page.every() if one.attributes.get("role") == "img"]
    assert len(plots) == 7  # the period, two incidents, cost by stage, day and entity, latency
    for plot in plots:
        figure = plot.within("figure")
        assert figure is not None
        assert plot.attributes["aria-label"]
        assert figure.every("table")
    assert all(
        one.attributes["aria-hidden"] == "true"
        for one in page.every("svg")
        if "height" in one.attributes and one.parent and one.parent.name != "svg"
    )
    assert all(one.attributes.get("scope") in ("col", "row") for one in page.every("th"))


def test_the_period_and_its_time_zone_are_said(page: Element) -> None:
    assert "1 Nov 2026 00:00 – 8 Nov 2026 00:00 UTC" in page.text  # noqa: RUF001 - what is shown
    assert page.every("html")[0].attributes["lang"] == "en"
    assert "twinbus report, 1 Nov 2026" in page.every("title")[0].text


def test_what_is_wrong_with_the_ledger_is_said(page: Element) -> None:
    assert "7 rows are missing in the ledger" in page.text
    assert "day=2026-11-01/odd.parquet" in page.text
    assert "its day has expired" in page.text
    assert "1 file of the ledger came after its day had expired" in page.text


def test_the_page_tells_an_incident_as_a_story(page: Element) -> None:
    story = page.every("article")[0].every("p")[0].text.replace("\N{NO-BREAK SPACE}", " ")
    assert "sends to 3 entities began to fail" in story
    assert "900 messages went to the backlog instead." in story


def loads(html: str, page: Element) -> list[str]:
    """Whatever a browser would fetch or run."""
    found = [f"<{one.name}>" for one in page.every() if one.name in FETCHING]
    for one in page.every():
        for name, value in one.attributes.items():
            is_link = name in ("src", "srcset", "href", "xlink:href", "action", "data", "poster", "background")
            if name.startswith("on") or (is_link and not value.startswith("#")):
                found.append(f"{one.name} {name}={value}")
            if "url(" in value.lower() or ("javascript:" in value.lower() and name != "title"):
                found.append(f"{one.name} {name}={value}")
    style = " ".join(one.text for one in page.every("style"))
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


def test_nothing_is_loaded_and_nothing_can_run(tmp_path: Path) -> None:
    html, page = page_of(full(), tmp_path)
    assert loads(html, page) == []
    policy = page.every("meta")[1].attributes
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert policy["content"].startswith("default-src 'none'; style-src 'unsafe-inline';")
    assert [one.name for one in page.every("head")[0].children][:2] == ["meta", "meta"]  # before anything it is about


def test_hostile_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    made = Made(left_out=[LeftOut(HOSTILE[0], "late", HOSTILE[1])]).traffic(HOSTILE).outage(HOSTILE, START + DAY, 20)
    made.judged(HOSTILE, lost=len(HOSTILE))
    for name in HOSTILE:
        made.anomaly("lost", name, name)
    for name in HOSTILE:
        made.arrived(HOSTILE[0], name, 5).verdict(name, "namespace", before_receivers=1)  # names in notes
    html, page = page_of(made, tmp_path)
    assert loads(html, page) == []
    assert len(page.every("style")) == len(page.every("head")[0].every("title")) == 1
    for name in HOSTILE[:6]:
        assert " ".join(name.split()) in page.text
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "\x00" not in html


def test_a_store_of_nothing_has_a_page_too(tmp_path: Path) -> None:
    page = page_of(Made(), tmp_path)[1]
    assert page.every("h1")[0].text == "The ledger is empty."
    assert "No rows" not in page.text
    assert not page.every("figure")


def test_a_calm_week_is_good_news_without_an_outage(tmp_path: Path) -> None:
    page = page_of(Made().traffic(NAMES).judged(NAMES), tmp_path)[1]
    assert page.every("h1")[0].text == "Everything arrived."
    assert "Every entity was healthy for the whole period." in page.text


def test_an_outage_that_only_the_syphon_tells_of_is_not_called_a_calm_week(tmp_path: Path) -> None:
    page = page_of(Made().drained(NAMES[:1], START + DAY, 7).judged(NAMES), tmp_path)[1]
    assert "No outage" not in page.text
    assert "Every entity was healthy" not in page.text
    assert (
        "A syphon moved messages from the backlog (7 operations), but no sender keeps rows in this ledger." in page.text
    )


def test_an_outage_that_is_not_over_is_drawn_to_the_end_of_the_period(tmp_path: Path) -> None:
    made = Made(days=2).traffic(NAMES).outage(NAMES, START + DAY, 90, is_back=False).judged(NAMES, in_flight=2_700)
    page = page_of(made, tmp_path)[1]
    assert "3 entities are not back yet." in page.text
    assert page.every("h3")[0].text == "Since 2 Nov 2026 00:00 UTC"
    bars = [one for one in page.every("rect") if one.attributes.get("class") == "state failed_over"]
    ends = [float(one.attributes["x"][:-1]) + float(one.attributes["width"][:-1]) for one in bars]
    assert ends == [pytest.approx(100, abs=0.01) for _ in ends]


def test_a_drain_that_does_not_end_leaves_room_for_its_outage(tmp_path: Path) -> None:
    made = Made(days=7).traffic(NAMES).outage(NAMES, START + DAY, 30, left=9).judged(NAMES, in_flight=27)
    page = page_of(made, tmp_path)[1]
    incident = page.every("article")[0]
    assert "27 messages are still in the backlog." in incident.text
    bar = next(one for one in incident.every("rect") if one.attributes.get("class") == "state failed_over")
    assert float(bar.attributes["width"][:-1]) > 15


def test_thousands_of_entities_fit_a_page_and_the_rest_is_counted(tmp_path: Path) -> None:
    names = [f"queue-{number:04}" for number in range(2_000)]
    made = Made(days=2).traffic(names[:300], operations=5)
    for number in range(3):
        made.outage(names, START + number * 6 * HOUR, 4)
    html, page = page_of(made.judged(names), tmp_path)
    assert len(html) < 1_000_000
    assert "the 24 of 2,000 affected entities with the most diverted messages" in page.text
    assert "1,900 more entities" in page.text
    assert any(one.text == "entities failed over" for one in page.every("span"))


def test_a_long_history_shows_its_largest_incidents_and_counts_the_others(tmp_path: Path) -> None:
    made = Made(days=10).traffic(NAMES, operations=5)
    for number in range(20):
        made.outage(NAMES, START + number * 12 * HOUR, 10, each=1 + number)
    page = page_of(made.judged(NAMES), tmp_path)[1]
    assert len(page.every("article")) == 6
    assert "14 smaller outages are not drawn one by one." in page.text
    assert "10 Nov 2026 12:00" in page.every("article")[-1].text


def test_the_shortest_interval_of_a_long_period_is_still_drawn(tmp_path: Path) -> None:
    made = Made(days=90).outage(["orders"], START + 40 * DAY, 2).outage(["orders"], START + 60 * DAY, 2)
    made.judged(["orders"])
    made.traffic(["orders"], operations=1)
    page = page_of(made, tmp_path)[1]
    bar = next(one for one in page.every("rect") if one.attributes.get("class") == "state failed_over")
    assert bar.attributes["x"] == f"{round(100 * (40 * DAY + MINUTE) / (90 * DAY), 3)}%"
    assert "stroke-width: 1.5" in page.every("style")[0].text  # a stroke is as wide as it is, whatever the bar's width


def test_words_that_no_entity_has_anything_to_tell_of_have_no_column(page: Element) -> None:
    (table,) = [one for one in page.every("table") if "seen by" in one.text]
    heads = [one.text for one in table.every("th") if one.attributes.get("scope") == "col"]
    assert heads == ["entity", "seen by", "attempted", "acknowledged", "ok", "lost", "duplicated"]
