"""The tutorial does what it says: its program and its commands run in an empty folder and print what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial" / "first-outage.md").read_text("utf-8")
#: Seconds for one command, on a machine that is busy.
PATIENCE = 400
#: These are already installed here.
INSTALLS = ("python3 -m venv", "pip install")
#: Events that the page says may or may not be printed.
OPTIONAL_EVENTS = ("PingFailed",)


def section(title: str) -> str:
    found = re.search(rf"^## \d+\. {re.escape(title)}\n(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def blocks(title: str, language: str) -> list[str]:
    """The blocks of a language in a section; "" for what a command prints."""
    return [
        text
        for name, text in re.findall(r"^```(\w*)\n(.*?)^```$", section(title), re.DOTALL | re.MULTILINE)
        if name == language
    ]


def commands(title: str) -> list[str]:
    lines = [line for block in blocks(title, "sh") for line in block.splitlines()]
    return [line for line in lines if not line.startswith(INSTALLS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program of the page, and nothing else."""
    folder = tmp_path_factory.mktemp("tutorial")
    (program,) = blocks("Write the program", "python")
    (folder / "first_outage.py").write_text(program, "utf-8")
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell as the page does after `. .venv/bin/activate`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TWINBUS_")}
    environment = {**plain, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{plain['PATH']}", "COLUMNS": "200"}
    ran = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    return ran


# Events are printed by another thread, so they may stand anywhere, even at the end of another line.
def events(text: str) -> Counter[str]:
    names = re.findall(r"\b(?:[A-Z][a-z]+)+\b", text)
    return Counter(name for name in names if name not in OPTIONAL_EVENTS)


def orders(text: str) -> list[str]:
    """What the program says of each order, without the events."""
    return re.findall(r"received order \d|order \d: [A-Z]+", text)


@pytest.fixture(scope="module")
def first_run(folder: Path) -> subprocess.CompletedProcess[str]:
    (command,) = commands("Run it")
    return run(command, folder)


def test_program_prints_the_lines_of_the_page(first_run: subprocess.CompletedProcess[str]) -> None:
    (shown,) = blocks("Run it", "")
    printed = first_run.stdout
    assert orders(printed) == orders(shown)
    # The two messages of the outage may be reported as moved together or one by one.
    assert set(events(printed)) == set(events(shown))
    assert events(printed)["Diverted"] == events(shown)["Diverted"]


def test_program_logs_the_warning_of_the_page(first_run: subprocess.CompletedProcess[str]) -> None:
    (warning,) = re.findall(r"warnings such as `([^`]+)`", section("Run it"))
    assert warning in first_run.stderr.splitlines()


def test_ledger_shows_the_rows_that_the_page_explains(
    folder: Path, first_run: subprocess.CompletedProcess[str]
) -> None:
    show = commands("See the evidence")[0]
    rows = [line.split()[2:4] for line in run(show, folder).stdout.splitlines()[1:]]
    stages = Counter(stage for operation, stage in rows if operation == "send")
    # `direct` has order 1, the failure of order 2, and order 4.
    assert stages == {"direct": 3, "backlog_send": 2, "primary_send": 2}
    assert {"create", "get"} <= {operation for operation, _ in rows}


def test_pipeline_and_report_say_what_the_page_shows(folder: Path, first_run: subprocess.CompletedProcess[str]) -> None:
    pytest.importorskip("pyspark")
    _, pipeline, report = commands("See the evidence")
    (shown,) = blocks("See the evidence", "")
    assert set(shown.splitlines()) <= set(run(pipeline, folder).stdout.splitlines())
    (first,) = re.findall(r"The report begins with `([^`]+)`", section("See the evidence"))
    assert run(report, folder).stdout.startswith(first)
    page = (folder / "report.html").read_text("utf-8")
    assert first in page
    assert "2 messages diverted" in page


def test_black_hole_diverts_the_order_that_gets_no_answer(folder: Path) -> None:
    change = re.search(r"Change `([^`]+)` to `([^`]+)`, with `([^`]+)` at the top", section("Break it differently"))
    assert change is not None
    old, new, line = change.groups()
    program = (folder / "first_outage.py").read_text("utf-8")
    assert program.count(old) == 1
    (folder / "black_hole.py").write_text(f"{line}\n{program.replace(old, new)}", "utf-8")
    said = orders(run("python black_hole.py", folder).stdout)
    assert said[:3] == ["order 1: PRIMARY", "order 2: BACKLOG", "order 3: BACKLOG"]
    # Order 2 may arrive twice.
    assert {f"received order {number}" for number in (1, 2, 3, 4)} == {line for line in said if line.startswith("rec")}
