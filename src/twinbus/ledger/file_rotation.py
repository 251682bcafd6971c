"""When the writer starts a new file. Pure: the time is passed in, in seconds of any steady clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_GUESS = 200  # bytes a row, until there is something to measure
FIRST_RETRY, LAST_RETRY = 0.5, 30.0
#: Somebody waits: a store that failed is tried again sooner.
URGENT_RETRY = 0.25
#: Flushes wait for company for this part of the time that they have been following one another.
FLUSH_SHARE = 1 / 20
#: After so many seconds without a flush the next one is the first again.
FLUSH_PAUSE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """How large and how old the rows of a file may get.

    Args:
        rows: A file is written when so many rows wait; none has more.
        bytes: The same for the size of the rows before they are compressed, to about a row.
        seconds: What waits is written at least this often.
        flush_seconds: When flush follows flush they wait to share a file, at most so long and at first not at all: a
            short drain is done at once, and a long one does not leave more than so many files behind.

    Raises:
        ValueError: Names the argument and its bound.
    """

    rows: int = 100_000
    bytes: int = 32 << 20
    seconds: float = 60.0
    flush_seconds: float = 0.25

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows must be at least 1, not {self.rows!r}")
        if self.bytes < 1:
            raise ValueError(f"bytes must be at least 1, not {self.bytes!r}")
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be more than 0 and finite, not {self.seconds!r}")
        if not 0 <= self.flush_seconds <= self.seconds:
            raise ValueError(f"flush_seconds must be from 0 to seconds ({self.seconds!r}), not {self.flush_seconds!r}")


class Pace:
    """When the next file is due."""

    def __init__(self, rotation: Rotation, buffer_rows: int, now: float) -> None:
        self._rotation = rotation
        # A full buffer drops rows, so it must be emptied before it is full.
        self._most_rows = min(rotation.rows, max(1, buffer_rows // 2))
        self._looked_at = now
        self._flushed_at = self._first_flush_at = -math.inf
        self._retry_at: float | None = None
        self._retry_seconds = FIRST_RETRY
        self._row_bytes = float(FIRST_GUESS)

    @property
    def rows_due(self) -> int:
        """A file is due when so many rows wait."""
        return max(1, min(self._most_rows, int(self._rotation.bytes / self._row_bytes)))

    @property
    def is_failing(self) -> bool:
        return self._retry_at is not None

    def due_at(self, waiting: int, *, urgent: bool) -> float:
        """When to write next if so many rows wait; `urgent` if somebody waits until they are durable."""
        if self._retry_at is not None:
            return min(self._retry_at, self._looked_at + URGENT_RETRY) if urgent else self._retry_at
        if waiting >= self.rows_due:
            return self._looked_at
        at = self._looked_at + self._rotation.seconds
        return min(at, self._flushed_at + self._company_seconds()) if urgent else at

    def _company_seconds(self) -> float:
        if self._flushed_at == self._first_flush_at:
            return 0.0
        return min(self._rotation.flush_seconds, (self._flushed_at - self._first_flush_at) * FLUSH_SHARE)

    def measured(self, rows: int, size: int) -> None:
        """So many rows had so many bytes."""
        if rows:
            self._row_bytes = max(1.0, size / rows)

    def wrote(self, now: float, *, urgent: bool) -> None:
        """Everything that waited is stored, if anything did."""
        self._looked_at = now
        self._retry_at = None
        self._retry_seconds = FIRST_RETRY
        if urgent:
            if now - self._flushed_at > FLUSH_PAUSE:
                self._first_flush_at = now
            self._flushed_at = now

    def failed(self, now: float) -> None:
        """The store did not take a file."""
        self._looked_at = now
        self._retry_at = now + self._retry_seconds
        self._retry_seconds = min(LAST_RETRY, 2 * self._retry_seconds)
