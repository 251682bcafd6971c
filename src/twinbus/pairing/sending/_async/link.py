"""One link: an SDK sender that serves one call at a time, within a deadline. Its counterpart for threads is written
by hand."""

# unasync: by hand

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from azure.servicebus.aio import ServiceBusSender

from ...errors import AttemptTimeoutError
from ...sdk import internals

logger = logging.getLogger("twinbus.pairing")

#: The longest that closing a link takes.
CLOSING = 5.0
#: Seconds between two cancellations of the same call: the SDK can lose one (`asyncio.wait_for` before Python 3.12).
CANCEL_AGAIN = 0.2
#: Seconds between two looks at the connection of a link that is being opened.
REMEMBER_EVERY = 0.005
#: The first looks are one in each turn of the event loop: a proxy may refuse sooner than any pause is over.
FIRST_LOOKS = 10

T = TypeVar("T")


class Link:
    """A link to one entity. It is opened once, and thrown away when something is wrong with it."""

    def __init__(self, sender: ServiceBusSender, path: str) -> None:
        self.sender = sender
        self.path = path
        #: Whether it has just been opened: no call on it was answered yet, and it was not idle.
        self.is_fresh = True
        #: The epoch of its pool in which it began to open.
        self.epoch = 0
        #: When it was given back to its pool.
        self.idle_since = 0.0
        #: The most bytes of a batch and of a single message, known once it is open.
        self.max_batch_size = self.max_message_size = 0
        #: With these a batch is sent as it is.
        self.batch_options: dict[str, Any] = {}
        self._is_closed = False
        self._connection: Any = None

    async def open(self, seconds: float) -> None:
        """Open it. If that fails the link must be thrown away.

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
        """Know the connection while it is being opened: if that fails the SDK forgets it, with its socket open."""
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
        """Whether a call of it still runs that was given up on. Tasks can be cancelled, so none does."""
        return False

    def cut(self) -> None:
        """Cut the connection, so that nothing more is written; `close` is still needed."""
        self._connection = internals.connection(self.sender) or self._connection
        internals.cut(self._connection)

    async def close(self) -> None:
        """Close the connection; no longer than a few seconds."""
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
                # A broken connection may fail to say good-bye.
                logger.debug("A link to %s did not close: %r", self.path, closing.exception())

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
    """Ends the current task's call after a time: cuts its connection and cancels it, again and again until stopped."""

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
        self._cut()  # first: a cancelled opening leaves its connection open and forgets it
        self._task.cancel()

    def stop(self) -> bool:
        """Stop; true if the time was over, and no one else has cancelled the task."""
        self._handle.cancel()
        if not self._cancellations:
            return False
        for _ in range(self._cancellations):
            self._task.uncancel()
        return self._task.cancelling() <= self._cancelling
