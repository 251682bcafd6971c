"""How much time a process and all that it started have had of the cores (Linux)."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def with_children(process: int) -> list[int]:
    """A process and all that descend from it, itself first."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    found = [process]
    for one in found:  # grows while it is walked through
        found += [child for child, parent in parents.items() if parent == one]
    return found


def seconds_of_cores(process: int) -> float:
    """Of a process, of what it has started, and of what these have waited for."""
    fields = [_stat(one) for one in with_children(process)]
    return sum(int(value) for one in fields for value in one[11:15]) / _TICKS


def _stat(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return []
