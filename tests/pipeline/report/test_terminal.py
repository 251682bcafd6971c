"""Tests the report in the terminal: the verdict first, on one screen."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from tests.pipeline.report.sample_tables import START, SampleTables
from tests.pipeline.report.test_html import HOSTILE, NAMES, NOW, full

from twinbus.report.assemble import Wishes, assemble, open_results
from twinbus.report.cost.prices import load_prices
from twinbus.report.render.formats import DAY, HOUR
from twinbus.report.render.terminal import show


def lines_of(tables: SampleTables, folder: Path, width: int = 100) -> list[str]:
    tables.write(folder)
    report = assemble(open_results(str(folder)), Wishes(book=load_prices()), now=NOW)
    screen = io.StringIO()
    show(report, Console(file=screen, width=width, highlight=False, markup=False))
    return [line.replace("\N{NO-BREAK SPACE}", " ").rstrip() for line in screen.getvalue().splitlines()]


def test_the_verdict_comes_first_then_the_three_answers(tmp_path: Path) -> None:
    lines = lines_of(full(), tmp_path)
    assert lines[0] == "✗ 2 accepted messages did not arrive."
    questions = [line for line in lines if "? " in line]
    assert questions[0].startswith("What happened? 2 outages. 3 entities, 5,900 messages diverted.")
    assert questions[1].startswith("Is anything missing? 2 lost.")
    assert questions[2].startswith("What did it cost? USD ")
    assert "  lost: id-1 to orders, last seen 1 Nov 2026 00:00" in lines


def test_report_always_fits_one_screen(tmp_path: Path) -> None:
    tables = full()
    for number in range(12):
        tables.outage(NAMES, START + number * 12 * HOUR + 6 * HOUR, 9)
        tables.anomaly("lost", f"another-{number}", "mail")
    for width in (80, 120):
        lines = lines_of(tables, tmp_path / str(width), width)
        assert len(lines) <= 48
        assert max(map(len, lines)) <= width
    assert "  the newest 5 of 14" in lines


def test_the_depth_of_the_backlog_is_drawn(tmp_path: Path) -> None:
    tables = SampleTables(days=1).traffic(NAMES).outage(["orders"], START + 12 * HOUR, 60, each=100, is_back=False)
    line = next(line for line in lines_of(tables.reconciled(NAMES), tmp_path) if line.startswith("  backlog"))
    assert line.endswith("peak 6,000, 1 Nov 2026 12:59")
    bars = line.removeprefix("  backlog ").split(" peak")[0]
    assert bars.strip(" ").lstrip("▁▂▃▄▅▆▇").strip("█") == ""
    assert len(bars) / 2 - 1 <= len(bars.strip(" ")) <= len(bars) / 2 + 1


def test_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    tables = SampleTables().traffic(HOSTILE).outage(HOSTILE, START + DAY, 5).reconciled(HOSTILE, lost=1)
    tables.anomaly("lost", "\x1b]0;owned\x07[bold]id[/bold]", "\x1b[2Jorders")
    text = "\n".join(lines_of(tables, tmp_path))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]id[/bold]" in text


def test_empty_ledger_is_called_empty(tmp_path: Path) -> None:
    assert lines_of(SampleTables(), tmp_path)[0] == "· The ledger is empty."
