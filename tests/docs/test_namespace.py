"""The table of `serve` has every option of the command and every key that the file may have, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from tests.namespace_internals import keys_read
from typer.core import TyperGroup

from twinbus.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "namespace.md").read_text("utf-8")
TITLE = "Options of `serve`, and keys of the file"
FILE = """
[namespaces.contoso]
policies.sender = ["Send"]
[[namespaces.contoso.bearer_tokens]]
token = "x"
rights = ["Send"]
"""
TOP, NAMESPACE = "", "namespaces.contoso"


def rows() -> list[list[str]]:
    found = re.search(rf"^## {re.escape(TITLE)}\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    lines = [line for line in found[1].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")] for line in lines[2:]]


def keys(*places: str) -> list[str]:
    """The keys of the table that may stand in one of these places."""
    return [key for row in rows() if row[2] in places for key in re.findall(r"`(\w+)`", row[1])]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The keys that each table of the file may have."""
    return keys_read(FILE, monkeypatch)


def test_every_option_of_the_command_is_there() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    options = [one for parameter in group.commands["serve"].params for one in parameter.opts if one.startswith("-")]
    assert sorted(re.findall(r"`(--?[\w-]+)", "".join(row[0] for row in rows()))) == sorted(options)


def test_every_key_of_the_file_is_there_with_its_place(known: dict[str, set[str]]) -> None:
    assert sorted(keys("top", "both")) == sorted(known[TOP])
    assert sorted(keys("namespace", "both")) == sorted(known[NAMESPACE])


@pytest.mark.parametrize(("key", "place"), [("policies", "policies.sender"), ("bearer_tokens", "bearer_tokens[0]")])
def test_the_keys_of_a_policy_and_of_a_token_are_there(known: dict[str, set[str]], key: str, place: str) -> None:
    (row,) = (row for row in rows() if row[1] == f"`{key}`")
    assert set(re.findall(r"`(\w+)`", row[4])) == known[f"{NAMESPACE}.{place}"]
