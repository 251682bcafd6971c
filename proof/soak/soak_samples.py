"""Samples a process's memory, threads, sockets and files, and checks for growth (Linux only)."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample. Memory is resident memory; files are all open handles except sockets."""

    memory: float  # megabytes
    threads: int
    sockets: int
    files: int


class Tolerance(NamedTuple):
    """How much the last third of a soak may exceed the earlier ones: a share plus an absolute amount."""

    share: float
    more: float


#: For medians, so that temporary connections during faults do not count.
TOLERANCES = {
    "memory": Tolerance(0.05, 4.0),
    "threads": Tolerance(0.0, 4.0),
    "sockets": Tolerance(0.0, 4.0),
    "files": Tolerance(0.0, 4.0),
}


def take_sample(pid: int) -> Sample:
    """Sample a process now. Raises `OSError` if it has ended."""
    folder = Path("/proc") / str(pid)
    resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    threads = sum(1 for _ in (folder / "task").iterdir())
    handles = [_target(handle) for handle in (folder / "fd").iterdir()]
    sockets = sum(target.startswith("socket:") for target in handles)
    return Sample(resident / MEGABYTE, threads, sockets, len(handles) - sockets)


def _target(handle: Path) -> str:
    try:
        return os.readlink(handle)
    except FileNotFoundError:  # closed meanwhile
        return ""


class Course(NamedTuple):
    """The course of one measure of a process: the median of each third of the soak, and the maximum."""

    process: str
    measure: str
    first: float
    middle: float
    last: float
    most: float

    @property
    def allowed(self) -> float:
        """Upper bound for the last third: the larger of the earlier ones plus the tolerance. Growth shows in the middle
        third; a temporary loss during a fault leaves the first third high."""
        tolerance = TOLERANCES[self.measure]
        return max(self.first, self.middle) * (1 + tolerance.share) + tolerance.more

    @property
    def is_flat(self) -> bool:
        return self.last <= self.allowed

    def to_json(self) -> dict[str, Any]:
        figures = {name: round(value, 1) for name, value in self._asdict().items() if isinstance(value, float)}
        return {"process": self.process, "measure": self.measure, **figures, "flat": self.is_flat}


def courses_of(process: str, samples: Sequence[Sample]) -> list[Course]:
    """One course per measure. Raises `ValueError` for fewer than three samples, one per third."""
    if len(samples) < 3:
        raise ValueError(f"{process}: expected at least 3 samples, got {len(samples)}; run a longer soak")
    third = len(samples) // 3
    thirds = samples[:third], samples[third : 2 * third], samples[2 * third :]

    def course(measure: str) -> Course:
        values = [[float(getattr(sample, measure)) for sample in part] for part in thirds]
        first, middle, last = map(statistics.median, values)
        return Course(process, measure, first, middle, last, max(map(max, values)))

    return [course(field.name) for field in fields(Sample)]
