"""Put durations into histogram buckets, and read durations back from them."""

from __future__ import annotations

import math

#: Each bucket is this many times as wide as the one before, so the middle of a bucket is wrong by 4.9 % at most.
GROWTH = 1.1


def bucket_of(us: int) -> int:
    """The bucket of a duration in microseconds; less than one counts as one."""
    return math.floor(math.log(max(1, us)) / math.log(GROWTH))


def middle_of(bucket: int) -> float:
    """The duration that stands for a bucket, in microseconds: the geometric mean of its bounds."""
    return float(GROWTH ** (bucket + 0.5))
