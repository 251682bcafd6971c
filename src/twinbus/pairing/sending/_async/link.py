"""One link: an SDK sender that serves one call at a time, within a deadline. Its counterpart for threads is written
by hand."""

# unasync: by hand

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from azure.servicebus.aio import ServiceBusSender

from ...pairing_errors import AttemptTimeoutError
from ...sdk import internals
from .synchronization import CANCEL_AGAIN

logger = logging.getLogger("twinbus.pairing")

#: Closing a link takes no longer than this.
CLOSING = 5.0
#: Seconds between two checks of the connection of an opening link.
REMEMBER_EVERY = 0.005
#: The first checks come with every turn of the event loop: a proxy may refuse before any pause ends.
FIRST_LOOKS = 10

T = TypeVar("T")


class Link:
    """A link to one entity. It is opened once, and discarded when something is wrong with it."""

    def __init__(self, sender: ServiceBusSender, path: str) -> None:
        self.sender = sender
        self.path = path
        #: Whether it was just opened: no call on it was answered yet, and it was never idle.
        self.is_fresh = True
        #: The epoch of its pool when it began to open.
        self.epoch = 0
        #: When it was given back to its pool.
        self.idle_since = 0.0
        #: The largest batch and single message in bytes, known once it is open.
        self.max_batch_size = self.max_message_size = 0
        #: Options with which the SDK sends a batch as it is.
        self.batch_options: dict[str, Any] = {}
        self._is_closed = False
        self._connection: Any = None

    async def open(self, seconds: float) -> None:
        """Open the link. If that fails, discard it.

        Raises:
            AttemptTimeoutError: it took longer.
            azure.servicebus.exceptions.ServiceBusError: what the SDK raises.
        """
        self._remember(FIRST_LOOKS)
        try:
            await self.call(self._open, seconds=seconds)
        except AttemptTimeoutError:
            raise AttemptTimeoutError(self.path, seconds, is_unsent=True) from None
        finally:
            self._connection = internals.connection(self.sender) or self._connection
            self._remembering.cancel()

    def _remember(self, looks: int) -> None:
        """Keep a reference to the opening connection: on failure the SDK forgets it with its socket open."""
        self._connection = internals.connection(self.sender) or self._connection
        pause = 0.0 if looks > 0 else REMEMBER_EVERY
        self._remembering = asyncio.get_running_loop().call_later(pause, self._remember, looks - 1)

    async def _open(self) -> None:
        await self.sender.__aenter__()
        batch = await self.sender.create_message_batch()
        self.max_batch_size = batch.max_size_in_bytes
        self.max_message_size = internals.max_message_size(self.sender) or self.max_batch_size
        self.batch_options = internals.batch_options(self.sender)

    async def call(self, function: Callable[..., Awaitable[T]], *arguments: Any, seconds: float) -> T:
        """Await a call of the sender.

        Raises:
            AttemptTimeoutError: it took longer.
            azure.servicebus.exceptions.ServiceBusError: what the SDK raises.
        """
        deadline = _Deadline(seconds, self.cut)
        try:
            result = await function(*arguments)
        except BaseException as error:
            if deadline.stop() and isinstance(error, (Exception, asyncio.CancelledError)):
                raise AttemptTimeoutError(self.path, seconds) from None
            raise
        deadline.stop()
        return result

    @property
    def is_hung(self) -> bool:
        """Whether an abandoned call of it still runs. Tasks can be cancelled, so none does."""
        return False

    def cut(self) -> None:
        """Cut the connection, so that nothing more is written; `close` is still needed."""
        self._connection = internals.connection(self.sender) or self._connection
        internals.cut(self._connection)

    async def close(self) -> None:
        """Close the connection, within a few seconds."""
        if self._is_closed:
            return
        self._is_closed = True
        closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.wait({closing}, timeout=CLOSING)
        finally:
            if not closing.done():
                self.cut()
                closing.cancel()
            elif not closing.cancelled() and closing.exception() is not None:
                # Closing a broken connection may fail.
                logger.debug("Closing the link to %s failed: %r", self.path, closing.exception())

    async def _close(self) -> None:
        connection = self._connection
        transport = internals.asyncio_transport(connection)
        try:
            await self.sender.close()
        finally:
            internals.cut(connection)
            if transport is not None:
                transport.abort()
            session = internals.http_session(connection)
            if session is not None:
                await session.close()


class _Deadline:
    """Ends the task's call after a time: cuts its connection and cancels it, repeatedly, until stopped."""

    __slots__ = ("_cancellations", "_cancelling", "_cut", "_handle", "_task")

    def __init__(self, seconds: float, cut: Callable[[], None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cut = cut
        self._cancelling = task.cancelling()
        self._cancellations = 0
        self._handle = task.get_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._cancellations += 1
        self._handle = self._task.get_loop().call_later(CANCEL_AGAIN, self._expire)
        self._cut()  # first: a cancelled opening forgets its open connection
        self._task.cancel()

    def stop(self) -> bool:
        """Stop; return whether the time was over and no one else has cancelled the task."""
        self._handle.cancel()
        if not self._cancellations:
            return False
        for _ in range(self._cancellations):
            self._task.uncancel()
        return self._task.cancelling() <= self._cancelling
