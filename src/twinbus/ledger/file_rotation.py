"""Decides when the writer stores its next file. Pure: callers pass in the time of a monotonic clock, in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Assumed bytes per row until a file has been measured.
INITIAL_ROW_BYTES = 200
#: Seconds to the first retry after a failure, doubled up to the last.
FIRST_RETRY, LAST_RETRY = 0.5, 30.0
#: Seconds to the next retry while a flush waits.
URGENT_RETRY = 0.25
#: A flush is delayed by this share of the time since the first flush of the series, so that flushes share a file.
FLUSH_SHARE = 1 / 20
#: Seconds without a flush after which the next flush starts a new series.
FLUSH_PAUSE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Limits of a file: rows, bytes, and the age of its oldest row.

    Args:
        rows: A file is written when this many rows wait, and has at most this many.
        bytes: The same for the uncompressed size of the rows, accurate to about one row.
        seconds: Waiting rows are written at least this often.
        flush_seconds: Longest delay of a flush, so that frequent flushes share a file. The first flush of a series has
            no delay and later ones have more: a short drain ends at once, a long one leaves few files behind.

    Raises:
        ValueError: An argument is out of bounds.
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
    """Computes when the next file is due."""

    def __init__(self, rotation: Rotation, buffer_rows: int, now: float) -> None:
        self._rotation = rotation
        # A full buffer drops rows, so write before it is full.
        self._max_rows = min(rotation.rows, max(1, buffer_rows // 2))
        self._last_attempt_at = now
        self._flushed_at = self._first_flush_at = -math.inf
        self._retry_at: float | None = None
        self._retry_seconds = FIRST_RETRY
        self._row_bytes = float(INITIAL_ROW_BYTES)

    @property
    def rows_due(self) -> int:
        """Number of waiting rows at which a file is due."""
        return max(1, min(self._max_rows, int(self._rotation.bytes / self._row_bytes)))

    @property
    def is_failing(self) -> bool:
        """Whether the last write failed."""
        return self._retry_at is not None

    def due_at(self, waiting: int, *, urgent: bool) -> float:
        """Return when to write next, with `waiting` rows in the buffer; `urgent` if a flush waits for them."""
        if self._retry_at is not None:
            return min(self._retry_at, self._last_attempt_at + URGENT_RETRY) if urgent else self._retry_at
        if waiting >= self.rows_due:
            return self._last_attempt_at
        regular_at = self._last_attempt_at + self._rotation.seconds
        return min(regular_at, self._flushed_at + self._flush_delay()) if urgent else regular_at

    def _flush_delay(self) -> float:
        """Return the seconds from the last flush to the next one, which grow during a series of flushes."""
        if self._flushed_at == self._first_flush_at:
            return 0.0
        return min(self._rotation.flush_seconds, (self._flushed_at - self._first_flush_at) * FLUSH_SHARE)

    def measured(self, rows: int, size: int) -> None:
        """Update the bytes per row: `rows` rows had `size` bytes."""
        if rows:
            self._row_bytes = max(1.0, size / rows)

    def wrote(self, now: float, *, urgent: bool) -> None:
        """Record that a write succeeded: all waiting rows are stored."""
        self._last_attempt_at = now
        self._retry_at = None
        self._retry_seconds = FIRST_RETRY
        if urgent:
            if now - self._flushed_at > FLUSH_PAUSE:
                self._first_flush_at = now
            self._flushed_at = now

    def failed(self, now: float) -> None:
        """Record that a write failed, and schedule the next retry."""
        self._last_attempt_at = now
        self._retry_at = now + self._retry_seconds
        self._retry_seconds = min(LAST_RETRY, 2 * self._retry_seconds)
