"""Attaches and detaches links: the base of senders and receivers."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import frame

from .deadlines import answered_within
from .errors import AmqpError, AnswerTimeoutError, LinkDetachedError

if TYPE_CHECKING:
    from .session import OnOutcome, Session

logger = logging.getLogger("twinbus.amqp.client.links")

OnEnd = Callable[[AmqpError], None]


def outcome_future() -> tuple[asyncio.Future[None], OnOutcome]:
    """A future for one outcome, and the callback that completes it."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def complete(error: AmqpError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return future, complete


class Link(ABC):
    """Our end of one link.

    `error` says why it ended; None before that. `pending` counts deliveries and settlements without an answer.
    """

    role = amqp.ROLE_SENDER

    def __init__(self, session: Session, name: str, path: str, on_end: OnEnd | None) -> None:
        self._session = session
        self._wire = session.wire
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._attach_sent = self._detach_sent = False
        self._detached: asyncio.Future[None] = self._loop.create_future()
        self.attached: asyncio.Future[None] = self._loop.create_future()
        self.handle = session.next_handle()
        self.name = name
        self.path = path
        self.error: AmqpError | None = None
        self.pending = 0
        self.last_activity = self._loop.time()
        session.add(self)

    @property
    def idle_seconds(self) -> float:
        """Seconds since the peer last used this link."""
        return self._loop.time() - self.last_activity

    @property
    def is_attached(self) -> bool:
        return self.error is None and self.attached.done()

    def check(self) -> None:
        """Raise the link's error if it has ended."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        self._wire.check()

    # ---- attaching ----

    async def attach(self, seconds: float) -> None:
        """Attach. Raises `LinkDetachedError` (the peer's reason), `AnswerTimeoutError` or `ConnectionLostError`."""
        self.check()
        self._attach_sent = True
        self._wire.write(frame(self._session.channel, self.attach_frame()))
        try:
            async with answered_within(seconds, f"'{self.path}' was not attached", self._session):
                await self.attached
        except AnswerTimeoutError as timeout:
            self.give_up(timeout)
            raise
        except asyncio.CancelledError:
            self.give_up(LinkDetachedError("attaching the link was cancelled"))
            raise

    @abstractmethod
    def attach_frame(self) -> amqp.Attach:
        """The attach frame to send."""

    def on_attach(self, attach: amqp.Attach) -> None:
        """Handle the peer's attach. Without a terminus it is a refusal: a detach with the reason follows."""
        self.last_activity = self._wire.last_read
        terminus = attach.source if self.role is amqp.ROLE_RECEIVER else attach.target
        if terminus is not None and not self.attached.done():
            self.confirmed(attach)
            self.attached.set_result(None)

    @abstractmethod
    def confirmed(self, attach: amqp.Attach) -> None:
        """Take over the peer's terms for the link."""

    # ---- called by the session ----

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        """Handle one frame of a delivery."""
        self.give_up(LinkDetachedError("the peer sent a transfer to a sender", "amqp:not-allowed"))

    @abstractmethod
    def on_flow(self, flow: amqp.Flow) -> None:
        """Handle the peer's flow."""

    @abstractmethod
    def write_flow(self) -> None:
        """Send the link's credit to the peer."""

    @abstractmethod
    def wake(self) -> None:
        """Look again whether something can be sent; the link may also have ended."""

    def answered(self) -> None:
        """Count an answer to something pending."""
        self.pending -= 1
        self.last_activity = self._wire.last_read

    def on_detach(self, detach: amqp.Detach) -> None:
        self._detached.set_result(None)
        self._write_detach(None)
        self._session.remove(self)
        error = detach.error or amqp.Error("", f"the peer detached the link to '{self.path}'")
        self.ended(LinkDetachedError(error.description or "", error.condition, error.info))

    # ---- ending ----

    def give_up(self, error: AmqpError) -> None:
        """Detach the link with an error. The handle is free again once the peer confirms."""
        reason = amqp.Error(error.condition, error.description, {}) if error.condition else None
        if self._attach_sent:
            self._write_detach(reason)
        else:
            self._session.remove(self)  # the peer does not know it
        self.ended(error)

    def _write_detach(self, reason: amqp.Error | None) -> None:
        if not self._detach_sent and self._wire.error is None and not self._session.ended:
            self._detach_sent = True
            self._session.write_collected()
            self._wire.write(frame(self._session.channel, amqp.Detach(self.handle, True, reason)))

    def ended(self, error: AmqpError) -> None:
        """End the link: fail everything that waits on it."""
        if self.error is not None:
            return
        self.error = error
        if not self.attached.done():
            self.attached.set_exception(error)
            self.attached.exception()  # mark it as retrieved: the attaching task may be gone
        pending = self._session.take_pending(self)
        self.pending = 0
        for entry in pending:
            self._guarded(entry.on_outcome, error)
        self.wake()
        if self._on_end is not None:
            self._guarded(self._on_end, error)

    def _guarded(self, callback: Callable[[AmqpError], None], error: AmqpError) -> None:
        """Call back. An exception must not keep the other callbacks from running."""
        try:
            callback(error)
        except Exception as raised:
            self._loop.call_exception_handler(
                {"message": "a callback raised while its link ended", "exception": raised}
            )

    async def close(self, seconds: float = 5.0) -> None:
        """Detach, and wait at most `seconds` for the peer. Everything pending gets `LinkDetachedError`."""
        if self.error is None:
            self.give_up(LinkDetachedError(f"the link to '{self.path}' was closed here"))
        if self._wire.error is None:
            waiting = [self._detached, self._wire.lost]
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
