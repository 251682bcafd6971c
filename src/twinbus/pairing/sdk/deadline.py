"""Holds the deadline of a thread's current call, for code that the SDK calls back."""

from __future__ import annotations

import math
import threading
import time


class _Call(threading.local):
    """The current thread's call: when it must end, by `time.monotonic`, and whether it was abandoned."""

    ends = math.inf
    given_up: threading.Event | None = None


call = _Call()


def seconds_left(most: float) -> float:
    """Return how long the current thread may still wait, at most `most` seconds."""
    return max(0.0, min(most, call.ends - time.monotonic()))


def is_given_up() -> bool:
    """Return whether the current thread's call was abandoned."""
    return call.given_up is not None and call.given_up.is_set()
