"""The deadline of the call that a thread makes, for code of ours that the SDK calls back in the same thread."""

from __future__ import annotations

import math
import threading
import time


class _Call(threading.local):
    """What the current thread does: when its call has to be over, by `time.monotonic`."""

    ends = math.inf


call = _Call()


def seconds_left(most: float) -> float:
    """How long the current thread may still wait, at most `most` seconds."""
    return max(0.0, min(most, call.ends - time.monotonic()))
