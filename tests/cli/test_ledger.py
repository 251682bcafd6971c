"""`twinbus ledger`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.rows import DAY, NOON, a_send
from tests.ledger.stores import Obstinate
from typer.testing import CliRunner, Result

from twinbus.cli.main import app
from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.ledger.schema import message_key
from twinbus.ledger.writer import LedgerWriter

WIDE = {"COLUMNS": "220", "NO_COLOR": "1", "TERM": "dumb"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ledger", *arguments], env=WIDE)


def rows_of(*arguments: str) -> list[dict[str, Any]]:
    result = run("show", *arguments, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert set(answer) == {"rows", "unreadable"}
    found: list[dict[str, Any]] = answer["rows"]
    return found


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    with LedgerWriter(tmp_path) as writer:
        writer.record(a_send("order-1", op_id="00ff" * 8))
        writer.record(
            a_send(
                "order-2",
                ts=NOON + 1,
                namespace=NamespaceRole.SECONDARY,
                entity="contoso/x-servicebus-transfer/0",
                stage=Stage.BACKLOG_SEND,
                backlog_queue="contoso/x-servicebus-transfer/0",
            )
        )
        writer.record(
            a_send(
                None,
                ts=NOON + 2,
                entity="events",
                destination=None,
                operation=OperationKind.PING,
                stage=Stage.PING,
                outcome=Outcome.FAILED,
                error="ServiceBusConnectionError",
                latency_us=None,
            )
        )
    return str(tmp_path)


def test_newest_rows_are_printed_as_a_table(ledger: str) -> None:
    result = run("show", ledger)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines == [
        "time (UTC) operation stage outcome latency bytes count entity, message, error",
        "2026-11-16 12:00:00.000 send direct done 0.3 ms 1200 1 orders order-1",
        "2026-11-16 12:00:00.000 send backlog_send done 0.3 ms 1200 1 contoso/x-servicebus-transfer/0 → orders order-2",
        "2026-11-16 12:00:00.000 ping ping failed 1200 1 events ServiceBusConnectionError",
    ]


def test_json_has_every_column_with_codes_as_names(ledger: str) -> None:
    assert rows_of(ledger)[0] == {
        "op_id": "00ff" * 8,
        "ts": "2026-11-16T12:00:00.000000+00:00",
        "pairing": "contoso",
        "client": "client-1",
        "namespace": "primary",
        "entity": "orders",
        "operation": "send",
        "stage": "direct",
        "message_id": "order-1",
        "message_key": message_key("order-1"),
        "destination": "orders",
        "backlog_queue": None,
        "sequence_number": None,
        "delivery_count": None,
        "attempt": 1,
        "bytes": 1200,
        "count": 1,
        "outcome": "done",
        "error": None,
        "latency_us": 300,
    }


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ((), ["order-1", "order-2", None]),
        (("--entity", "orders"), ["order-1", "order-2"]),
        (("--entity", "events"), [None]),
        (("--message-id", "order-2"), ["order-2"]),
        (("--operation", "PING"), [None]),
        (("--stage", "direct", "--outcome", "done"), ["order-1"]),
        (("--limit", "2"), ["order-2", None]),
        (("--entity", "nothing"), []),
    ],
)
def test_rows_can_be_filtered(arguments: tuple[str, ...], ids: list[str | None], ledger: str) -> None:
    assert [row["message_id"] for row in rows_of(ledger, *arguments)] == ids


def test_unknown_code_is_printed_as_a_number(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        writer.record(a_send(operation=99))
    (row,) = rows_of(str(tmp_path))
    assert row["operation"] == 99
    assert " 99 " in run("show", str(tmp_path)).stdout


def test_empty_ledger_prints_no_rows(tmp_path: Path) -> None:
    assert run("show", str(tmp_path)).stdout == "no rows\n"


def test_unreadable_files_are_reported_and_the_rest_is_shown(ledger: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    result = run("show", ledger)
    assert result.exit_code == 0
    assert result.stderr == "twinbus ledger: notes.txt was left out: not a file of a ledger\n"
    assert "order-1" in result.stdout
    answer = json.loads(run("show", ledger, "--json").stdout)
    assert answer["unreadable"] == [{"path": "notes.txt", "reason": "not a file of a ledger"}]


def test_control_characters_in_an_id_do_not_reach_the_terminal(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        writer.record(a_send("\x1b]0;gotcha\x07[red]"))
    printed = run("show", str(tmp_path)).stdout
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert "[red]" in printed


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "nowhere"), 1, "there is no ledger at "),
        (("show", "sftp://host/ledger"), 2, "files do not appear whole"),
        (("show", ".", "--operation", "sing"), 2, "--operation must be one of send, receive"),
        (("show", ".", "--limit", "0"), 2, "'--limit'"),
        (("show",), 2, "Missing argument"),
        (("compact", "nowhere"), 1, "there is no ledger at "),
        (("expire", "nowhere", "--before", "2020-01-01"), 1, "there is no ledger at "),
        (("expire", "."), 2, "Missing option '--before'"),
        (("expire", ".", "--before", "soon"), 2, "--before must be a day such as 2026-11-16, not 'soon'"),
        (("expire", ".", "--before", "9999-01-01", "--force"), 2, "--before must be at most "),
        (("show", "s3://key:hunter2@bucket"), 2, "must not have a user or password"),
    ],
)
def test_invalid_arguments_are_named(arguments: tuple[str, ...], code: int, words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stdout == ""


def test_compact_reports_its_result(tmp_path: Path) -> None:
    for number in range(3):
        with LedgerWriter(tmp_path) as writer:
            writer.record(a_send(f"m-{number}", ts=NOON - 400 * DAY))
    result = run("compact", str(tmp_path))
    assert result.stdout == "3 rows of 3 files merged into 1 file; 0 old files removed\n"
    answer = json.loads(run("compact", str(tmp_path), "--json").stdout)
    assert answer == {"replaced_files": 0, "new_files": 0, "rows": 0, "removed_files": 0, "unreadable": []}
    assert len(rows_of(str(tmp_path))) == 3


def test_expire_reports_removed_days(tmp_path: Path) -> None:
    for days in (400, 401):
        with LedgerWriter(tmp_path) as writer:
            writer.record(a_send(ts=NOON - days * DAY))
    before = ("expire", str(tmp_path), "--before", "2025-10-13")
    shown = run(*before, "--dry-run").stdout.splitlines()
    assert shown[0].split() == ["day", "files", "size"]
    assert [line.split()[:2] for line in shown[1:3]] == [["2025-10-11", "1"], ["2025-10-12", "1"]]
    assert shown[3].startswith("2 days, 2 files, ")
    assert shown[3].endswith(" would be removed; nothing was removed")
    answer = json.loads(run(*before, "--json").stdout)
    assert set(answer) == {"before", "dry_run", "days", "files", "bytes"}
    assert [set(day) for day in answer["days"]] == [{"day", "files", "bytes"}] * 2
    assert (answer["before"], answer["dry_run"], answer["files"]) == ("2025-10-13", False, 2)
    assert run(*before).stdout == "0 days, 0 files, 0 bytes removed; days before 2025-10-13 are expired\n"
    assert run("show", str(tmp_path)).stdout == "no rows\n"


def test_storage_options_are_passed_to_the_driver() -> None:
    result = run("show", "obstinate://nowhere", "--storage-option", "skip_instance_cache=true")
    assert (result.exit_code, result.stderr) == (1, "twinbus ledger: there is no ledger at obstinate://nowhere\n")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["hunter2"], "--storage-option must be KEY=VALUE; number 1 is not"),
        (["a=b", "=hunter2"], "--storage-option must be KEY=VALUE; number 2 is not"),
        (["a=hunter2", "a=hunter2"], "--storage-option a must be given only once"),
        (["a={hunter2"], "the value of --storage-option a must be JSON"),
    ],
)
def test_invalid_storage_option_is_refused_without_showing_its_value(given: list[str], words: str) -> None:
    for command in (("show", "."), ("compact", "."), ("expire", ".", "--before", "2020-01-01")):
        result = run(*command, *(part for one in given for part in ("--storage-option", one)))
        assert result.exit_code == 2
        assert words in result.stderr
        assert "hunter2" not in result.output


def test_driver_error_is_one_line_without_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("the key hunter2 is bad\nand more")

    monkeypatch.setattr(Obstinate, "exists", refuse)
    result = run("show", "obstinate://x", "--storage-option", 'client={"key": "hunter2"}')
    assert (result.exit_code, result.stderr) == (
        1,
        "twinbus ledger: the store failed: the key … is bad (RuntimeError)\n",
    )
