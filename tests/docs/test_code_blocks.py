"""Every block of Python and TOML in the documentation runs, against namespaces of `twinbus serve`."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from twinbus.emulator import Namespace, QueueDescription, load_config
from twinbus.ledger import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.writer import LedgerWriter

ROOT = Path(__file__).parents[2]
#: Decisions are history: what they show need not run today.
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "decisions"),
]
CONFIG = """
[namespaces.contoso]
port = 0
queues = ["orders"]
[[namespaces.contoso.bearer_tokens]]
token = "for-tests-only"
rights = ["Send", "Listen"]
[namespaces.contoso-standby]
port = 0
"""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The blocks of a language, each with the line it starts on."""
    text = page.read_text("utf-8")
    found = _BLOCK.finditer(text)
    return [(text.count("\n", 0, one.start()) + 2, one[2]) for one in found if one[1] == language]


def with_blocks(language: str) -> list[Any]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if blocks(page, language)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder that `twinbus serve` runs in, and what it says when it is ready."""
    folder = tmp_path_factory.mktemp("docs")
    config = folder / "bus.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "twinbus", "serve", "--json", "--config", str(config), "--data", "bus"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield folder, json.loads(process.stdout.readline())
        process.terminate()


@pytest.fixture
async def names(served: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Any]]:
    """What the pages take for granted: two namespaces, one more in this process, a ledger and a row for it."""
    folder, ready = served
    monkeypatch.chdir(folder)
    primary, secondary = (ready["namespaces"][name]["connection_string"] for name in ("contoso", "contoso-standby"))
    monkeypatch.setenv("TWINBUS_PRIMARY", primary)
    monkeypatch.setenv("TWINBUS_SECONDARY", secondary)
    operation = Operation(
        pairing="contoso",
        client="docs",
        namespace=NamespaceRole.PRIMARY,
        entity="orders",
        operation=OperationKind.SEND,
        stage=Stage.DIRECT,
        outcome=Outcome.DONE,
    )
    async with Namespace("fabrikam") as namespace:
        await namespace.create(QueueDescription("orders"))
        with LedgerWriter(str(folder / "own-ledger")) as writer:
            yield {
                "PRIMARY": primary,
                "SECONDARY": secondary,
                "connection_string": primary,
                "namespace": namespace,
                "operation": operation,
                "writer": writer,
                "loop": asyncio.get_running_loop(),
            }


def compiled(page: Path, line: int, code: str) -> CodeType:
    """A block as a program that may await, with the lines of the page."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    made: CodeType = compile("\n" * (line - 1) + code, str(page), "exec", flags=flags, dont_inherit=True)
    return made


@pytest.mark.parametrize("page", with_blocks("python"))
async def test_the_python_of_a_page_runs(page: Path, names: dict[str, Any]) -> None:
    for line, code in blocks(page, "python"):
        made = compiled(page, line, code)
        if made.co_flags & inspect.CO_COROUTINE:
            await eval(made, names)
        elif re.search(r"\bnamespace\.", code):
            exec(made, names)  # it belongs to the event loop
        else:
            await asyncio.to_thread(exec, made, names)


@pytest.mark.parametrize("page", with_blocks("toml"))
def test_the_toml_of_a_page_is_read(page: Path, tmp_path: Path) -> None:
    for _, text in blocks(page, "toml"):
        found = tomllib.loads(text)
        if "namespaces" in found:
            file = tmp_path / "bus.toml"
            file.write_text(text, "utf-8")
            load_config(file)


@pytest.mark.parametrize("page", with_blocks("json"))
def test_the_json_of_a_page_is_json(page: Path) -> None:
    for _, text in blocks(page, "json"):
        json.loads(text)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_every_link_to_a_file_of_ours_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


def test_a_block_that_fails_fails_the_test(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\nraise RuntimeError(x)\n```\n")
    ((line, code),) = blocks(page, "python")
    with pytest.raises(RuntimeError) as caught:
        exec(compiled(page, line, code), {})
    assert caught.traceback[-1].lineno == 4
