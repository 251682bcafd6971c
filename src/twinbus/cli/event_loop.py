"""The event loop of commands that move many messages."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
COLLECT_AFTER = 50_000  # new objects between two looks for garbage; the usual 700 are those of some 30 messages


def run_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run on the fastest event loop there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def spare_the_collector() -> None:
    """Look for garbage seldom, and not among what was loaded: messages that wait for a commit are no garbage.

    Looking through them again and again takes a third of the time under load; what is dropped is freed at once anyway.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
