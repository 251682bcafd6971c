"""What a process holds of the machine, looked at again and again, and whether it stays as it is (Linux only)."""

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
    """One look. Memory is what is resident; files are all open handles that are no sockets."""

    memory: float  # megabytes
    threads: int
    sockets: int
    files: int


class Tolerance(NamedTuple):
    """By how much the last third may be above those before it: a share, and something more."""

    share: float
    more: float


#: Medians are compared, so that connections that come and go in a fault do not count.
TOLERANCES = {
    "memory": Tolerance(0.05, 4.0),
    "threads": Tolerance(0.0, 4.0),
    "sockets": Tolerance(0.0, 4.0),
    "files": Tolerance(0.0, 4.0),
}


def look_at(pid: int) -> Sample:
    """A process as it is now. Raises `OSError` if it has ended."""
    folder = Path("/proc") / str(pid)
    resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    threads = sum(1 for _ in (folder / "task").iterdir())
    handles = [_target(one) for one in (folder / "fd").iterdir()]
    sockets = sum(one.startswith("socket:") for one in handles)
    return Sample(resident / MEGABYTE, threads, sockets, len(handles) - sockets)


def _target(handle: Path) -> str:
    try:
        return os.readlink(handle)
    except FileNotFoundError:  # it was closed while we looked
        return ""


class Course(NamedTuple):
    """How one measure of a process went: the medians of the thirds of its time, and the most there ever was."""

    process: str
    measure: str
    first: float
    middle: float
    last: float
    most: float

    @property
    def allowed(self) -> float:
        """What the last third may have: as much as one of those before it, and the tolerance of the measure. What grows
        is highest in the middle one; what a fault took away for a while is there in the first."""
        tolerance = TOLERANCES[self.measure]
        return max(self.first, self.middle) * (1 + tolerance.share) + tolerance.more

    @property
    def is_flat(self) -> bool:
        return self.last <= self.allowed

    def to_json(self) -> dict[str, Any]:
        figures = {name: round(value, 1) for name, value in self._asdict().items() if isinstance(value, float)}
        return {"process": self.process, "measure": self.measure, **figures, "flat": self.is_flat}


def courses_of(process: str, samples: Sequence[Sample]) -> list[Course]:
    """One for each measure. Raises `ValueError` if there are fewer than three samples: one for each third."""
    if len(samples) < 3:
        raise ValueError(f"{process}: {len(samples)} samples are too few to tell its course, it takes 3")
    third = len(samples) // 3
    thirds = samples[:third], samples[third : 2 * third], samples[2 * third :]

    def course(measure: str) -> Course:
        values = [[float(getattr(one, measure)) for one in part] for part in thirds]
        first, middle, last = map(statistics.median, values)
        return Course(process, measure, first, middle, last, max(map(max, values)))

    return [course(one.name) for one in fields(Sample)]
