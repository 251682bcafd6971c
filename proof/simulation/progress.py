"""Keeps the totals of simulated runs in a file, per version of the simulated code."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .summary import Summary

#: File of the totals, relative to the repository.
STATE = Path("build", "simulation-state.json")
#: Versions of the code kept in the file; the oldest is dropped first.
MAX_VERSIONS = 20
#: Code that a run executes. What else changes in a commit, such as documentation, leaves its runs valid.
SIMULATED_CODE = (
    *(f"src/twinbus/{name}" for name in ("amqp", "client", "envelope", "ledger", "pairing", "servicebus", "syphon")),
    "src/twinbus/emulator/entities/decimals.py",
    "src/twinbus/emulator/entities/message.py",
    "src/twinbus/emulator/protocol/error_conditions.py",
    "src/twinbus/emulator/storage/schema.py",
    "src/twinbus/tables/verdict.py",
    "proof/checker.py",
    "proof/history.py",
    "proof/ledger_words.py",
    "proof/simulation",
)
_COUNTERS = frozenset({"words", "struck"})


class StateError(Exception):
    """The file of totals cannot be read."""


@dataclass(slots=True)
class Progress:
    """The runs of one version of the code so far, and the next seed."""

    code: str
    next_seed: int
    summary: Summary

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "next_seed": self.next_seed, **self.summary.to_json()}


def code_version(folder: Path) -> str:
    """A digest of the simulated code in a checkout."""
    digest = hashlib.sha256()
    for name in SIMULATED_CODE:
        root = folder / name
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def load(path: Path, code: str) -> Progress:
    """Load the progress of a version of the code; starts at seed 0 if there is none.

    Raises:
        StateError: the file was not written by `save`.
    """
    saved = _read(path).get(code)
    if saved is None:
        return Progress(code, 0, Summary())
    try:
        return Progress(code, int(saved["next_seed"]), _summary(saved["summary"]))
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{path}: expected totals as --continue writes them, got {error!r}. "
            "Delete the file to start again from seed 0."
        ) from None


def save(path: Path, progress: Progress) -> None:
    """Save the progress of a version of the code. Atomic; keeps those of other versions."""
    state = _read(path)
    state.pop(progress.code, None)
    state[progress.code] = {"next_seed": progress.next_seed, "summary": _plain(progress.summary)}
    for oldest in list(state)[:-MAX_VERSIONS]:
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
