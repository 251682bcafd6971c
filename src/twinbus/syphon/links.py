"""What senders and receivers have in common: attaching, detaching, and a sign of life."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from twinbus.amqp import performatives as amqp
from twinbus.amqp.frames import frame

from .deadlines import answered_within
from .errors import AmqpError, LinkDetached, TimedOut

if TYPE_CHECKING:
    from .session import OnOutcome, Session

logger = logging.getLogger("twinbus.syphon.links")

OnEnd = Callable[[AmqpError], None]


def outcome_future() -> tuple[asyncio.Future[None], OnOutcome]:
    """A future and the callback that completes it, for who wants to wait for one outcome."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(error: AmqpError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return future, tell


class Link(ABC):
    """Our end of one link.

    `error` says why it ended, and is None as long as it is attached. `pending` counts what waits for the peer's word.
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
        """How long the peer has said nothing on this link."""
        return self._loop.time() - self.last_activity

    @property
    def is_attached(self) -> bool:
        return self.error is None and self.attached.done()

    def check(self) -> None:
        """Raise the reason if the link has ended."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        self._wire.check()

    # ---- attaching ----

    async def attach(self, seconds: float) -> None:
        """Attach, or raise `LinkDetached` with the peer's reason, `TimedOut` or `ConnectionLost`."""
        self.check()
        self._attach_sent = True
        self._wire.write(frame(self._session.channel, self.attach_frame()))
        try:
            async with answered_within(seconds, f"'{self.path}' was not attached", self._session):
                await self.attached
        except TimedOut as late:
            self.give_up(late)
            raise
        except asyncio.CancelledError:
            self.give_up(LinkDetached("the link was given up before it was attached"))
            raise

    @abstractmethod
    def attach_frame(self) -> amqp.Attach:
        """What we ask the peer for."""

    def on_attach(self, attach: amqp.Attach) -> None:
        """The peer attached. Without a terminus on its side it only does so to say with a detach why not."""
        self.last_activity = self._wire.last_read
        terminus = attach.source if self.role is amqp.ROLE_RECEIVER else attach.target
        if terminus is not None and not self.attached.done():
            self.confirmed(attach)
            self.attached.set_result(None)

    @abstractmethod
    def confirmed(self, attach: amqp.Attach) -> None:
        """The link is there; these are the peer's terms."""

    # ---- what the session says ----

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        """A frame of a delivery arrived."""
        self.give_up(LinkDetached("the peer sent a transfer to a sender", "amqp:not-allowed"))

    @abstractmethod
    def on_flow(self, flow: amqp.Flow) -> None:
        """The peer's credit or its wishes changed."""

    @abstractmethod
    def write_flow(self) -> None:
        """Tell the peer what the credit is."""

    @abstractmethod
    def wake(self) -> None:
        """There may be room to send."""

    def answered(self) -> None:
        """The peer gave its word on something pending."""
        self.pending -= 1
        self.last_activity = self._wire.last_read

    def on_detach(self, detach: amqp.Detach) -> None:
        self._detached.set_result(None)
        self._write_detach(None)
        self._session.remove(self)
        error = detach.error or amqp.Error("", f"the peer detached the link to '{self.path}'")
        self.ended(LinkDetached(error.description or "", error.condition, error.info))

    # ---- ending ----

    def give_up(self, error: AmqpError) -> None:
        """End the link from our side. The handle is free again when the peer has confirmed."""
        reason = amqp.Error(error.condition, error.description, {}) if error.condition else None
        if self._attach_sent:
            self._write_detach(reason)
        else:
            self._session.remove(self)  # the peer has never heard of it
        self.ended(error)

    def _write_detach(self, reason: amqp.Error | None) -> None:
        if not self._detach_sent and self._wire.error is None and not self._session.ended:
            self._detach_sent = True
            self._session.write_collected()
            self._wire.write(frame(self._session.channel, amqp.Detach(self.handle, True, reason)))

    def ended(self, error: AmqpError) -> None:
        """The link is over: tell everybody who waits for something."""
        if self.error is not None:
            return
        self.error = error
        if not self.attached.done():
            self.attached.set_exception(error)
            self.attached.exception()  # whoever attaches may have gone away
        taken = self._session.take_pending(self)
        self.pending = 0
        for entry in taken:
            self._guarded(entry.tell, error)
        self.wake()
        if self._on_end is not None:
            self._guarded(self._on_end, error)

    def _guarded(self, tell: Callable[[AmqpError], None], error: AmqpError) -> None:
        """One callback that raises must not keep the others from learning of the end."""
        try:
            tell(error)
        except Exception as raised:
            self._loop.call_exception_handler({"message": "a callback raised as its link ended", "exception": raised})

    async def close(self, seconds: float = 5.0) -> None:
        """Detach and wait until the peer has confirmed, at most so long. What is pending gets `LinkDetached`."""
        if self.error is None:
            self.give_up(LinkDetached(f"the link to '{self.path}' was closed here"))
        if self._wire.error is None:
            waiting = [self._detached, self._wire.lost]
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
