"""Tests of the file that adds up simulated runs per version of the code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from proof.__main__ import app
from proof.simulation.progress import (
    MAX_VERSIONS,
    SIMULATED_CODE,
    Progress,
    StateError,
    code_version,
    load,
    save,
)
from proof.simulation.summary import Summary, simulate_all
from typer.testing import CliRunner, Result

import proof


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one file of each part of the simulated code."""
    for name in SIMULATED_CODE:
        path = tmp_path / (name if name.endswith(".py") else f"{name}/code.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _simulate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_runs_of_the_same_code_are_added_up(checkout: Path) -> None:
    first = json.loads(_simulate("--continue", "--runs", "3", "--json").stdout)
    second = json.loads(_simulate("--continue", "--runs", "2", "--json").stdout)
    *_, total = simulate_all(range(5))
    assert (first["runs"], first["next_seed"], first["lost"]) == (3, 3, 0)
    assert (second["runs"], second["next_seed"], second["failed"]) == (5, 5, 0)
    assert second["code"] == code_version(checkout)
    assert second["messages"] == dict(total.words)
    assert second["runs_struck_by"] == dict(sorted(total.struck.items()))


def test_several_processes_give_the_same_totals() -> None:
    *_, alone = simulate_all(range(6))
    *_, together = simulate_all(range(6), jobs=2)
    assert (together.runs, together.words, together.struck) == (6, alone.words, alone.struck)
    assert together.seconds == alone.seconds


@pytest.mark.parametrize("name", SIMULATED_CODE)
def test_changed_code_starts_at_seed_0(checkout: Path, name: str) -> None:
    before = code_version(checkout)
    path = checkout / (name if name.endswith(".py") else f"{name}/code.py")
    path.write_text("changed = True\n")
    save(Path("build/simulation-state.json"), Progress(before, 9, Summary(runs=9)))
    assert load(Path("build/simulation-state.json"), code_version(checkout)).next_seed == 0


def test_moved_code_is_another_version(checkout: Path) -> None:
    before = code_version(checkout)
    (checkout / "proof" / "simulation" / "code.py").rename(checkout / "proof" / "simulation" / "moved.py")
    assert code_version(checkout) != before


def test_other_changes_continue(checkout: Path) -> None:
    before = code_version(checkout)
    (checkout / "notes.md").write_text("the results of a run")
    assert code_version(checkout) == before


def test_all_code_that_a_run_loads_counts() -> None:
    command = (
        "import sys, proof.simulation.summary\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if name.split('.')[0] in ('twinbus', 'proof'): print(module.__file__)"
    )
    root = Path(proof.__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", command], cwd=root, check=True, capture_output=True, text=True)
    loaded = [Path(line).relative_to(root).as_posix() for line in run.stdout.splitlines()]
    assert len(loaded) > 100
    left_out = [name for name in loaded if not name.startswith(SIMULATED_CODE)]
    assert [name for name in left_out if not name.endswith("__init__.py")] == []


def test_failed_seeds_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "build" / "state.json"
    summary = Summary(runs=7, failed={3: ("lost: 0-1-0",)})
    summary.words["lost"] = 1
    save(path, Progress("abc", 7, summary))
    assert load(path, "abc") == Progress("abc", 7, summary)
    assert load(path, "another") == Progress("another", 0, Summary())


def test_failed_seed_fails_later_runs_of_its_code(checkout: Path) -> None:
    save(
        Path("build/simulation-state.json"), Progress(code_version(checkout), 9, Summary(runs=9, failed={3: ("lost",)}))
    )
    run = _simulate("--continue", "--runs", "1")
    assert run.exit_code == 1
    assert "seed 3: lost" in run.stdout


def test_only_the_newest_versions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for number in range(MAX_VERSIONS + 3):
        save(path, Progress(f"version-{number}", number, Summary()))
    assert list(json.loads(path.read_text())) == [f"version-{number}" for number in range(3, MAX_VERSIONS + 3)]


@pytest.mark.parametrize("text", ["", "[]", '{"abc": {"next_seed": 1}}', '{"abc": {"next_seed": "x", "summary": {}}}'])
def test_invalid_state_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(StateError, match="Delete the file"):
        load(path, "abc")


@pytest.mark.parametrize("option", [("--seed", "3"), ("--trace",)])
def test_continue_excludes_seed_and_trace(checkout: Path, option: tuple[str, ...]) -> None:
    assert _simulate("--continue", *option).exit_code == 2
