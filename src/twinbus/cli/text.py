"""Formats numbers, tables and untrusted text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def printable(value: object) -> str:
    """Replace control characters: names and ids from messages must not send escape sequences to the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(value))


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Return a count with its noun: `1 day`, `2 days`."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def missing_queues_text(missing: int, expected: int) -> str:
    """Return the line about backlog queues that `--queues` counts and that do not exist."""
    verb = "does" if missing == 1 else "do"
    return f"{missing:,} of the {expected:,} backlog queues of --queues {verb} not exist"


def age(seconds: float) -> str:
    """Format a time span in its two largest units."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(count: int) -> str:
    """Format a number of bytes in a unit that leaves few digits."""
    if count == 1:
        return "1 byte"
    value = float(count)
    for unit in ("bytes", "KB", "MB"):
        if value < 1024:
            return f"{value:,.0f} {unit}"
        value /= 1024
    return f"{value:,.1f} GB"


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> str:
    """Format a table as plain lines.

    The first `left` columns are left-aligned, the others right-aligned, except the last: it is never padded or
    wrapped, so that a long path stays in one piece.
    """
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings) - 1)]

    def line_of(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=False))
        ]
        return "  ".join([*padded, cells[-1]]).rstrip()

    return "\n".join(map(line_of, lines))
