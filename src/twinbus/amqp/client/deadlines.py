"""Bounds how long the client waits for the peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from .errors import AnswerTimeoutError

if TYPE_CHECKING:
    from .session import Session


@contextlib.asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Raise `AnswerTimeoutError` if the block takes longer. `what` is the start of its text."""
    try:
        async with asyncio.timeout(seconds) as scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise  # from another timeout
        raise AnswerTimeoutError(f"{what} within {seconds:g} seconds") from None


@contextlib.asynccontextmanager
async def answered_within(seconds: float, what: str, session: Session) -> AsyncIterator[None]:
    """Like `within`, and fail the connection if the peer sent nothing at all meanwhile.

    At half time a silent peer is probed with a flow that asks for an echo, so that one slow entity can be told from a
    dead connection.
    """
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    probe = loop.call_later(seconds / 2, session.probe, asked_at)
    try:
        async with within(seconds, what):
            yield
    except AnswerTimeoutError as timeout:
        if session.wire.last_read < asked_at:
            session.wire.fail(timeout)
        raise
    finally:
        probe.cancel()


class Deadline:
    """One time budget for several steps."""

    def __init__(self, seconds: float) -> None:
        self._time = asyncio.get_running_loop().time
        self._at = self._time() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._at - self._time())
