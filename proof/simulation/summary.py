"""Adds up the results of many simulated runs."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .run import Result, simulate

#: Failed seeds listed in a report.
MAX_NAMED = 20
#: Seeds handed to a worker process at a time.
CHUNK = 10


@dataclass(slots=True)
class Summary:
    """Running totals. The field names are keys of the progress file."""

    runs: int = 0
    #: Runs with diverted messages.
    outages: int = 0
    diverted: int = 0
    #: Virtual time.
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    words: Counter[str] = field(default_factory=Counter)
    #: Number of runs in which each fault or action occurred.
    struck: Counter[str] = field(default_factory=Counter)
    failed: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        self.runs += 1
        self.outages += result.diverted > 0
        self.diverted += result.diverted
        self.seconds += result.seconds
        self.struck.update(result.struck.keys())
        if result.verdict is not None:
            self.words.update(result.verdict.counts())
            if not result.keeps_order:
                self.words["order_violations"] -= len(result.verdict.order_violations)
        if not result.is_good:
            self.failed[result.seed] = result.complaints

    @property
    def pace(self) -> float:
        """Runs per minute of CPU time."""
        return 60 * self.runs / max(self.cpu_seconds, 1e-9)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `python -m proof simulate --json`."""
        return {
            "runs": self.runs,
            "failed": len(self.failed),
            "lost": self.words["lost"],
            "runs_with_diverted_messages": self.outages,
            "diverted": self.diverted,
            "messages": dict(self.words),
            "runs_struck_by": dict(sorted(self.struck.items())),
            "virtual_hours": round(self.seconds / 3600, 1),
            "runs_per_cpu_minute": round(self.pace),
            "failures": {seed: self.failed[seed] for seed in sorted(self.failed)[:MAX_NAMED]},
        }

    def describe(self) -> str:
        words = ", ".join(f"{word} {count:,}" for word, count in self.words.items())
        lines = [
            f"{self.runs:,} runs, {len(self.failed):,} failed; messages diverted in {self.outages:,} of them",
            f"{self.seconds / 3600:,.0f} hours of virtual time, {self.pace:,.0f} runs per minute of CPU time",
            words,
            *(f"  {count:>7,} runs: {name}" for name, count in sorted(self.struck.items())),
        ]
        for seed in sorted(self.failed)[:MAX_NAMED]:
            lines.append(f"seed {seed}: {'; '.join(self.failed[seed])}")
            lines.append(f"  {replay_command(seed)}")
        return "\n".join(lines)


def replay_command(seed: int) -> str:
    return f"python -m proof simulate --seed {seed} --trace"


def simulate_all(seeds: Iterable[int], summary: Summary | None = None, jobs: int = 1) -> Iterator[Summary]:
    """Run the seeds in `jobs` processes. Yields the same summary after each run, in the order of the seeds."""
    summary = summary or Summary()
    with contextlib.ExitStack() as stack:
        results: Iterator[tuple[Result, float]] = map(_timed, seeds)
        if jobs > 1:
            # Ctrl-C is for the parent, which ends its workers.
            pool = multiprocessing.get_context("spawn").Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN))
            results = stack.enter_context(pool).imap(_timed, seeds, CHUNK)
        for result, cpu_seconds in results:
            summary.add(result)
            summary.cpu_seconds += cpu_seconds
            yield summary


def _timed(seed: int) -> tuple[Result, float]:
    began = time.process_time()
    return simulate(seed), time.process_time() - began
