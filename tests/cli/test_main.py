"""The `twinbus` command itself: its commands, and what each of them loads."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from twinbus.cli.main import COMMAND_LOCATIONS, Commands, app

#: Slow to load, and not needed by every command.
HEAVY = {"azure", "cryptography", "pandas", "pyarrow", "pyspark"}


def loaded_by(command: str) -> set[str]:
    """The packages that are loaded when this command is about to run."""
    program = f"import sys; from twinbus.cli.main import Commands; Commands()[{command!r}]; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    return {name.split(".")[0] for name in shown.split()}


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("serve", {"cryptography"}),
        ("cost", set()),
        ("ledger", set()),
        ("pipeline", set()),
        ("report", set()),
        ("syphon", {"azure", "cryptography"}),
    ],
)
def test_a_command_loads_what_it_needs_and_no_more(command: str, needed: set[str]) -> None:
    assert loaded_by(command) & HEAVY <= needed


@pytest.mark.parametrize("name", COMMAND_LOCATIONS)
def test_every_command_is_where_it_is_said_to_be(name: str) -> None:
    assert Commands()[name].name == name
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    assert f"twinbus {name}" in shown.output


def test_the_help_lists_all_commands() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert [name for name in COMMAND_LOCATIONS if name not in shown.output] == []


def test_an_unknown_command_is_bad_usage_and_a_near_one_is_suggested() -> None:
    shown = CliRunner().invoke(app, ["serv"])
    assert shown.exit_code == 2
    assert "Did you mean 'serve'?" in shown.output
