"""Waiting, but not for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from .errors import TimedOut


@contextlib.asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Raise `TimedOut` if the block takes longer; `what` has not happened then."""
    try:
        async with asyncio.timeout(seconds) as scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise  # somebody else's
        raise TimedOut(f"{what} within {seconds:g} seconds") from None


class Deadline:
    """So many seconds for several steps together."""

    def __init__(self, seconds: float) -> None:
        self._time = asyncio.get_running_loop().time
        self._at = self._time() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._at - self._time())
