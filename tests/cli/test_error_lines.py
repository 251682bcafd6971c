"""Mistakes of a new user: each is one line that names the option, the value expected and the next step."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cli.test_syphon import ended, start
from tests.connection_strings import connection_string
from tests.syphon.pumping import Pair, numbered
from typer.testing import CliRunner

from twinbus.cli.main import app
from twinbus.cli.options.quantities import seconds
from twinbus.cli.text import counted, size
from twinbus.emulator import DEFAULT, Namespace

KEY = "c2VjcmV0"
NAMESPACE = f"Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
BOTH = ("--primary", NAMESPACE, "--secondary", NAMESPACE)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair(DEFAULT) as running:
        await running.create("orders")
        yield running


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("syphon", "--primary", "contoso.servicebus.windows.net", "--secondary", NAMESPACE),
            "twinbus syphon: --primary: expected a connection string, Endpoint=sb://…;SharedAccessKeyName=…;"
            "SharedAccessKey=…, got a host name or other text",
        ),
        (
            ("syphon", *BOTH, "--rate", "-5"),
            "twinbus syphon: --rate must be above 0 messages per second, not -5; leave it out for no limit",
        ),
        (
            ("cost", "estimate", "--outage", "2"),
            "twinbus cost: --outage must have a unit, such as 2s, 2m or 2h, not '2'",
        ),
        (
            ("cost", "estimate", "--poll", "soon"),
            "twinbus cost: --poll must be a duration such as 90s, 90m or 1h30m, not 'soon'",
        ),
    ],
)
def test_usage_error_is_one_line_that_names_the_option(arguments: tuple[str, ...], line: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", line + "\n")


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("0.0", 0), ("90s", 90), ("1h30m", 5400), ("PT5M", 300)])
def test_duration_needs_a_unit_unless_it_is_zero(text: str, expected: int) -> None:
    assert seconds("--outage", text) == expected


def test_port_in_use_names_its_namespace_and_suggests_port_0(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ("--data", str(tmp_path), "-n", "free=0", "-n", f"contoso={port}")
        result = CliRunner().invoke(app, ["serve", *options])
    assert result.exit_code == 1
    assert result.stderr == (
        f"twinbus serve: cannot listen on 127.0.0.1, port {port}: Address already in use;"
        " it is the port of namespace contoso: --namespace contoso=0 picks a free one\n"
    )


def test_counts_and_sizes_of_one_are_singular() -> None:
    assert (counted(1, "day"), counted(2, "day"), counted(1, "queue is", "queues are")) == (
        "1 day",
        "2 days",
        "1 queue is",
    )
    assert (size(1), size(2)) == ("1 byte", "2 bytes")


def with_wrong_key(namespace: Namespace) -> str:
    return connection_string(namespace, KEY)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["primary", "secondary"])
async def test_refused_key_is_a_one_line_error_and_nothing_is_changed(pair: Pair, role: str) -> None:
    await pair.put(numbered("orders", range(3)))
    namespace = pair.primary if role == "primary" else pair.secondary
    arguments = ("--until-empty", f"--{role}", with_wrong_key(namespace), "--primary-name", "contoso")
    code, output, errors = await ended(await start(pair, *arguments))
    assert (code, output, len(errors.splitlines())) == (1, "", 1)
    assert errors.startswith(f"twinbus syphon: --{role}: 127.0.0.1:{namespace.port} refuses the key: ")
    assert KEY not in errors
    assert (pair.backlog.counters.active, pair.backlog.counters.deferred) == (3, 0)


@pytest.mark.slow
async def test_wrong_primary_name_is_a_one_line_error(pair: Pair) -> None:
    code, output, errors = await ended(
        await start(pair, "--until-empty", "--queues", "3", "--primary-name", "contosso")
    )
    assert (code, output) == (1, "")
    assert errors == (
        "twinbus syphon: none of the 3 backlog queues exists: contosso/x-servicebus-transfer/0, …"
        " Is --primary-name wrong, or are --primary and --secondary swapped?\n"
    )


@pytest.mark.slow
async def test_running_syphon_logs_a_wrong_primary_name_once_and_waits(pair: Pair) -> None:
    process = await start(pair, "--primary-name", "contosso")
    assert process.stderr is not None
    async with asyncio.timeout(60):
        first = (await process.stderr.readline()).decode()
    process.send_signal(signal.SIGTERM)
    code, output, errors = await ended(process)
    assert "the backlog queue contosso/x-servicebus-transfer/0 does not exist. Is --primary-name wrong" in first
    assert (code, output, len(errors.splitlines())) == (1, "", 1)
    assert errors.startswith("twinbus syphon: stopped before anything was moved: ")
