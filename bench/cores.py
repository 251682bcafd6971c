"""Measures the CPU time of a process and its descendants (Linux)."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def with_children(process: int) -> list[int]:
    """The process and all its descendants, the process first."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    tree = [process]
    for ancestor in tree:  # grows during the loop
        tree += [child for child, parent in parents.items() if parent == ancestor]
    return tree


def seconds_of_cores(process: int) -> float:
    """CPU seconds of a process and its descendants, including ended children they waited for."""
    stats = [_stat(descendant) for descendant in with_children(process)]
    return sum(int(value) for fields in stats for value in fields[11:15]) / _TICKS


def _stat(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # the process has ended
        return []
