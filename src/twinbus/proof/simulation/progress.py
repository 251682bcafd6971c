"""Keeps the sums of simulated runs in a file, so that the runs of one commit add up."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .summary import Summary

#: Where the sums are, from the folder of the repository.
STATE = Path("build", "simulation-state.json")
#: Commits that are remembered; the oldest is forgotten first.
MAX_COMMITS = 20
#: What a change to the code under test touches.
_CODE = "src"
_COUNTERS = frozenset({"words", "struck"})


class StateError(Exception):
    """The file of sums cannot be read."""


@dataclass(slots=True)
class Progress:
    """The runs of one commit so far, and the seed to go on with."""

    commit: str
    next_seed: int
    summary: Summary

    def to_json(self) -> dict[str, Any]:
        return {"commit": self.commit, "next_seed": self.next_seed, **self.summary.to_json()}


def commit_of(folder: Path) -> str:
    """The commit that is checked out, with `-dirty` if the code has been changed since; `unknown` without git."""
    try:
        head = _git(folder, "rev-parse", "HEAD")
        is_dirty = bool(_git(folder, "status", "--porcelain", "--", _CODE))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}-dirty" if is_dirty else head


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def load(path: Path, commit: str) -> Progress:
    """The progress of a commit, from the beginning if there is none.

    Raises:
        StateError: the file is not what `save` has written.
    """
    known = _read(path).get(commit)
    if known is None:
        return Progress(commit, 0, Summary())
    try:
        return Progress(commit, int(known["next_seed"]), _summary(known["summary"]))
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path} cannot be read ({error!r}). Delete it to begin again from seed 0.") from None


def save(path: Path, progress: Progress) -> None:
    """Write the progress of a commit beside those of others. What is there stays whole if this is interrupted."""
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
        raise StateError(f"{path} is not JSON ({error}). Delete it to begin again from seed 0.") from None
    if not isinstance(state, dict):
        raise StateError(f"{path} must hold an object. Delete it to begin again from seed 0.")
    return state


def _plain(summary: Summary) -> dict[str, Any]:
    return {one.name: getattr(summary, one.name) for one in fields(summary)}


def _summary(plain: dict[str, Any]) -> Summary:
    values = {one.name: plain[one.name] for one in fields(Summary)}
    for name in _COUNTERS:
        values[name] = Counter(values[name])
    values["failed"] = {int(seed): tuple(complaints) for seed, complaints in values["failed"].items()}
    return Summary(**values)
