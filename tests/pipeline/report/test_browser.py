"""Tests the HTML file in a real browser: it fits, is readable and makes no requests.

`make test` gets a Chromium where there is none (scripts/chromium.py), if it can. What can be known without one is in
test_html.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from scripts.chromium import find
from tests.pipeline.report.sample_tables import START, SampleTables
from tests.pipeline.report.test_html import HOSTILE, full, page_of

from twinbus.report.render.formats import DAY, HOUR

CHROMIUM = find()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="there is no Chromium: run scripts/chromium.py, install one, or name it in TWINBUS_CHROMIUM",
    ),
]

Scheme = Literal["light", "dark"]
WIDTHS = (320, 390, 768, 1280)
#: For each visible text: its contrast with the background, and the minimum of WCAG level AA.
CONTRASTS = """() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = part => (part /= 255, part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour;
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, style = getComputedStyle(node);
    if (!walker.currentNode.data.trim() || !node.checkVisibility({visibilityProperty: true})) continue;
    const isSvg = node.namespaceURI.endsWith("svg");
    if (isSvg && node.tagName === "title") continue;
    const ink = light(parse(isSvg ? style.fill : style.color)), paper = light(behind(node));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    found.push([walker.currentNode.data.trim().slice(0, 40), ratio, isLarge ? 3 : 4.5]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # A container's root may not make a sandbox; the page has no script to keep in one.
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A full report, one with hostile names, and an empty one."""
    hostile = (
        SampleTables().traffic(HOSTILE).outage(HOSTILE, START + DAY, 20, is_back=False).reconciled(HOSTILE, lost=8)
    )
    for name in HOSTILE:
        hostile.anomaly("lost", name, name)
    found = {}
    large = SampleTables().traffic(["orders"], operations=30_000_000).outage(["orders"], START + DAY, 90, each=50_000)
    samples = {"full": full(), "hostile": hostile, "empty": SampleTables(), "large": large.reconciled(["orders"])}
    for name, tables in samples.items():
        folder = tmp_path_factory.mktemp(name)
        found[name] = folder / "report.html"
        found[name].write_text(page_of(tables, folder / "results")[0], encoding="utf-8")
    return found


def opened(browser: Browser, file: Path, width: int, scheme: Scheme = "light") -> tuple[Page, list[str]]:
    """Return the page, and a list of its requests, console messages, errors and dialogs."""
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    said: list[str] = []
    page.on("request", lambda request: said.append(f"asked for {request.url}"))
    page.on("console", lambda event: said.append(event.text))
    page.on("pageerror", lambda event: said.append(str(event)))
    page.on("dialog", lambda event: said.append(f"dialog {event.message}"))
    page.goto(file.as_uri())
    page.locator("details").evaluate_all("all => all.forEach(one => (one.open = true))")
    return page, said


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["full", "hostile", "empty"])
def test_page_fits_every_width_and_makes_no_other_request(
    browser: Browser, files: dict[str, Path], name: str, width: int
) -> None:
    page, said = opened(browser, files[name], width)
    assert said == [f"asked for {files[name].as_uri()}"]
    size = page.evaluate("() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert size[0] <= size[1]
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["full", "hostile", "empty"])
def test_every_text_has_enough_contrast(browser: Browser, files: dict[str, Path], name: str, scheme: Scheme) -> None:
    page, _ = opened(browser, files[name], 1280, scheme)
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 20
    assert [contrast for contrast in contrasts if contrast[1] < contrast[2]] == []
    page.context.close()


def test_background_follows_the_color_scheme(browser: Browser, files: dict[str, Path]) -> None:
    seen = []
    schemes: tuple[Scheme, ...] = ("light", "dark")
    for scheme in schemes:
        page, _ = opened(browser, files["full"], 390, scheme)
        seen.append(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))
        page.context.close()
    assert seen == ["rgb(246, 247, 249)", "rgb(15, 19, 24)"]


def test_hovering_over_the_backlog_shows_its_depth(browser: Browser, files: dict[str, Path]) -> None:
    page, _ = opened(browser, files["full"], 1280)
    area = page.locator("article").first.locator(".track-area svg.plot")
    peaks = area.locator(".peak")
    assert peaks.evaluate_all("all => all.filter(one => getComputedStyle(one).visibility === 'visible').length") == 0
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 80)
    seen = peaks.evaluate_all(
        "all => all.filter(one => getComputedStyle(one).visibility === 'visible').map(one => one.textContent)"
    )
    assert len(seen) == 1
    assert seen[0].endswith("2 Nov 2026 00:24")
    page.context.close()


def test_plots_fill_the_width_and_their_text_keeps_its_size(browser: Browser, files: dict[str, Path]) -> None:
    sizes = {}
    for width in (390, 1280):
        page, _ = opened(browser, files["full"], width)
        plot = page.locator(".track svg.plot").first
        text = page.locator(".track-axis text.tick").first
        box = plot.bounding_box()
        assert box is not None
        sizes[width] = box["width"], text.evaluate("one => getComputedStyle(one).fontSize")
        page.context.close()
    assert sizes[390][0] > 280
    assert sizes[1280][0] > 700
    assert sizes[390][1] == sizes[1280][1] == "12px"


@pytest.mark.parametrize("name", ["full", "large"])
def test_at_380_pixels_every_column_of_the_bill_is_visible(browser: Browser, files: dict[str, Path], name: str) -> None:
    page, _ = opened(browser, files[name], 380)
    bill = page.locator("table.bill")
    cells = bill.locator("th, td").evaluate_all(
        "all => all.map(one => { const box = one.getBoundingClientRect(); return [box.left, box.right]; })"
    )
    assert len(cells) == 4 * 3  # the heads, operations and the base charge
    assert all(0 <= left < right <= 380 for left, right in cells)
    sizes = bill.evaluate("one => [one.parentElement.scrollWidth, one.parentElement.clientWidth]")
    assert sizes[0] <= sizes[1]
    words = bill.locator("tbody th").evaluate_all(
        """all => all.map(one => {
          const text = one.innerText, box = one.getBoundingClientRect().width, probe = document.createElement("span");
          one.append(probe);
          const widths = text.split(/\\s+/).map(word => { probe.textContent = word; return probe.offsetWidth; });
          probe.remove();
          return [Math.max(...widths), box];
        })"""
    )
    assert all(longest_word <= column for longest_word, column in words)  # no word is broken
    page.context.close()


def test_page_can_be_printed(browser: Browser, files: dict[str, Path]) -> None:
    page, _ = opened(browser, files["full"], 1280, "dark")
    page.emulate_media(media="print")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.context.close()


def test_page_of_thousands_of_entities_stays_small(browser: Browser, tmp_path: Path) -> None:
    names = [f"queue-{number:04}" for number in range(2_000)]
    tables = SampleTables(days=2).traffic(names[:100], operations=5).outage(names, START + HOUR, 30).reconciled(names)
    file = tmp_path / "report.html"
    file.write_text(page_of(tables, tmp_path / "results")[0], encoding="utf-8")
    page, _ = opened(browser, file, 390)
    assert page.evaluate("() => document.querySelectorAll('*').length") < 40_000
    page.context.close()
