"""`twinbus pipeline`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.conftest import untouched_logging as untouched_logging
from tests.pipeline.ledger_files import START, an_operation, put
from typer.testing import CliRunner, Result

from twinbus.cli.main import app
from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WIDE = {"COLUMNS": "220", "NO_COLOR": "1", "TERM": "dumb"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", *arguments], env=WIDE)


@pytest.fixture(autouse=True)
def untouched_signals() -> Iterator[None]:
    """A command that watches handles signals until its process ends. That of the tests goes on."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Three sends of which one is there twice, a gap of five rows, and something foreign."""
    sends = [an_operation(START + number, message_id=f"m-{number}", destination="orders") for number in range(3)]
    gap = {"namespace": NamespaceRole.NEITHER, "operation": OperationKind.DROPPED, "stage": Stage.LEDGER, "entity": ""}
    put(tmp_path / "ledger", [*sends, an_operation(START + 9, **gap, count=5, outcome=Outcome.FAILED)])
    put(tmp_path / "ledger", sends[1:2])
    (tmp_path / "ledger" / "notes.txt").touch()
    return tmp_path / "ledger"


def test_a_run_says_what_it_has_read_and_what_there_is(ledger: Path, spark: SparkSession) -> None:
    result = run("run", str(ledger), "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer.keys() == {
        "results", "snapshot", "published", "seconds", "ingested", "ledger", "unreadable", "reconciliation"
    }  # fmt: skip
    assert answer["results"] == f"file://{ledger}-results"
    assert (answer["snapshot"], answer["published"]) == (1, True)
    assert answer["ingested"] == {"days": ["2026-11-01"], "rows": 5}
    size = sum(file.stat().st_size for file in ledger.rglob("*.parquet"))
    assert answer["ledger"] == {
        "days": 1,
        "files": 2,
        "bytes": size,
        "rows": 4,
        "repeated_rows": 1,
        "dropped_rows": 5,
        "first": "2026-11-01T00:00:00.000000+00:00",
        "last": "2026-11-01T00:00:00.000009+00:00",
    }
    assert answer["unreadable"] == [{"path": "notes.txt", "reason": "not in a day folder of a ledger"}]
    assert answer["reconciliation"]["acknowledged"] == 3

    again = run("run", str(ledger))
    assert again.exit_code == 0
    assert "nothing has changed" in again.stdout
    assert "ledger: 4 rows of 1 day in 2 files; 1 repeated row, 5 dropped rows" in again.stdout
    assert "notes.txt was left out: not in a day folder of a ledger" in again.stderr


def test_reconciliation_can_be_left_out_and_results_kept_elsewhere(
    ledger: Path, tmp_path: Path, spark: SparkSession
) -> None:
    result = run("run", str(ledger), "--results", str(tmp_path / "elsewhere"), "--no-reconcile", "--json")
    assert json.loads(result.stdout)["reconciliation"] is None
    assert (tmp_path / "elsewhere" / "usage" / "day=2026-11-01").is_dir()
    assert not (tmp_path / "elsewhere" / "verdicts").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "{nothing}"], 2, "there is no ledger at "),
        (["watch", "{nothing}"], 2, "there is no ledger at "),
        (["watch", "{ledger}", "--interval", "0"], 2, "interval must be from 1 to 86400 seconds"),
        (["run", "{ledger}", "--log-level", "loud"], 2, "--log-level must be one of"),
        (["run", "{ledger}", "--patience", "31d"], 2, "--patience must be from 0 to 30 days, not 31d"),
        (["watch", "{ledger}", "--patience", "soon"], 2, "--patience must be a duration"),
        (
            ["run", "{ledger}", "--results", "abfs://container/x"],
            2,
            "--results: abfs://container/x does not name",
        ),
        (["run", "{ledger}", "--results", "{ledger}"], 2, "--results must be outside the ledger"),
        (["run", "{ledger}", "--results", "{file}"], 2, "--results must be a folder"),
        (["run", "{ledger}", "--results", "/proc/none/here"], 2, "--results: the folder cannot be created"),
        (["run", "{ledger}", "--horizon", "0"], 2, "--horizon must be from 1 to 366, got 0"),
        (["run", "{ledger}", "--format", "nonsense"], 2, "this Spark cannot write nonsense tables to "),
        (["run", "{empty}"], 2, "there are no files of a ledger at "),
        (["run", "{ledger}", "--storage-option", "key"], 2, "--storage-option must be KEY=VALUE"),
        (["run", "{ledger}", "--master", "nonsense"], 2, "master must be one of"),
        (["run", "{ledger}", "--memory", "much"], 2, "memory must be"),
        (["run", "{ledger}", "--master", "local[2]", "--remote", "sc://host"], 2, "not both"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    arguments: list[str], code: int, message: str, ledger: Path, spark: SparkSession
) -> None:
    file = ledger.with_name("file")
    file.touch()
    empty = ledger.with_name("empty")
    (empty / "day=2026-11-01").mkdir(parents=True)
    given = {"nothing": ledger.with_name("nothing"), "ledger": ledger, "file": file, "empty": empty}
    places = {f"{{{name}}}": str(path) for name, path in given.items()}
    result = run(*(places.get(one, one) for one in arguments))
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("twinbus pipeline: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(ledger.parent.glob("*-results"))


def test_watching_ends_with_a_signal(ledger: Path) -> None:
    command = [sys.executable, "-m", "twinbus", "pipeline", "watch", str(ledger), "--interval", "1", "--json"]
    with subprocess.Popen([*command, "--memory", "1g"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            first = json.loads(process.stdout.readline())
            assert first["ledger"]["rows"] == 4
            put(ledger, [an_operation(START + 100)])
            second = json.loads(process.stdout.readline())
            assert second["ledger"]["rows"] == 5
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()
