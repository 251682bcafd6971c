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
def test_command_imports_only_what_it_needs(command: str, needed: set[str]) -> None:
    assert loaded_by(command) & HEAVY <= needed


@pytest.mark.parametrize("name", COMMAND_LOCATIONS)
def test_every_command_has_its_name_and_help(name: str) -> None:
    assert Commands()[name].name == name
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    assert f"twinbus {name}" in shown.output


def test_help_lists_all_commands() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert [name for name in COMMAND_LOCATIONS if name not in shown.output] == []


def test_unknown_command_is_a_usage_error_with_a_suggestion() -> None:
    shown = CliRunner().invoke(app, ["serv"])
    assert shown.exit_code == 2
    assert "Did you mean 'serve'?" in shown.output
