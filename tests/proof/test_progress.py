"""Simulated runs of one commit add up, in a file."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from twinbus.proof.__main__ import app
from twinbus.proof.simulation.progress import MAX_COMMITS, Progress, StateError, commit_of, load, save
from twinbus.proof.simulation.summary import Summary, simulate_all


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


def test_runs_of_one_commit_add_up(repository: Path) -> None:
    first = json.loads(_simulate("--continue", "--runs", "3", "--json").stdout)
    second = json.loads(_simulate("--continue", "--runs", "2", "--json").stdout)
    *_, at_once = simulate_all(range(5))
    assert (first["runs"], first["next_seed"], first["lost"]) == (3, 3, 0)
    assert (second["runs"], second["next_seed"], second["failed"]) == (5, 5, 0)
    assert second["commit"] == _git(repository, "rev-parse", "HEAD")
    assert second["messages"] == dict(at_once.words)
    assert second["runs_struck_by"] == dict(sorted(at_once.struck.items()))


def test_another_commit_begins_again(repository: Path) -> None:
    _simulate("--continue", "--runs", "2")
    (repository / "src" / "code.py").write_text("changed = True\n")
    answer = _simulate("--continue", "--runs", "1", "--json")
    dirty = json.loads(answer.stdout)
    assert dirty["runs"] == 1
    assert dirty["commit"].endswith("-dirty")
    _git(repository, "commit", "--all", "--quiet", "--message", "Second")
    assert json.loads(_simulate("--continue", "--runs", "1", "--json").stdout)["runs"] == 1


def test_what_is_not_code_does_not_make_a_commit_dirty(repository: Path) -> None:
    (repository / "notes.md").write_text("the results of a run")
    assert not commit_of(repository).endswith("-dirty")


def test_without_git_the_commit_is_unknown(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == "unknown"


def test_failed_seeds_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "build" / "state.json"
    summary = Summary(runs=7, failed={3: ("lost: 0-1-0",)})
    summary.words["lost"] = 1
    save(path, Progress("abc", 7, summary))
    assert load(path, "abc") == Progress("abc", 7, summary)
    assert load(path, "another") == Progress("another", 0, Summary())


def test_a_commit_with_failed_runs_fails_until_there_is_another(repository: Path) -> None:
    save(
        Path("build/simulation-state.json"), Progress(commit_of(repository), 9, Summary(runs=9, failed={3: ("lost",)}))
    )
    answer = _simulate("--continue", "--runs", "1")
    assert answer.exit_code == 1
    assert "seed 3: lost" in answer.stdout


def test_only_the_newest_commits_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for number in range(MAX_COMMITS + 3):
        save(path, Progress(f"commit-{number}", number, Summary()))
    assert list(json.loads(path.read_text())) == [f"commit-{number}" for number in range(3, MAX_COMMITS + 3)]


@pytest.mark.parametrize("text", ["", "[]", '{"abc": {"next_seed": 1}}', '{"abc": {"next_seed": "x", "summary": {}}}'])
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(StateError, match="Delete it"):
        load(path, "abc")


@pytest.mark.parametrize("option", [("--seed", "3"), ("--trace",)])
def test_the_commit_says_which_seed_is_next(repository: Path, option: tuple[str, ...]) -> None:
    assert _simulate("--continue", *option).exit_code == 2
