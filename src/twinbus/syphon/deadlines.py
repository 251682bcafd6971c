"""Waiting, but not for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from .errors import TimedOut

if TYPE_CHECKING:
    from .session import Session


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


@contextlib.asynccontextmanager
async def answered_within(seconds: float, what: str, session: Session) -> AsyncIterator[None]:
    """`within`, for an answer of the peer.

    A peer that says nothing else either is asked for a sign of life at half-time. If none comes, it is not one entity
    that is silent, and the connection is cut.
    """
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    probe = loop.call_later(seconds / 2, session.probe, asked_at)
    try:
        async with within(seconds, what):
            yield
    except TimedOut as late:
        if session.wire.last_read < asked_at:
            session.wire.fail(late)
        raise
    finally:
        probe.cancel()


class Deadline:
    """So many seconds for several steps together."""

    def __init__(self, seconds: float) -> None:
        self._time = asyncio.get_running_loop().time
        self._at = self._time() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._at - self._time())
