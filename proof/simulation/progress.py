"""Keeps the totals of simulated runs per commit in a file."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .summary import Summary

#: File of the totals, relative to the repository.
STATE = Path("build", "simulation-state.json")
#: Commits kept in the file; the oldest is dropped first.
MAX_COMMITS = 20
#: Folder of the code under test.
_CODE = "src"
_COUNTERS = frozenset({"words", "struck"})


class StateError(Exception):
    """The file of totals cannot be read."""


@dataclass(slots=True)
class Progress:
    """The runs of one commit so far, and the next seed."""

    commit: str
    next_seed: int
    summary: Summary

    def to_json(self) -> dict[str, Any]:
        return {"commit": self.commit, "next_seed": self.next_seed, **self.summary.to_json()}


def commit_of(folder: Path) -> str:
    """The checked-out commit, with `-dirty` if the code has changed since; `unknown` without git."""
    try:
        head = _git(folder, "rev-parse", "HEAD")
        is_dirty = bool(_git(folder, "status", "--porcelain", "--", _CODE))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}-dirty" if is_dirty else head


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def load(path: Path, commit: str) -> Progress:
    """Load the progress of a commit; starts at seed 0 if there is none.

    Raises:
        StateError: the file was not written by `save`.
    """
    saved = _read(path).get(commit)
    if saved is None:
        return Progress(commit, 0, Summary())
    try:
        return Progress(commit, int(saved["next_seed"]), _summary(saved["summary"]))
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{path}: expected totals as --continue writes them, got {error!r}. "
            "Delete the file to start again from seed 0."
        ) from None


def save(path: Path, progress: Progress) -> None:
    """Save the progress of a commit. Atomic; keeps other commits."""
    state = _read(path)
    state.pop(progress.commit, None)
    state[progress.commit] = {"next_seed": progress.next_seed, "summary": _plain(progress.summary)}
    for oldest in list(state)[:-MAX_COMMITS]:
        del state[oldest]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StateError(f"{path}: expected JSON, got {error}. Delete the file to start again from seed 0.") from None
    if not isinstance(state, dict):
        raise StateError(
            f"{path}: expected a JSON object, got {type(state).__name__}. Delete the file to start again from seed 0."
        )
    return state


def _plain(summary: Summary) -> dict[str, Any]:
    return {field.name: getattr(summary, field.name) for field in fields(summary)}


def _summary(plain: dict[str, Any]) -> Summary:
    values = {field.name: plain[field.name] for field in fields(Summary)}
    for name in _COUNTERS:
        values[name] = Counter(values[name])
    values["failed"] = {int(seed): tuple(complaints) for seed, complaints in values["failed"].items()}
    return Summary(**values)
