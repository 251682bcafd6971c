"""Convert durations to histogram buckets and back."""

from __future__ import annotations

import math

#: Ratio of the widths of two buckets: the middle of a bucket is at most 4.9 % wrong.
GROWTH = 1.1


def bucket_of(us: int) -> int:
    """Return the bucket of a duration in microseconds; less than one counts as one."""
    return math.floor(math.log(max(1, us)) / math.log(GROWTH))


def middle_of(bucket: int) -> float:
    """Return the duration of a bucket in microseconds: the geometric mean of its bounds."""
    return float(GROWTH ** (bucket + 0.5))
