"""The deadline of the call that a thread makes, for code of ours that the SDK calls back in the same thread."""

from __future__ import annotations

import math
import threading
import time


class _Call(threading.local):
    """The call of the current thread: when it has to be over, by `time.monotonic`, and whether it was given up."""

    ends = math.inf
    given_up: threading.Event | None = None


call = _Call()


def seconds_left(most: float) -> float:
    """How long the current thread may still wait, at most `most` seconds."""
    return max(0.0, min(most, call.ends - time.monotonic()))


def is_given_up() -> bool:
    """Whether nobody waits for the call of the current thread any more."""
    return call.given_up is not None and call.given_up.is_set()
