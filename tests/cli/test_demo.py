"""`twinbus demo`, as a first-time user sees it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.cli.test_every_command import documented

DEMO = [sys.executable, "-m", "twinbus", "demo"]
SECONDS = 400


def processes_in(folder: Path) -> list[str]:
    """The command lines of processes that name this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def in_a_terminal(*arguments: str) -> tuple[int, str, str]:
    """Run the demo in a terminal; return the exit code, standard output and what the terminal showed."""
    master, slave = pty.openpty()
    with subprocess.Popen([*DEMO, *arguments], stdout=subprocess.PIPE, stderr=slave, text=True) as process:
        os.close(slave)
        shown = b""
        with suppress(OSError):  # what Linux says when the other end is closed
            while data := os.read(master, 65536):
                shown += data
        os.close(master)
        output, _ = process.communicate(timeout=SECONDS)
    return process.returncode, output, shown.decode()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
def test_demo_shows_an_outage_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    code, output, shown = in_a_terminal("--json", "--seconds", "4", "--folder", str(folder))
    assert code == 0, shown
    (line,) = output.splitlines()
    found = json.loads(line)
    assert set(found) == documented()["demo"]
    assert found["attempted"] >= found["acknowledged"] == found["ok"] > 100
    assert (found["lost"], found["unexpected"], found["duplicated"]) == (0, 0, 0)
    assert found["failover_seconds"] > 0
    assert found["drain_seconds"] > 0
    assert float(found["cost"]["total"]) >= float(found["cost"]["pairing"]) >= 0
    assert Path(found["report"]).read_text().startswith("<!doctype html>")
    for text in (
        "contoso is killed",
        "orders has failed over",
        "a ping succeeded",
        "messages moved to contoso",
        "lost 0",
    ):
        assert text in shown
    assert "by the backlog" in shown  # the table that changes
    assert processes_in(folder) == []


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    # The test may run where Ctrl-C is ignored; a program that is started there would inherit that.
    with subprocess.Popen(
        [*DEMO, "--folder", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert any("listens on port" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(90) == 1
    deadline = time.monotonic() + 10
    while processes_in(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_in(folder) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--fault", "flood"), "--fault must be kill or blackhole"),
        (("--folder", __file__), "--folder must be an empty or a new folder"),
        (("--seconds", "0"), "--seconds"),
    ],
)
def test_invalid_option_is_named_in_the_error(arguments: tuple[str, ...], says: str) -> None:
    ran = subprocess.run([*DEMO, *arguments], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert says in ran.stderr
