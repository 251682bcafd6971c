"""Tests twinbus without the extra `ledger`: what needs it names the package to install, and all else works."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

WITHOUT = "import sys; sys.modules['pyarrow'] = None; sys.modules['fsspec'] = None\n"
SECONDS = 120.0


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program that cannot import pyarrow and fsspec."""
    command = [sys.executable, "-c", WITHOUT + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


@pytest.mark.parametrize(
    "module",
    [
        "twinbus.ledger",
        "twinbus.ledger.ledger_errors",
        "twinbus.ledger.durable_rows",
        "twinbus.emulator",
        "twinbus.pairing.pairing_state",
        "twinbus.aio",
        "twinbus.cli.main",
    ],
)
def test_other_modules_import_without_extra(module: str) -> None:
    result = run(f"import {module}")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", ["writer", "ledger_reader", "compaction", "schema"])
def test_import_without_extra_names_extra(module: str) -> None:
    result = run(f"import twinbus.ledger.{module}")
    assert result.returncode == 1
    assert (
        "a ledger of files needs the extra `ledger`: pip install '.[ledger]' in a checkout of twinbus" in result.stderr
    )


def test_writer_for_url_without_fsspec_names_extra() -> None:
    program = (
        "del sys.modules['pyarrow']\n"
        "from twinbus.ledger.ledger_errors import ExtraMissingError; from twinbus.ledger.writer import LedgerWriter\n"
        "try: LedgerWriter('memory://ledger')\n"
        "except ExtraMissingError as error: print(error)\n"
    )
    result = run(program)
    assert "pip install '.[ledger]'" in result.stdout, result.stderr


def test_ledger_command_without_extra_names_extra() -> None:
    program = "from twinbus.cli.main import app; app(['ledger', 'show', 'nowhere'])"
    result = run(program)
    assert result.returncode == 1
    assert result.stderr == (
        "twinbus ledger: a ledger of files needs the extra `ledger`: pip install '.[ledger]' in a checkout of twinbus\n"
    )


@pytest.mark.parametrize("module", ["numpy", "pyspark"])
@pytest.mark.parametrize("command", [["pipeline", "run", "."], ["pipeline", "watch", "."], ["demo"]])
def test_spark_commands_without_extra_name_extra(module: str, command: list[str]) -> None:
    program = f"del sys.modules['pyarrow'], sys.modules['fsspec']; sys.modules[{module!r}] = None\n"
    result = run(program + "from twinbus.cli.main import app\napp()", *command)
    assert result.returncode == 1
    assert (
        result.stderr
        == f"twinbus {command[0]}: this needs the extra `spark`: pip install '.[spark]' in a checkout of twinbus\n"
    )
