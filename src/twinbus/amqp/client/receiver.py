"""Receives messages in peek-lock mode under credit, and settles them with a confirmed outcome."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.types import Symbol

from .deadlines import within
from .errors import AnswerTimeoutError, LinkDetachedError
from .links import Link, OnEnd, outcome_future
from .session import DEAD_LETTER, MASK, OnOutcome, Session

MAX_CREDIT = 1_000_000
MAX_MESSAGE_SIZE = 128 << 20  # the service takes 100 MB at most

ACCEPT = amqp.Accepted()
RELEASE = amqp.Released()
ABANDON = amqp.Modified(delivery_failed=True, undeliverable_here=False)
DEFER = amqp.Modified(delivery_failed=True, undeliverable_here=True)


def dead_letter(reason: str, description: str) -> amqp.Rejected:
    """The outcome that moves a message to the dead-letter queue."""
    info = {Symbol("DeadLetterReason"): reason, Symbol("DeadLetterErrorDescription"): description}
    return amqp.Rejected(amqp.Error(DEAD_LETTER, description, info))


class Delivery(NamedTuple):
    """A received message: its encoded sections, and the delivery id and tag to settle it with."""

    id: int
    tag: bytes
    payload: bytes
    settled: bool

    @property
    def lock_token(self) -> uuid.UUID:
        """The lock token that the management node expects."""
        return uuid.UUID(bytes_le=self.tag)


OnDelivery = Callable[[Delivery], None]


class Receiver(Link):
    """Our end of a link from a queue or subscription. `credit` is how many messages may still arrive."""

    role = amqp.ROLE_RECEIVER

    def __init__(
        self,
        session: Session,
        name: str,
        path: str,
        on_delivery: OnDelivery,
        on_end: OnEnd | None = None,
        *,
        max_message_size: int = MAX_MESSAGE_SIZE,
        settle_modes: tuple[int, int] = (0, 1),
        target: str | None = None,
    ) -> None:
        super().__init__(session, name, path, on_end)
        self._on_delivery = on_delivery
        self._max_message_size = max_message_size
        self._settle_modes = settle_modes
        self._target = target or name
        self._delivery_count = 0
        self._first: amqp.Transfer | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._drained: asyncio.Future[None] | None = None
        self.credit = 0

    def attach_frame(self) -> amqp.Attach:
        return amqp.Attach(
            name=self.name,
            handle=self.handle,
            role=self.role,
            snd_settle_mode=self._settle_modes[0],
            rcv_settle_mode=self._settle_modes[1],
            source=amqp.Source(self.path),
            target=amqp.Target(self._target),
        )

    def confirmed(self, attach: amqp.Attach) -> None:
        self._delivery_count = attach.initial_delivery_count or 0

    # ---- credit ----

    def add_credit(self, messages: int) -> None:
        """Grant credit for more messages. All grants of one turn of the event loop leave as one flow.

        Does nothing while `stop` runs. Raises `ValueError` for a number out of bounds, or the error that ended the
        link.
        """
        self.check()
        if self._drained is not None:
            return
        if messages < 1 or self.credit + messages > MAX_CREDIT:
            raise ValueError(f"messages must be 1 or more, with a total credit of at most {MAX_CREDIT}, got {messages}")
        self.credit += messages
        self._session.credit_changed(self)

    def renew_credit(self) -> None:
        """Send the unused credit to the peer again. Raises the error that ended the link."""
        self.check()
        self.write_flow()

    async def stop(self, seconds: float) -> None:
        """Drain the credit: no message arrives after this returns.

        Messages already in flight are delivered first. Raises `AnswerTimeoutError`, or the error that ended the link.
        """
        self.check()
        if self.credit == 0:
            return
        if self._drained is None:
            self._drained = self._loop.create_future()
            self._session.credit_changed(self)
        try:
            async with within(seconds, f"'{self.path}' did not return the credit"):
                await asyncio.wait([self._drained])
        except AnswerTimeoutError:
            self._drained = None
            raise
        self.check()

    def write_flow(self, echo: bool | None = None) -> None:
        self._session.link_flow(
            self,
            delivery_count=self._delivery_count,
            link_credit=self.credit,
            drain=True if self._drained is not None else None,
            echo=echo,
        )

    def probe(self) -> None:
        """Ask the peer for a flow on this link. Its answer resets `idle_seconds`."""
        self.check()
        self.write_flow(echo=True)

    def on_flow(self, flow: amqp.Flow) -> None:
        self.last_activity = self._wire.last_read
        # A peer that returns credit counts it as used. A delivery that is not complete yet is counted later.
        if flow.delivery_count is not None and self._first is None:
            skipped = (flow.delivery_count - self._delivery_count) & MASK
            if skipped <= self.credit:
                self._delivery_count = flow.delivery_count
                self.credit -= skipped
            self._end_drain()
        if flow.echo:
            self.write_flow()

    def _end_drain(self) -> None:
        if self._drained is not None and (self.credit == 0 or self.error is not None):
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    # ---- deliveries ----

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        self.last_activity = self._wire.last_read
        if transfer.more or self._first is not None:
            whole = self._assemble(transfer, payload)
            if whole is None:
                return
            transfer, payload = whole
        if self.error is not None:
            return  # sent while we detached; its lock expires
        if self.credit <= 0:
            self.give_up(
                LinkDetachedError("the peer sent a message without credit", "amqp:link:transfer-limit-exceeded")
            )
            return
        if transfer.delivery_id is None:
            self.give_up(LinkDetachedError("the peer sent a message without a delivery id", "amqp:invalid-field"))
            return
        self.credit -= 1
        self._delivery_count = (self._delivery_count + 1) & MASK
        delivery = (transfer.delivery_id, transfer.delivery_tag or b"", payload, bool(transfer.settled))
        self._on_delivery(tuple.__new__(Delivery, delivery))
        if self._drained is not None:
            self._end_drain()

    def _assemble(self, transfer: amqp.Transfer, payload: bytes) -> tuple[amqp.Transfer, bytes] | None:
        """Join the frames of a delivery; None until the last one has arrived."""
        first = self._first = self._first or transfer
        self._size += len(payload)
        if self._size > self._max_message_size:
            self._forget_parts()
            self.give_up(
                LinkDetachedError(
                    f"the peer sent a message of more than {self._max_message_size} bytes",
                    "amqp:link:message-size-exceeded",
                )
            )
            return None
        self._parts.append(payload)
        if transfer.aborted:
            self._forget_parts()
            return None
        if transfer.more:
            return None
        whole = b"".join(self._parts)
        self._forget_parts()
        return first, whole

    def _forget_parts(self) -> None:
        self._first, self._parts, self._size = None, [], 0

    # ---- settling ----

    def settle(self, delivery: Delivery, outcome: Any, on_done: OnOutcome) -> None:
        """Settle a delivery with `ACCEPT`, `RELEASE`, `ABANDON`, `DEFER` or `dead_letter(…)`.

        `on_done` is called once, with None when the peer has confirmed. Raises the error that ended the link; `on_done`
        is not called then.
        """
        self.check()
        self.pending += 1
        if outcome is ACCEPT:
            self._session.accept(self, delivery.id, on_done)
        else:
            self._session.settle(self, delivery.id, outcome, on_done)

    def acknowledge(self, delivery: Delivery) -> None:
        """Settle as accepted without waiting for the peer (receiver settle mode 0)."""
        self._session.acknowledge(delivery.id)

    async def settled(self, delivery: Delivery, outcome: Any, seconds: float) -> None:
        """Settle, and wait until the peer has confirmed. Raises the error if it did not."""
        async with within(seconds, f"'{self.path}' did not confirm a settlement"):
            done, on_done = outcome_future()
            self.settle(delivery, outcome, on_done)
            await done

    def wake(self) -> None:
        if self.error is not None:
            self._end_drain()
