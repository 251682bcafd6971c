"""One SDK sender, and what is done with it within a time. Its counterpart for threads is written by hand."""

# unasync: by hand

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from azure.servicebus.aio import ServiceBusSender

from .. import sdk_seam
from ..errors import AttemptTimeoutError

logger = logging.getLogger("twinbus.pairing")

#: The longest that good-byes are waited for.
ENDING = 5.0
#: Longer than a look at an idle connection can take.
LISTENING = 5.0

sleep = asyncio.sleep


def monotonic() -> float:
    """The time by which everything here is measured: that of the event loop."""
    return asyncio.get_running_loop().time()


T = TypeVar("T")


class TurnTimeoutError(AttemptTimeoutError):
    """Others were before us for all of the time; nothing was tried."""


class Turn:
    """One at a time, each with a time to wait."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def taken(self, path: str, seconds: float) -> AsyncIterator[None]:
        """Raises `TurnTimeoutError` if it takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._lock.acquire()
        except TimeoutError:
            raise TurnTimeoutError(path, seconds) from None
        try:
            yield
        finally:
            self._lock.release()


class Calls:
    """Makes calls one after the other, and cancels those that take too long.

    One timer serves them all, and is seldom set: a call costs next to nothing.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self._ends: dict[asyncio.Task[Any], float] = {}
        self._overdue: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf
        self._is_closed = False
        #: Set by whoever wants to know whether there are calls.
        self.is_idle = False

    async def make(self, call: Callable[..., Awaitable[T]], *arguments: Any, seconds: float) -> T:
        """Call it when it is its turn, and await it.

        Raises:
            TurnTimeoutError: its turn did not come in time, or never will.
            AttemptTimeoutError: it took longer, or was broken off.
        """
        self.is_idle = False
        task = asyncio.current_task()
        assert task is not None
        requests = task.cancelling()
        self._ends[task] = ends = monotonic() + seconds
        if ends < self._next:
            self._set_timer(ends)
        is_our_turn = False
        try:
            await self._lock.acquire()
            is_our_turn = True
            if self._is_closed:
                raise TurnTimeoutError(self._path, seconds)
            return await call(*arguments)
        except asyncio.CancelledError:
            # If somebody else wanted to cancel it as well, it is cancelled and not too late.
            if task not in self._overdue or task.uncancel() > requests:
                raise
            raise (AttemptTimeoutError if is_our_turn else TurnTimeoutError)(self._path, seconds) from None
        finally:
            if is_our_turn:
                self._lock.release()
            del self._ends[task]
            if self._overdue:
                self._overdue.discard(task)

    def _set_timer(self, ends: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = ends
        self._timer = asyncio.get_running_loop().call_later(ends - monotonic(), self._on_time)

    def _on_time(self) -> None:
        now = monotonic()
        self._break_off([task for task, ends in self._ends.items() if ends <= now])
        self._next = math.inf
        left = [ends for ends in self._ends.values() if ends > now]
        if left:
            self._set_timer(min(left))

    def _break_off(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            if task not in self._overdue:
                self._overdue.add(task)
                task.cancel()

    def close(self) -> None:
        """Break off the calls that are under way or wait for their turn; there will be no others."""
        self._is_closed = True
        self._break_off(list(self._ends))
        if self._timer is not None:
            self._timer.cancel()

    async def ended(self) -> None:
        """Wait until nobody is in a call any more."""
        async with self._lock:
            pass


class Aside:
    """Does something that nobody waits for, one thing at a time. What goes wrong there is only logged."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Do it, unless something is being done."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._do(work, *arguments))

    async def _do(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        try:
            await work(*arguments)
        except Exception as error:
            logger.debug("Something was not done: %r", error)

    async def close(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=ENDING)


class Link:
    """A link to one entity. It is opened once, and thrown away when something is wrong with it.

    It may be used by several tasks: each waits for its turn. The SDK's sender would send some messages twice.
    """

    def __init__(self, sender: ServiceBusSender, path: str) -> None:
        sdk_seam.prepare(sender)
        self.sender = sender
        self.path = path
        #: Found dead while nobody used it.
        self.is_broken = False
        self._calls = Calls(path)
        #: Makes a call of its sender.
        self.make = self._calls.make
        self._keep_alive: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    async def open(self, seconds: float) -> None:
        """Open it. If that fails the link is no good any more.

        Raises:
            AttemptTimeoutError: it took longer.
            azure.servicebus.exceptions.ServiceBusError: whatever the SDK says.
        """
        # A task of its own: after a cancellation the SDK may have more to wait for than we have time.
        opening = asyncio.create_task(self.sender.__aenter__())
        try:
            await asyncio.wait({opening}, timeout=seconds)
            if not opening.done():
                raise AttemptTimeoutError(self.path, seconds)
            opening.result()
        except BaseException:
            opening.cancel()
            self.discard(opening)
            raise
        interval = sdk_seam.opened(self.sender)
        if interval:
            self._keep_alive = asyncio.create_task(self._stay(interval))

    async def _stay(self, interval: float) -> None:
        """Keep an idle link alive, and find out if it is not."""
        while not self.is_broken:
            self._calls.is_idle = True
            await asyncio.sleep(interval)
            if not self._calls.is_idle:
                continue
            try:
                await self._calls.make(sdk_seam.listen, self.sender, seconds=LISTENING)
                self.is_broken = not sdk_seam.is_open(self.sender)
            except Exception as error:
                logger.debug("An idle link to %s broke: %r", self.path, error)
                self.is_broken = True

    # ---- the end ----

    def discard(self, opening: asyncio.Task[Any] | None = None) -> None:
        """Cut it off now, and clear up behind the caller's back."""
        if self._ending is None:
            self._calls.close()
            sdk_seam.abort(self.sender)
            self._ending = asyncio.create_task(self._end(opening))

    async def close(self) -> None:
        """Take leave of the peer, or wait until the link that was discarded is gone; no longer than a few seconds."""
        if self._ending is None:
            self._calls.close()
            self._ending = asyncio.create_task(self._end(None))
        await asyncio.wait({self._ending}, timeout=ENDING)
        if not self._ending.done():
            sdk_seam.abort(self.sender)
            self._ending.cancel()

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of it."""
        return self._ending is not None and self._ending.done()

    async def _end(self, opening: asyncio.Task[Any] | None) -> None:
        if opening is not None:
            await asyncio.wait({opening}, timeout=ENDING)
            if opening.done() and not opening.cancelled():
                opening.exception()  # the one who opened it was told, or did not want to know
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        await self._calls.ended()
        # What is broken may fail to say good-bye.
        for close in (self.sender.close, partial(sdk_seam.forgotten, self.sender)):
            try:
                closing = close()
                if closing is not None:
                    await closing
            except Exception as error:
                logger.debug("A link to %s did not close: %r", self.path, error)
