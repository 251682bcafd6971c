"""Implements links: clients' senders to entities and entities' deliveries to receivers."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.types import DecodeError
from twinbus.servicebus.access_rights import Right

from ..entities.entity_directory import Node
from ..entities.locks import Lock, tag_of
from ..entities.message import Message, arrivals
from ..faults.fault_plan import Fault, FaultKind, FaultPoint
from ..faults.gates import Gate
from .error_conditions import (
    DECODE_ERROR,
    DETACH_FORCED,
    MESSAGE_TOO_LARGE,
    QUOTA_EXCEEDED,
    TRANSFER_LIMIT,
    UNAUTHORIZED,
    BrokerError,
    session_lock_lost,
)
from .outcomes import apply_outcome, echo

if TYPE_CHECKING:
    from .channel import Channel

MASK = 0xFFFFFFFF
MAX_UNFINISHED = 32 << 20
# Messages that receive-and-delete has taken from the store: they exist in memory only.
MAX_RESERVED = 256


class Link:
    """Base of all links."""

    def __init__(self, channel: Channel, attach: amqp.Attach) -> None:
        self.channel = channel
        self.connection = channel.connection
        self.handle = attach.handle
        self.name = attach.name
        self.attached = True
        #: The path of the link's entity, if any.
        self.path: str | None = None

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        """Handle a frame of a delivery."""

    def on_flow(self, flow: amqp.Flow) -> None:
        """Handle a flow of the peer for this link."""

    def wake(self) -> None:
        """Send again, after the connection or session was full."""

    def tick(self, now: float) -> None:
        """Check idle time and rights, once a second."""

    def drop(self) -> None:
        """Release the link after a detach."""
        self.attached = False


class Budget:
    """Bounds the memory of the incomplete deliveries of one connection."""

    FRAME_COST = 64  # per frame, on top of the payload, which may be empty

    def __init__(self) -> None:
        self.used = 0

    def take(self, size: int, limit: int) -> None:
        self.used += size
        if self.used > max(MAX_UNFINISHED, 2 * limit):
            raise BrokerError(QUOTA_EXCEEDED, f"Unfinished deliveries take more than {MAX_UNFINISHED} bytes.")


class Assembly:
    """Assembles the frames of one delivery, keeping at most `limit` bytes."""

    def __init__(self, limit: int, budget: Budget) -> None:
        self.limit = limit
        self._budget = budget
        self._taken = 0
        #: First frame of an incomplete delivery.
        self.first: amqp.Transfer | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, transfer: amqp.Transfer, payload: bytes) -> tuple[amqp.Transfer, bytes | None] | None:
        """The first frame and the payload once the delivery is complete. The payload is None if it is too large."""
        if self.first is None:
            self.first = transfer
        self._size += len(payload)
        if self._size <= self.limit:
            self._parts.append(payload)
            self._taken += len(payload) + Budget.FRAME_COST
            self._budget.take(len(payload) + Budget.FRAME_COST, self.limit)
        else:
            self._discard_parts()
        if transfer.aborted:
            self.reset()
            return None
        if transfer.more:
            return None
        first, complete = self.first, b"".join(self._parts) if self._size <= self.limit else None
        self.reset()
        return first, complete

    def _discard_parts(self) -> None:
        self._parts = []
        self._budget.used -= self._taken
        self._taken = 0

    def reset(self) -> None:
        """Discard the delivery."""
        self._discard_parts()
        self.first, self._size = None, 0


class CreditedLink(Link):
    """A link on which the client sends, with its credit."""

    def __init__(self, channel: Channel, attach: amqp.Attach, limit: int, credit: int) -> None:
        super().__init__(channel, attach)
        self._assembly = Assembly(limit, channel.connection.budget)
        self._full_credit = credit
        self._low_credit = credit // 2
        self._credit = 0
        self._delivery_count = attach.initial_delivery_count or 0
        self.last_transfer = channel.connection.last_read

    def grant(self) -> None:
        """Set the client's credit to its full amount."""
        self._credit = self._full_credit
        self.channel.link_flow(self.handle, delivery_count=self._delivery_count, link_credit=self._credit, available=0)

    def on_flow(self, flow: amqp.Flow) -> None:
        if flow.echo:
            self.channel.renew_later(self)

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        assembly = self._assembly
        complete: bytes | None = payload
        if transfer.more or transfer.aborted or assembly.first is not None or len(payload) > assembly.limit:
            assembled = assembly.add(transfer, payload)
            if assembled is None:
                return
            transfer, complete = assembled
        self.last_transfer = self.connection.last_read
        self._delivery_count = (self._delivery_count + 1) & MASK
        self._credit -= 1
        if self._credit < 0 and self.connection.profile.enforces:
            self.channel.detach(self, BrokerError(TRANSFER_LIMIT, "A message was sent without link credit."))
            return
        if self._credit <= self._low_credit:
            self.channel.renew_later(self)
        self.on_delivery(transfer, complete)

    def on_delivery(self, transfer: amqp.Transfer, payload: bytes | None) -> None:
        """Handle a complete delivery; the payload is None if it was too large."""

    def drop(self) -> None:
        super().drop()
        self._assembly.reset()


class IncomingLink(CreditedLink):
    """A client's sender to a queue or topic."""

    # A batch may hold more than one message of the largest size; the service takes 1 MB at most.
    BATCH_BYTES = 1 << 20

    def __init__(self, channel: Channel, attach: amqp.Attach, node: Node) -> None:
        limit = max(self.BATCH_BYTES, node.queue.limits.max_message_bytes + 65536)
        super().__init__(channel, attach, limit, channel.connection.profile.sender_credit)
        self.node = node
        self.path = node.path
        self._namespace = self.connection.namespace
        self._gate = Gate(self.connection, FaultPoint.SEND)

    def on_delivery(self, transfer: amqp.Transfer, payload: bytes | None) -> None:
        if self._namespace.faults.active or not self._gate.is_clear:
            size = len(payload) if payload is not None else 0
            self._gate.perform(self.node.path, lambda fault: self._receive(transfer, payload, fault), size)
        else:
            self._receive(transfer, payload, None)

    def _receive(self, transfer: amqp.Transfer, payload: bytes | None, fault: Fault | None) -> None:
        delivery_id = transfer.delivery_id or 0
        settled = bool(transfer.settled)
        throttle = self._namespace.throttle
        if fault is not None and fault.kind is FaultKind.DETACH:
            self.channel.detach(self, fault.error())
            return
        try:
            if fault is not None and fault.refuses:
                raise fault.error()
            if payload is None:
                raise BrokerError(
                    MESSAGE_TOO_LARGE,
                    f"The delivery is larger than {self._assembly.limit} bytes, the limit of the link.",
                )
            batch = arrivals(payload, transfer.message_format)
            if not throttle.admits(len(batch)):
                raise throttle.busy()
            self.node.require_active(Right.SEND)
            self.node.queue.check(batch)
            if transfer.state is not None:
                outcome = self.connection.transactions.enlist_send(self.node.queue, transfer.state, batch)
                self._answer_enlisted(delivery_id, settled, fault, outcome)
                return
        except DecodeError as error:
            if not settled:
                self.channel.reject(delivery_id, BrokerError(DECODE_ERROR, str(error)))
            return
        except BrokerError as error:
            if not settled:
                self.channel.reject(delivery_id, error)
            return

        self.node.queue.take(batch, partial(self._answer, delivery_id, settled, fault))

    def _answer_enlisted(
        self, delivery_id: int, settled: bool, fault: Fault | None, outcome: amqp.TransactionalState
    ) -> None:
        """Answer a delivery that is part of a transaction; it is stored when that commits."""
        if not settled and not (fault is not None and fault.hides_answer):
            self.channel.answer(delivery_id, outcome)
        if fault is not None and fault.cuts_after:
            self.connection.cut()

    def _answer(self, delivery_id: int, settled: bool, fault: Fault | None, error: BrokerError | None) -> None:
        """Answer a delivery once it is stored, or storing it failed."""
        if settled or not self.attached or (fault is not None and fault.hides_answer):
            pass
        elif error is None:
            self.channel.accept(delivery_id)
        else:
            self.channel.reject(delivery_id, error)
        if fault is not None and fault.cuts_after:
            self.connection.cut()

    def tick(self, now: float) -> None:
        profile = self.connection.profile
        if profile.link_idle is not None and now - self.last_transfer > profile.link_idle:
            self.channel.detach(self, idle_too_long(self, "publisher", "AmqpMessagePublisher", profile.link_idle))
        elif not self.connection.rights.allows(self.node.path, Right.SEND):
            self.channel.detach(self, token_expired(self.node.path))


class OutgoingLink(Link):
    """A client's receiver: takes messages from a queue, up to its credit."""

    def __init__(self, channel: Channel, attach: amqp.Attach, node: Node) -> None:
        super().__init__(channel, attach)
        self.node = node
        self.path = node.path
        self.queue = node.queue
        self._gate = Gate(self.connection, FaultPoint.RECEIVE)
        self._gate.on_clear = self.wake
        self._settle_gate = Gate(self.connection, FaultPoint.SETTLE)
        self.deletes = attach.snd_settle_mode == 1
        self.session_id: str | None = None
        self._credit = 0
        self._reserved = 0
        self._delivery_count = 0
        self._count_at_flow = 0
        self._draining = False
        self._last_active = channel.connection.last_read

    # ---- called by the queue ----

    def can_take(self) -> bool:
        return (
            self.attached
            and self._credit > 0
            and self._reserved < MAX_RESERVED
            and self.channel.can_send()
            and (self.deletes or self.channel.has_room())
            and not self._gate.is_full
        )

    def reserve(self) -> None:
        self._credit -= 1
        self._reserved += 1

    def deliver(self, message: Message, lock: Lock | None) -> None:
        if self.connection.namespace.faults.active or not self._gate.is_clear:
            self._gate.perform(self.node.path, lambda fault: self._deliver(message, lock, fault), message.size)
        else:
            self._deliver(message, lock, None)

    def _deliver(self, message: Message, lock: Lock | None, fault: Fault | None) -> None:
        self._reserved -= 1
        if not self.attached:
            return
        self._delivery_count = (self._delivery_count + 1) & MASK
        if fault is not None:
            # The message was not sent: release it for the next receiver. This comes before the detach, which would end
            # a session's locks.
            if lock is not None:
                self.queue.release(lock.token, lambda error: None)
            self.channel.detach(self, fault.error())
            return
        if lock is None:
            self.channel.transfer(self, b"", None, message.encoded())
            if not self._reserved:
                self.wake()
        else:
            payload = message.encoded(lock.token, lock.locked_until)
            self.channel.transfer(self, tag_of(lock.token), lock.token, payload)
        if self._draining:
            self._finish_drain()

    def unreserve(self) -> None:
        self._reserved -= 1
        self._credit += 1
        if self._draining:
            self._finish_drain()

    def session_lost(self) -> None:
        self.channel.detach(self, session_lock_lost(self.session_id or ""))

    # ---- frames of the client ----

    def on_flow(self, flow: amqp.Flow) -> None:
        self._last_active = self.connection.last_read
        if flow.link_credit is not None:
            credit = max(0, credit_left(flow, self._delivery_count) - self._reserved)
            # The same credit again without a delivery: a receive has timed out.
            is_renewed = 0 < credit == self._credit and not (flow.drain or flow.echo or self._reserved)
            self.queue.activity.polls += is_renewed and self._count_at_flow == self._delivery_count
            self._credit, self._count_at_flow = credit, self._delivery_count
        if self._credit:
            self.queue.wake(self)
        # After the wake: available messages use the credit first.
        self._draining = bool(flow.drain)
        if self._draining:
            self._finish_drain()
        elif flow.echo:
            self._send_credit()

    def _finish_drain(self) -> None:
        """Use up the rest of the credit and report it with a drained flow."""
        if self._reserved:
            return
        self._draining = False
        self._delivery_count = (self._delivery_count + self._credit) & MASK
        self._credit = 0
        self._send_credit(drain=True)

    def _send_credit(self, drain: bool = False) -> None:
        self.channel.link_flow(
            self.handle,
            delivery_count=self._delivery_count,
            link_credit=self._credit,
            available=min(self.queue.counters.active, MASK),
            drain=drain or None,
        )

    def wake(self) -> None:
        if self._credit:
            self.queue.wake(self)

    def settle(self, delivery_id: int, token: bytes, state: Any, settled: bool) -> None:
        """Handle a disposition of the client for one delivery."""
        connection = self.connection
        self._last_active = connection.last_read
        if connection.namespace.faults.active or not self._settle_gate.is_clear:
            self._settle_gate.perform(
                self.node.path, lambda fault: self._settle(delivery_id, token, state, settled, fault)
            )
        elif type(state) is amqp.Accepted:
            done = partial(self._settled, delivery_id, state, settled, None)
            try:
                self.queue.complete(token, done)
            except BrokerError as error:
                done(error)
        else:
            self._settle(delivery_id, token, state, settled, None)

    def _settle(self, delivery_id: int, token: bytes, state: Any, settled: bool, fault: Fault | None) -> None:
        if fault is not None and fault.kind is FaultKind.DETACH:
            self.channel.detach(self, fault.error())
            return

        done = partial(self._settled, delivery_id, state, settled, fault)
        try:
            if fault is not None and fault.refuses:
                raise fault.error()
            if type(state) is amqp.TransactionalState:
                self._enlist(delivery_id, token, state, settled)
                done(None)
            else:
                apply_outcome(self.queue, token, state, done)
        except BrokerError as error:
            done(error)

    def _enlist(self, delivery_id: int, token: bytes, state: amqp.TransactionalState, settled: bool) -> None:
        """Add a settlement to a transaction; raises `BrokerError`."""
        try:
            self.connection.transactions.enlist_settlement(self, delivery_id, token, state)
        except BrokerError:
            # As after a rollback the message stays locked, and the client may settle it again.
            if self.attached and not settled and self.queue.holds(token):
                self.channel.unsettled[delivery_id] = self, token
            raise

    def _settled(
        self, delivery_id: int, state: Any, settled: bool, fault: Fault | None, error: BrokerError | None
    ) -> None:
        """Confirm a settlement once it is stored, or storing it failed."""
        if settled or not self.attached or (fault is not None and fault.hides_answer):
            pass
        elif error is not None:
            self.channel.confirm(delivery_id, amqp.Rejected(error.performative()))
        else:
            self.channel.confirm(delivery_id, None if type(state) is amqp.Accepted else echo(state))
        if fault is not None and fault.cuts_after:
            self.connection.cut()

    def tick(self, now: float) -> None:
        idle = self.connection.profile.link_idle
        if self._credit or self._reserved:
            self._last_active = now  # a receiver that waits for messages is not idle
        if idle is not None and now - self._last_active > idle:
            self.channel.detach(self, idle_too_long(self, "consumer", "AmqpMessageConsumer", idle))
        elif not self.connection.rights.allows(self.node.path, Right.LISTEN):
            self.channel.detach(self, token_expired(self.node.path))

    def drop(self) -> None:
        super().drop()
        self.queue.detach(self)


def credit_left(flow: amqp.Flow, sent: int) -> int:
    """The credit that a flow leaves after `sent` deliveries. AMQP sequence numbers wrap at 2**32."""
    credit = ((flow.delivery_count or 0) + (flow.link_credit or 0) - sent) & MASK
    # A negative credit means that more deliveries are in flight than the flow allows.
    return credit if credit <= MASK >> 1 else 0


def idle_too_long(link: Link, role: str, kind: str, seconds: float) -> BrokerError:
    """The service's error for an idle link."""
    return BrokerError(
        DETACH_FORCED,
        f"The link '{link.name}' is force detached. Code: {role}(link{link.handle}). Details:"
        f" {kind}.IdleTimerExpired: Idle timeout: {timedelta(seconds=seconds)!s:0>8}.",
    )


def token_expired(path: str) -> BrokerError:
    return BrokerError(UNAUTHORIZED, f"ExpiredToken: The token for '{path}' is expired or gives no right to it.")
