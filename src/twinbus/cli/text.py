"""Figures and foreign texts for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def printable(value: object) -> str:
    """Names and ids come from anywhere: they must not talk to the terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in str(value))


def age(seconds: float) -> str:
    """A time span in the two largest units that matter."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(count: int) -> str:
    """Bytes in a unit that leaves few digits."""
    value = float(count)
    for unit in ("bytes", "KB", "MB"):
        if value < 1024:
            return f"{value:,.0f} {unit}"
        value /= 1024
    return f"{value:,.1f} GB"


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> str:
    """A table of plain lines. Its last column may be as long as it likes: a path stays in one piece.

    So many columns at the beginning are words, on the left; the others but the last are figures, on the right.
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
