"""`twinbus syphon` as a process: what it prints, how it ends, and that it can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.blocked_ledger import block
from tests.emulator.contract.bus import let_pass
from tests.syphon.bus import eventually
from tests.syphon.pumping import Pair, bodies, numbered, take_all
from tests.syphon.test_pump_order import assert_in_order, of_sessions
from typer.testing import CliRunner

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.decoding import decode_plain
from twinbus.cli.main import app
from twinbus.emulator import DEFAULT, Fault, FaultKind
from twinbus.ledger import Operation, Stage
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.schema import to_operations

pytestmark = pytest.mark.slow

SECONDS = 120.0
ONE_QUEUE = ("--queues", "1")


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    # The shortest locks that the service knows, so that a test need not wait for a minute.
    async with Pair(DEFAULT, lock_seconds=5) as running:
        await running.create("orders", "bills")
        yield running


@pytest.fixture
async def patient() -> AsyncIterator[Pair]:
    """With locks that leave the ledger enough time to store its rows, a third of them, on a busy machine too."""
    async with Pair(DEFAULT) as running:
        await running.create("orders")
        yield running


async def start(pair: Pair, *arguments: str) -> asyncio.subprocess.Process:
    environment = {
        **os.environ,
        "TWINBUS_PRIMARY": pair.primary.connection_string,
        "TWINBUS_SECONDARY": pair.secondary.connection_string,
        "NO_COLOR": "1",
    }
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    command = [sys.executable, "-m", "twinbus", "syphon", *ONE_QUEUE, *arguments]
    return await asyncio.create_subprocess_exec(*command, env=environment, **pipes)  # type: ignore[arg-type]


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    async with asyncio.timeout(SECONDS):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def run(pair: Pair, *arguments: str) -> tuple[int, str, str]:
    return await ended(await start(pair, *arguments))


async def run_json(pair: Pair, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, output, errors = await run(pair, "--until-empty", "--json", *arguments)
    assert output, errors
    assert "Traceback" not in errors
    found: dict[str, Any] = json.loads(output)
    return code, found


async def test_until_empty_moves_everything_prints_the_result_and_exits_with_0(pair: Pair) -> None:
    await pair.put([*numbered("orders", range(50)), *numbered("bills", range(20))])
    code, report = await run_json(pair)
    assert code == 0
    figures = {"expired": 0, "poison": 0, "deferred": 0}
    assert report["destinations"] == {"orders": {"moved": 50, **figures}, "bills": {"moved": 20, **figures}}
    assert {name: report[name] for name in ("moved", "malformed", "held", "missing")} == {
        "moved": 70,
        "malformed": 0,
        "held": 0,
        "missing": [],
    }
    assert pair.is_backlog_empty


async def test_deferred_messages_exit_with_1(pair: Pair) -> None:
    await pair.put([*numbered("orders", range(5)), *numbered("nowhere", range(3))])
    code, report = await run_json(pair)
    assert code == 1
    assert report["destinations"]["nowhere"]["deferred"] == report["deferred"] == 3
    assert report["moved"] == 5


async def test_destination_option_limits_the_drain_and_the_result_is_text(pair: Pair) -> None:
    await pair.put([*numbered("orders", range(5)), *numbered("bills", range(3))])
    code, output, _ = await run(pair, "--until-empty", "--destination", "ORDERS")
    assert code == 1
    assert "bills: 3 deferred" in output
    assert "orders: 5 moved" in output
    assert "left in 1 backlog queue: 3 deferred, 0 locked by others" in output


@pytest.mark.parametrize("until_empty", [True, False])
async def test_swapped_namespaces_are_reported_and_nothing_is_moved(pair: Pair, until_empty: bool) -> None:
    await pair.put(numbered("orders", range(3)))
    exchanged = "--primary", pair.secondary.connection_string, "--secondary", pair.primary.connection_string
    code, output, errors = await run(pair, *exchanged, *(["--until-empty"] if until_empty else []))
    assert (code, output) == (1, "")
    assert errors.startswith("twinbus syphon: Primary and secondary look swapped: ")
    assert len(errors.splitlines()) == 1
    assert pair.queue("orders").activity.received == 0


async def test_namespaces_that_are_each_others_secondary_are_drained(pair: Pair) -> None:
    await pair.create("fabrikam/x-servicebus-transfer/0", max_delivery_count=2147483647)
    await pair.put(numbered("orders", range(3)))
    code, report = await run_json(pair)
    assert (code, report["moved"]) == (0, 3)


async def test_result_counts_the_queues_read_and_the_missing_ones(pair: Pair) -> None:
    code, output, _ = await run(pair, "--until-empty", "--queues", "3")
    assert code == 0
    assert output.splitlines()[-2:] == [
        "left in 1 backlog queue: 0 deferred, 0 locked by others",
        "2 of the 3 backlog queues of --queues do not exist: contoso/x-servicebus-transfer/1, …",
    ]


async def test_missing_queues_are_named_and_exit_with_1(pair: Pair) -> None:
    code, _, errors = await run(pair, "--until-empty", "--primary-name", "fabrikam")
    assert code == 1
    assert "the backlog queue fabrikam/x-servicebus-transfer/0 does not exist. Is --primary-name wrong" in errors


async def test_unreachable_primary_is_a_one_line_error(pair: Pair) -> None:
    pair.primary.faults.add(Fault(FaultKind.REFUSE))
    code, output, errors = await run(pair, "--until-empty", "--primary-name", "contoso")
    assert (code, output) == (1, "")
    assert "cannot be reached" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_stops_it_cleanly(pair: Pair, number: signal.Signals) -> None:
    await pair.put(numbered("orders", range(20)))
    process = await start(pair)
    await pair.until("orders", 20)
    await eventually(lambda: pair.is_backlog_empty)
    process.send_signal(number)
    code, output, errors = await ended(process)
    assert code == 0, errors
    assert "orders: 20 moved" in output
    assert "Traceback" not in errors


async def test_signal_during_a_drain_releases_unmoved_messages_and_exits_with_1(pair: Pair) -> None:
    await pair.put(numbered("orders", range(500)))
    process = await start(pair, "--until-empty", "--rate", "100")
    await pair.until("orders", 5)
    process.terminate()
    code, _, errors = await ended(process)
    assert code == 1
    assert "stopped before the backlog was empty" in errors
    assert pair.backlog.locked == 0
    assert pair.backlog.counters.active + pair.queue("orders").activity.received == 500


# ---- kill -9 ----


async def killed_at(pair: Pair, received: int, *arguments: str) -> None:
    """Run a syphon, and kill it when `received` messages have arrived."""
    process = await start(pair, "--until-empty", *arguments)
    await pair.until("orders", received)
    process.kill()
    await ended(process)


async def test_syphon_killed_during_a_drain_loses_nothing(pair: Pair) -> None:
    await pair.put(numbered("orders", range(4000)))
    await killed_at(pair, 300)
    await killed_at(pair, 1000)
    code, report = await run_json(pair)
    assert code == 0, report
    arrived = await pair.arrived("orders")
    assert set(arrived) == set(bodies(range(4000)))
    assert pair.is_backlog_empty


async def test_messages_deferred_by_a_killed_syphon_arrive_in_order(pair: Pair) -> None:
    await pair.put(
        [message for number in range(300) for path in ("later", "orders") for message in numbered(path, [number])]
    )
    await killed_at(pair, 100)
    assert pair.backlog.counters.deferred > 0
    await pair.create("later")
    await pair.put(numbered("later", range(300, 400)))
    code, report = await run_json(pair)
    assert code == 0, report
    assert set(await pair.arrived("orders")) == set(bodies(range(300)))
    assert await pair.arrived("later") == bodies(range(400))


async def test_sessions_stay_in_order_through_a_kill(pair: Pair) -> None:
    await pair.put(of_sessions(1500))
    await killed_at(pair, 200, "--order", "session")
    await killed_at(pair, 700, "--order", "session")
    code, report = await run_json(pair, "--order", "session")
    assert code == 0, report
    await assert_in_order(pair, 1500)


# ---- the ledger ----


def sent(ledger: Path) -> list[Operation]:
    """What the ledger says arrived at the primary."""
    contents = read_ledger(ledger)
    assert contents.unreadable == []
    return [row for row in to_operations(contents.table) if row.stage is Stage.PRIMARY_SEND]


async def test_every_move_has_a_ledger_row(patient: Pair, tmp_path: Path) -> None:
    await patient.put(numbered("orders", range(300)))
    code, report = await run_json(patient, "--ledger", str(tmp_path / "ledger"))
    assert (code, report["moved"]) == (0, 300)
    rows = sent(tmp_path / "ledger")
    assert sorted(str(row.message_id) for row in rows) == sorted(f"orders-{number}" for number in range(300))
    assert {(row.pairing, row.client.partition("-")[0]) for row in rows} == {("contoso", "syphon")}
    assert patient.backlog.activity.delivered == 300  # and nothing was given back meanwhile


async def test_ledger_that_is_not_a_folder_is_refused_before_anything_is_moved(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    await pair.put(numbered("orders", range(3)))
    code, _, errors = await ended(await start(pair, "--until-empty", "--ledger", str(tmp_path / "file")))
    assert (code, errors) == (2, f"twinbus syphon: --ledger must be a folder, and {tmp_path / 'file'} is a file\n")
    assert pair.backlog.activity.delivered == 0


@pytest.mark.parametrize("mode", ["required", "best_effort"])
async def test_unavailable_ledger_completes_nothing_unless_best_effort(pair: Pair, tmp_path: Path, mode: str) -> None:
    block(tmp_path / "ledger")
    await pair.put(numbered("orders", range(20)))
    process = await start(pair, "--until-empty", "--ledger", str(tmp_path / "ledger"), "--ledger-mode", mode)
    code, _, errors = await ended(process)
    assert "Traceback" not in errors
    if mode == "required":
        assert code == 1
        assert "twinbus syphon: the ledger failed: " in errors
        assert (pair.backlog.counters.active, pair.backlog.locked) == (20, 0)
    else:
        assert code == 0
        assert "of the ledger lost" in errors
        assert pair.is_backlog_empty


async def test_time_in_the_backlog_counts_without_a_lock_option() -> None:
    """With locks of a minute, as backlog queues have them, and without the right to ask for their properties."""
    async with Pair(DEFAULT) as pair:
        await pair.create("orders")
        await pair.put([*numbered("orders", [1], seconds=1), *numbered("orders", [2], seconds=3600)])
        enqueued_at = pair.clock()
        await eventually(lambda: pair.clock() > enqueued_at + 1.5)
        code, report = await run_json(pair)
        assert (code, report["moved"], report["expired"]) == (0, 1, 1)
        [dead] = await pair.dead_letters()
        assert dead["DeadLetterReason"] == "ExpiredInBacklog"
        [moved] = await take_all(pair.primary, "orders")
        header = sections.raw_fields(sections.split_sections(moved).header)
        left = decode_plain(header[2])[0] / 1000
        assert 3600 - 120 < left <= 3600 - 1.5


async def test_lock_option_sets_the_lock_duration(pair: Pair) -> None:
    await pair.put(numbered("orders", [1], seconds=2))
    await let_pass(pair.secondary, pair.clock, 3)
    code, report = await run_json(pair, "--lock", "5")
    assert (code, report["expired"]) == (0, 1)


# ---- bad usage ----

NAMESPACE = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=topsecret;UseDevelopmentEmulator=true"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--primary is missing: give a connection string, or set TWINBUS_PRIMARY"),
        (["--primary", NAMESPACE], "--secondary is missing: give a connection string, or set TWINBUS_SECONDARY"),
        (
            ["--primary", "nonsense", "--secondary", NAMESPACE],
            "--primary: expected a connection string",
        ),
        (["--primary", NAMESPACE, "--secondary", NAMESPACE, "--rate", "0"], "--rate must be above 0"),
        (["--primary", NAMESPACE, "--secondary", NAMESPACE, "--order", "fifo"], "--order must be session, not 'fifo'"),
        (["--primary", NAMESPACE, "--secondary", NAMESPACE, "--ttl", "x"], "--ttl must be remaining or restart"),
        (
            ["--primary", NAMESPACE, "--secondary", NAMESPACE, "--destination", ""],
            "--destination must be paths of queues or topics",
        ),
        (["--primary", NAMESPACE, "--secondary", NAMESPACE, "--primary-name", "a/b"], "--primary-name must be"),
        (["--primary", NAMESPACE, "--secondary", NAMESPACE, "--log-level", "loud"], "--log-level must be one of"),
        (["--primary", NAMESPACE, "--secondary", NAMESPACE, "--ledger", "sftp://x/y"], "--ledger: "),
        (
            ["--primary", NAMESPACE, "--secondary", NAMESPACE, "--ledger-mode", "no"],
            "--ledger-mode must be",
        ),
        (["--primary", NAMESPACE, "--secondary", NAMESPACE, "--lock", "301"], "--lock"),
        (["--watch"], "--watch needs --spark"),
        (["--master", "local[2]"], "--master needs --spark"),
        (["--spark", "--watch", "--until-empty"], "--watch and --until-empty exclude each other"),
        (
            ["--primary", NAMESPACE, "--secondary", NAMESPACE, "--spark", "--slice", "61"],
            "--slice must be 1 to 60",
        ),
        (["--primary", NAMESPACE, "--secondary", NAMESPACE, "--spark", "--pumps", "1001"], "--pumps must be 1 to 1000"),
        (["--primary", NAMESPACE, "--secondary", NAMESPACE, "--spark", "--ledger", "sftp://x/y"], "--ledger: "),
        (
            ["--primary", NAMESPACE, "--secondary", NAMESPACE, "--spark", "--master", "nowhere"],
            "--master must be one of",
        ),
    ],
)
def test_usage_error_names_the_option_and_exits_with_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["syphon", *arguments], env={"TWINBUS_PRIMARY": None, "TWINBUS_SECONDARY": None})
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "topsecret" not in result.output


def test_queue_count_is_bounded() -> None:
    assert CliRunner().invoke(app, ["syphon", "--queues", "0"]).exit_code == 2


def test_help_has_an_example() -> None:
    assert "Example: twinbus syphon" in CliRunner().invoke(app, ["syphon", "--help"]).output
