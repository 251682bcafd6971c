"""Sends messages under credit, many at a time, and reports the outcome of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from twinbus.amqp.codec import performatives as amqp

from .deadlines import within
from .errors import MessageTooLargeError, NoCreditError
from .links import Link, OnEnd, outcome_future
from .session import MASK, OnOutcome, Session

MAX_WAITERS = 10_000


class Sender(Link):
    """Our end of a link to a queue or topic."""

    role = amqp.ROLE_SENDER

    def __init__(self, session: Session, name: str, path: str, on_end: OnEnd | None = None) -> None:
        super().__init__(session, name, path, on_end)
        self._credit = 0
        self._delivery_count = 0
        self._waiters: set[asyncio.Future[None]] = set()
        #: Called whenever something can be sent again.
        self.on_credit: Callable[[], None] | None = None
        #: The largest message that the peer accepts on this link; 0 if it does not say.
        self.max_message_size = 0

    def attach_frame(self) -> amqp.Attach:
        return amqp.Attach(
            name=self.name,
            handle=self.handle,
            role=self.role,
            snd_settle_mode=0,
            rcv_settle_mode=0,
            source=amqp.Source(self.name),
            target=amqp.Target(self.path),
            initial_delivery_count=0,
        )

    def confirmed(self, attach: amqp.Attach) -> None:
        self.max_message_size = attach.max_message_size or 0

    # ---- sending ----

    @property
    def available(self) -> int:
        """How many messages can be sent now, given credit, session window and socket."""
        if self.error is not None:
            return 0
        return max(0, min(self._credit, self._session.available))

    async def wait_for_credit(self, seconds: float) -> None:
        """Wait until a message can be sent.

        Raises `AnswerTimeoutError`, or the error that ended the link.
        """
        async with within(seconds, f"'{self.path}' gave no credit"):
            while self.available <= 0:
                self.check()
                if len(self._waiters) >= MAX_WAITERS:
                    raise NoCreditError(f"{MAX_WAITERS} callers wait for credit on '{self.path}' already, the maximum")
                waiter = self._loop.create_future()
                self._waiters.add(waiter)
                try:
                    await waiter
                finally:
                    self._waiters.discard(waiter)

    def send(self, payload: bytes, on_outcome: OnOutcome) -> None:
        """Send an encoded message now. `on_outcome` is called once, with None if the peer accepted it.

        Raises `NoCreditError` if `available` is 0, `MessageTooLargeError`, or the error that ended the link. Then
        `on_outcome` is not called.
        """
        if self.available <= 0:
            self.check()
            raise NoCreditError(f"'{self.path}' has no credit for a message")
        if self.max_message_size and len(payload) > self.max_message_size:
            raise MessageTooLargeError(len(payload), self.max_message_size, self.path)
        self._credit -= 1
        self._delivery_count = (self._delivery_count + 1) & MASK
        self.pending += 1
        self._session.transfer(self, payload, on_outcome)

    async def deliver(self, payload: bytes, seconds: float) -> None:
        """Send one message and wait until it is accepted. Raises the error if it was not."""
        async with within(seconds, f"'{self.path}' gave no outcome"):
            await self.wait_for_credit(seconds)
            accepted, on_outcome = outcome_future()
            self.send(payload, on_outcome)
            await accepted

    # ---- called by the session ----

    def on_flow(self, flow: amqp.Flow) -> None:
        self.last_activity = self._wire.last_read
        if flow.link_credit is not None:
            # A credit that looks negative was written before the peer saw our latest messages.
            seen_count = flow.delivery_count if flow.delivery_count is not None else 0
            credit = (seen_count + flow.link_credit - self._delivery_count) & MASK
            self._credit = credit if credit <= MASK >> 1 else 0
        if flow.drain:
            # Nothing waits for credit here, so all of it is returned.
            self._delivery_count = (self._delivery_count + self._credit) & MASK
            self._credit = 0
        if flow.drain or flow.echo:
            self.write_flow(drain=flow.drain)

    def write_flow(self, drain: bool | None = None) -> None:
        self._session.link_flow(
            self, delivery_count=self._delivery_count, link_credit=self._credit, available=0, drain=drain or None
        )

    def wake(self) -> None:
        if self._waiters and (self.error is not None or self.available > 0):
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self.on_credit is not None and self.available > 0:
            self.on_credit()
