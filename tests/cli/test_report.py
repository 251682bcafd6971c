"""Tests `twinbus report`: output, files and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.report.sample_tables import START, LeftOut, SampleTables
from tests.tables.result_files import GENERATION_ROW, ResultFiles
from typer.testing import CliRunner, Result

from twinbus.cli.main import app
from twinbus.report.render.formats import DAY, HOUR

WIDE = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
NAMES = ["orders", "events"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)], env=WIDE)


def answer(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(code: int, *arguments: str | Path) -> str:
    """Return the error text; checks that it is one line, with nothing on standard output."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("twinbus report: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "ledger-results"
    tables = SampleTables(days=3).traffic(NAMES).outage(NAMES, START + DAY, 20).outage(["orders"], START + 2 * DAY, 10)
    tables.reconciled(NAMES, lost=1).anomaly("lost", "id-1", "orders").write(folder)
    return folder


def test_first_line_is_the_verdict(store: Path) -> None:
    result = run(store)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "✗ 1 accepted message did not arrive."


def test_path_of_a_ledger_finds_the_results_beside_it(store: Path) -> None:
    assert answer(store.with_name("ledger"))["source"] == answer(store)["source"]


def test_json_has_the_documented_keys(store: Path) -> None:
    found = answer(store)
    assert set(found) == {
        "format", "made_at", "source", "period", "verdict", "reconciliation", "anomalies", "incidents", "outages",
        "timeline", "backlog", "latency", "cost", "gaps", "forced_failovers", "no_data",
    }  # fmt: skip
    assert found["format"] == 1
    assert found["period"] == {
        "since": "2026-11-01T00:00:00.000000Z", "until": "2026-11-04T00:00:00.000000Z", "is_chosen": False,
        "time_zone": "UTC",
    }  # fmt: skip
    assert found["verdict"] == {
        "word": "lost", "sentence": "1 accepted message did not arrive.", "details": [], "valid": False,
        "verdict": "invalid",
    }  # fmt: skip
    assert found["reconciliation"]["lost"] == found["anomalies"]["count"] == 1
    assert found["anomalies"]["shown"][0]["message_id"] == "id-1"
    assert found["anomalies"]["shown"][0]["first_at"] == "2026-11-01T00:00:00.000000Z"
    assert [(incident["began"], incident["entities"], incident["diverted"]) for incident in found["incidents"]] == [
        ("2026-11-02T00:00:00.000000Z", ["events", "orders"], 400),
        ("2026-11-03T00:00:00.000000Z", ["orders"], 100),
    ]
    assert [timeline["entity"] for timeline in found["timeline"]] == ["events", "orders"]
    assert {interval["state"] for interval in found["timeline"][1]["intervals"]} == {
        "suspect",
        "failed_over",
        "draining",
    }
    assert (found["backlog"]["now"], found["backlog"]["peak"]) == (0, 400)
    assert found["source"] == {
        "results": f"file://{store}", "snapshot": 1, "made_at": "2026-11-04T00:00:00.000000Z",
        "rows": 2 * 2 * 1_000 * 72 + 500 + 500, "files": 3, "versions": {"twinbus": "0.1.0", "spark": "4.3.0"},
    }  # fmt: skip
    assert set(found["anomalies"]["shown"][0]) == {
        "word", "destination", "message_id", "first_at", "last_at", "sends", "moves", "arrivals", "evidence",
    }  # fmt: skip
    assert found["gaps"] == {"dropped_rows": 0, "left_out": []}
    assert found["forced_failovers"] == found["no_data"] == []


def test_cost_matches_the_usage(store: Path) -> None:
    cost = answer(store)["cost"]
    # Two entities send and receive 1,000 messages an hour for three days; 500 were diverted and came back.
    assert cost["operations"] == 2 * 2 * 1_000 * 72 + 500 + 500
    assert {stage["stage"]: stage["operations"] for stage in cost["stages"]}["backlog_send"] == 500
    assert cost["currency"] == "USD"
    assert cost["total"] == "0.967752"  # the base charge of 72 hours: all operations are included


def test_period_limits_everything_but_the_reconciliation(store: Path) -> None:
    found = answer(store, "--since", "2026-11-03", "--until", "2026-11-03T12:00")
    assert found["period"]["is_chosen"]
    assert len(found["incidents"]) == len(found["outages"]) == 1
    assert found["cost"]["operations"] == 2 * 2 * 1_000 * 12 + 100 + 100
    assert found["reconciliation"]["attempted"] == 2_000
    assert answer(store, "--since", "2026-11-03T02:00+02:00")["period"]["since"] == "2026-11-03T00:00:00.000000Z"


def test_period_without_rows_has_an_empty_report(store: Path) -> None:
    found = answer(store, "--since", "2027-01-01", "--until", "2027-01-02")
    assert found["outages"] == found["latency"] == []
    assert found["cost"]["operations"] == 0
    assert run(store, "--since", "2027-01-01", "--until", "2027-01-02").exit_code == 0


def test_html_writes_one_file_and_prints_the_verdict(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    result = run(store, "--html", file)
    assert (result.exit_code, result.stdout) == (0, f"1 accepted message did not arrive. {file}\n")
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert answer(store, "--html", file)["verdict"]["word"] == "lost"


def test_options_set_prices_tiers_and_subscriptions(store: Path, tmp_path: Path) -> None:
    book = tmp_path / "prices.toml"
    tier = "[tiers.gold]\noperations = [{ above = 0, per_million = 1 }]"
    book.write_text(f'currency = "EUR"\ndate = 2026-01-01\nsource = "ours"\n{tier}\n')
    found = answer(store, "--prices", book, "--primary-tier", "gold", "--secondary-tier", "gold")["cost"]
    assert (found["currency"], found["total"]) == ("EUR", "0.289")
    topic = answer(store, "--subscriptions", "events=3")["cost"]
    assert topic["operations"] == found["operations"] + 3 * 72_000
    assert answer(store, "--secondary-tier", "premium")["cost"]["tiers"]["secondary"] == "premium"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--since", "2026-11-31"], "--since must be a day or a time, such as 2026-11-01"),
        (["--until", "yesterday"], "--until must be a day or a time"),
        (["--since", "2026-11-01T13:30"], "--since must be a whole hour"),
        (["--since", "1960-01-01"], "--since must be 1970 or later"),
        (["--since", "2026-11-02", "--until", "2026-11-02"], "--until must be later than 2026-11-02T00:00"),
        (["--since", "2027-01-01"], "--since must be earlier than 2026-11-04T00:00, where the results end"),
        (["--since", "0001-01-01T00:00+23:00"], "--since must be a day or a time"),
        (["--until", "9999-12-31"], "--since and --until must be at most 3,660 days apart"),
        (["--primary-tier", "platinum"], "tier must be one of"),
        (["--primary-units", "0"], "--primary-units must be a whole number from 1 to"),
        (["--subscriptions", "events"], "--subscriptions must be a topic and a number, such as events=3"),
        (["--subscriptions", "events=9999"], "subscriptions of events must be a whole number from 0 to 2000"),
        (["--transfer-per-gb", "much"], "--transfer-per-gb must be a number"),
        (["--prices", "missing.toml"], "missing.toml: No such file or directory"),
    ],
)
def test_usage_error_names_the_option(store: Path, arguments: list[str], words: str) -> None:
    assert words in refused(2, store, *arguments)


def test_unknown_protocol_is_a_usage_error() -> None:
    assert "nosuch" in refused(2, "nosuch://somewhere/results")


def test_missing_results_error_names_the_command_to_run(tmp_path: Path) -> None:
    assert "run `twinbus pipeline run` first" in refused(1, tmp_path / "ledger")


def test_results_of_a_newer_release_are_refused(tmp_path: Path) -> None:
    ResultFiles(tmp_path).generation(version=GENERATION_ROW["version"] + 1, twinbus="9.9")
    assert "later release of twinbus (9.9)" in refused(1, tmp_path)


def test_results_in_another_format_need_spark(tmp_path: Path) -> None:
    ResultFiles(tmp_path).generation(format="delta")
    assert "without Spark only Parquet is read: read them with `twinbus.spark.read_table`" in refused(1, tmp_path)


def test_results_of_a_killed_run_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.tables.result_reader.PATIENCE", 0.3)
    files = SampleTables(days=1).traffic(NAMES).write(tmp_path)
    files.generation(state="writing")
    assert "a run that began at 2026-11-08 00:00:00 UTC is writing the results" in refused(1, tmp_path)
    files.remove("_generation")
    assert "`_generation` is missing" in refused(1, tmp_path)


@pytest.mark.parametrize("table", ["usage", "activity", "latency", "verdicts", "anomalies", "_inputs", "_generation"])
@pytest.mark.parametrize("damage", ["cut", "foreign"])
def test_damaged_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, damage: str) -> None:
    monkeypatch.setattr("twinbus.tables.result_reader.PATIENCE", 0.3)
    tables = SampleTables(days=1).traffic(NAMES).outage(NAMES, START + HOUR, 5).reconciled(NAMES)
    tables.anomaly("lost", "id-1", "orders").write(tmp_path)
    file = next(path for path in tmp_path.rglob("*.parquet") if table in path.parts)
    file.write_bytes(file.read_bytes()[:-7] if damage == "cut" else b"PAR1 of something else PAR1")
    assert f"the results are damaged: {file} cannot be read" in refused(1, tmp_path)


def test_removed_day_is_an_error(tmp_path: Path) -> None:
    files = SampleTables(days=3).traffic(NAMES).reconciled(NAMES).write(tmp_path)
    files.remove("usage/day=2026-11-02")
    assert "usage has no rows of 2026-11-02" in refused(1, tmp_path)
    files.remove("usage")
    assert "usage has no rows of 2026-11-01" in refused(1, tmp_path)


def test_expired_days_are_not_damage(tmp_path: Path) -> None:
    SampleTables(days=3).traffic(NAMES).reconciled(NAMES).write(tmp_path).remove("usage/day=2026-11-01")
    assert answer(tmp_path)["period"]["since"] == "2026-11-02T00:00:00.000000Z"


@pytest.mark.parametrize("lost", [0, 2])
def test_an_unreadable_file_makes_the_verdict_unknown(tmp_path: Path, lost: int) -> None:
    tables = SampleTables(days=1, left_out=[LeftOut("odd.parquet", "unreadable", "not Parquet")])
    tables.traffic(NAMES).reconciled(NAMES, lost=lost).write(tmp_path)
    found = answer(tmp_path)
    assert (found["verdict"]["word"], found["verdict"]["valid"], found["verdict"]["verdict"]) == (
        "unknown",
        None,
        "unknown",
    )
    assert (found["reconciliation"]["valid"], found["reconciliation"]["verdict"]) == (None, "unknown")
    assert found["reconciliation"]["lost"] == lost
    assert found["gaps"]["left_out"] == [{"path": "day=2026-11-01/odd.parquet", "reason": "not Parquet"}]
    lines = run(tmp_path).stdout.splitlines()
    assert lines[0] == "✗ Whether everything arrived is unknown: 1 file of the ledger could not be read."
    assert "Is anything missing? Not known." in run(tmp_path).stdout


def test_report_of_unreadable_files_only_is_not_empty(tmp_path: Path) -> None:
    SampleTables(left_out=[LeftOut("odd.parquet", "unreadable", "not Parquet")]).reconciled([]).write(tmp_path)
    assert answer(tmp_path)["verdict"]["valid"] is None
    text = run(tmp_path).stdout
    assert "Nothing yet" not in text
    assert "Is anything missing? Nothing" not in text


def test_without_reconciliation_old_tables_are_ignored(tmp_path: Path) -> None:
    tables = SampleTables(days=1).traffic(NAMES).reconciled(NAMES).anomaly("lost", "id-1", "orders")
    tables.is_reconciled = False
    tables.write(tmp_path)
    found = answer(tmp_path)
    assert (found["reconciliation"], found["anomalies"]) == (None, {"count": 0, "shown": []})
    assert (found["verdict"]["word"], found["verdict"]["valid"], found["verdict"]["verdict"]) == (
        "not_reconciled",
        False,
        "unknown",
    )


def test_time_without_rows_is_never_billed(tmp_path: Path) -> None:
    SampleTables().traffic(NAMES, days=[0, 4]).write(tmp_path)

    def hours(*arguments: str) -> list[str]:
        charges = answer(tmp_path, *arguments)["cost"]["charges"]
        return [charge["quantity"] for charge in charges if charge["item"] == "base"]

    assert hours() == ["48"]
    assert hours("--since", "2026-10-01", "--until", "2027-02-01") == ["48"]
    assert hours("--since", "2026-11-01T18:00", "--until", "2026-11-05T02:00") == ["8"]
    assert hours("--since", "2026-11-02", "--until", "2026-11-05") == []
    assert hours("--until", "2026-11-03") == ["24"]


def test_results_are_read_from_a_url_with_storage_options(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}-{id(tmp_path)}/ledger-results"
    SampleTables(days=1).traffic(NAMES).reconciled(NAMES).write(url)
    found = answer(url, "--storage-option", "anon=true", "--storage-option", 'client_kwargs={"endpoint_url": "x"}')
    assert (found["verdict"]["verdict"], found["source"]["results"]) == ("valid", url)
    assert answer(url.removesuffix("-results"))["source"]["results"] == url


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("secret", "--storage-option must be KEY=VALUE; number 1 is not"),
        ("=secret", "--storage-option must be KEY=VALUE"),
        ("key={secret", "--storage-option key must be JSON, as it begins with {"),
    ],
)
def test_invalid_storage_options_are_refused_without_showing_their_value(store: Path, option: str, words: str) -> None:
    text = refused(2, store, "--storage-option", option)
    assert words in text
    assert "secret" not in text


def test_storage_option_given_twice_is_refused(store: Path) -> None:
    text = refused(2, store, "--storage-option", "key=a", "--storage-option", "key=b")
    assert "--storage-option key must be given only once" in text


def test_unwritable_file_is_named(store: Path, tmp_path: Path) -> None:
    assert f"{tmp_path / 'no' / 'report.html'}: No such file" in refused(
        1, store, "--html", tmp_path / "no/report.html"
    )
    assert f"{tmp_path}: " in refused(1, store, "--html", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_report_imports_neither_spark_nor_the_sdk(store: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from twinbus.cli.main import app;"
        f"r = CliRunner().invoke(app, ['report', {str(store)!r}, '--html', {str(tmp_path / 'r.html')!r}]);"
        "print(r.exit_code, sorted({'pyspark', 'py4j', 'azure.servicebus'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0 []\n", done.stderr


def test_without_jinja2_only_html_fails_and_names_the_extra(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("jinja2", "twinbus.report.render.html"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run(store).exit_code == 0
    assert "the extra `report`: pip install '.[report]'" in refused(1, store, "--html", tmp_path / "report.html")
