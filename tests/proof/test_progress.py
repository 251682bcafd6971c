"""Tests of the file that adds up simulated runs per commit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from proof.__main__ import app
from proof.simulation.progress import MAX_COMMITS, Progress, StateError, commit_of, load, save
from proof.simulation.summary import Summary, simulate_all
from typer.testing import CliRunner, Result


def _git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    _git(tmp_path, "init", "--quiet")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "--quiet", "--message", "First")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _simulate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_runs_of_one_commit_are_added_up(repository: Path) -> None:
    first = json.loads(_simulate("--continue", "--runs", "3", "--json").stdout)
    second = json.loads(_simulate("--continue", "--runs", "2", "--json").stdout)
    *_, total = simulate_all(range(5))
    assert (first["runs"], first["next_seed"], first["lost"]) == (3, 3, 0)
    assert (second["runs"], second["next_seed"], second["failed"]) == (5, 5, 0)
    assert second["commit"] == _git(repository, "rev-parse", "HEAD")
    assert second["messages"] == dict(total.words)
    assert second["runs_struck_by"] == dict(sorted(total.struck.items()))


def test_new_commit_starts_at_seed_0(repository: Path) -> None:
    _simulate("--continue", "--runs", "2")
    (repository / "src" / "code.py").write_text("changed = True\n")
    run = _simulate("--continue", "--runs", "1", "--json")
    dirty = json.loads(run.stdout)
    assert dirty["runs"] == 1
    assert dirty["commit"].endswith("-dirty")
    _git(repository, "commit", "--all", "--quiet", "--message", "Second")
    assert json.loads(_simulate("--continue", "--runs", "1", "--json").stdout)["runs"] == 1


def test_change_outside_src_does_not_make_commit_dirty(repository: Path) -> None:
    (repository / "notes.md").write_text("the results of a run")
    assert not commit_of(repository).endswith("-dirty")


def test_commit_is_unknown_without_git(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == "unknown"


def test_failed_seeds_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "build" / "state.json"
    summary = Summary(runs=7, failed={3: ("lost: 0-1-0",)})
    summary.words["lost"] = 1
    save(path, Progress("abc", 7, summary))
    assert load(path, "abc") == Progress("abc", 7, summary)
    assert load(path, "another") == Progress("another", 0, Summary())


def test_failed_seed_fails_later_runs_of_its_commit(repository: Path) -> None:
    save(
        Path("build/simulation-state.json"), Progress(commit_of(repository), 9, Summary(runs=9, failed={3: ("lost",)}))
    )
    run = _simulate("--continue", "--runs", "1")
    assert run.exit_code == 1
    assert "seed 3: lost" in run.stdout


def test_only_the_newest_commits_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for number in range(MAX_COMMITS + 3):
        save(path, Progress(f"commit-{number}", number, Summary()))
    assert list(json.loads(path.read_text())) == [f"commit-{number}" for number in range(3, MAX_COMMITS + 3)]


@pytest.mark.parametrize("text", ["", "[]", '{"abc": {"next_seed": 1}}', '{"abc": {"next_seed": "x", "summary": {}}}'])
def test_invalid_state_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(StateError, match="Delete the file"):
        load(path, "abc")


@pytest.mark.parametrize("option", [("--seed", "3"), ("--trace",)])
def test_continue_excludes_seed_and_trace(repository: Path, option: tuple[str, ...]) -> None:
    assert _simulate("--continue", *option).exit_code == 2
