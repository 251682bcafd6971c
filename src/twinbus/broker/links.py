"""Links: a sender's way into an entity, and an entity's way to a receiver."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from twinbus.amqp import performatives as amqp
from twinbus.amqp.types import DecodeError

from .entities import Node
from .errors import (
    DECODE_ERROR,
    DETACH_FORCED,
    MESSAGE_TOO_LARGE,
    QUOTA_EXCEEDED,
    TRANSFER_LIMIT,
    UNAUTHORIZED,
    BrokerError,
    session_lock_lost,
)
from .faults import Fault, Kind, Operation
from .gates import Gate
from .locks import Lock, tag_of
from .message import Message, arrivals
from .outcomes import apply_outcome, echo
from .security import Right

if TYPE_CHECKING:
    from .channel import Channel

MASK = 0xFFFFFFFF
MAX_UNFINISHED = 32 << 20
# Messages on their way out of the store by receive and delete: they exist in memory only.
MAX_RESERVED = 256


class Link:
    """What every link has."""

    def __init__(self, channel: Channel, attach: amqp.Attach) -> None:
        self.channel = channel
        self.connection = channel.connection
        self.handle = attach.handle
        self.name = attach.name
        self.attached = True
        #: The entity that the link is about, if any.
        self.path: str | None = None

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        """A frame of a delivery arrived."""

    def on_flow(self, flow: amqp.Flow) -> None:
        """The peer's credit or its wishes changed."""

    def wake(self) -> None:
        """There is room to send again."""

    def tick(self, now: float) -> None:
        """Once a second."""

    def drop(self) -> None:
        """The link is gone."""
        self.attached = False


class Budget:
    """What all unfinished deliveries of one connection may take in memory."""

    FRAME_COST = 64  # what a frame costs besides its payload, which may be empty

    def __init__(self) -> None:
        self.used = 0

    def take(self, size: int, limit: int) -> None:
        self.used += size
        if self.used > max(MAX_UNFINISHED, 2 * limit):
            raise BrokerError(QUOTA_EXCEEDED, f"Unfinished deliveries take more than {MAX_UNFINISHED} bytes.")


class Assembly:
    """Puts the frames of one delivery together, never more than `limit` bytes of it."""

    def __init__(self, limit: int, budget: Budget) -> None:
        self.limit = limit
        self._budget = budget
        self._taken = 0
        #: Of a delivery that is not complete.
        self.first: amqp.Transfer | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, transfer: amqp.Transfer, payload: bytes) -> tuple[amqp.Transfer, bytes | None] | None:
        """The first frame and the whole payload when the delivery is complete; None as payload if it is too large."""
        if self.first is None:
            self.first = transfer
        self._size += len(payload)
        if self._size <= self.limit:
            self._parts.append(payload)
            self._taken += len(payload) + Budget.FRAME_COST
            self._budget.take(len(payload) + Budget.FRAME_COST, self.limit)
        else:
            self._forget_parts()
        if transfer.aborted:
            self.reset()
            return None
        if transfer.more:
            return None
        first, whole = self.first, b"".join(self._parts) if self._size <= self.limit else None
        self.reset()
        return first, whole

    def _forget_parts(self) -> None:
        self._parts = []
        self._budget.used -= self._taken
        self._taken = 0

    def reset(self) -> None:
        """Forget the delivery."""
        self._forget_parts()
        self.first, self._size = None, 0


class CreditedLink(Link):
    """A link by which the client sends, with the credit that it has for this."""

    def __init__(self, channel: Channel, attach: amqp.Attach, limit: int, credit: int) -> None:
        super().__init__(channel, attach)
        self._assembly = Assembly(limit, channel.connection.budget)
        self._full_credit = credit
        self._low_credit = credit // 2
        self._credit = 0
        self._delivery_count = attach.initial_delivery_count or 0
        self.last_transfer = channel.connection.last_read

    def grant(self) -> None:
        """Give the client its credit."""
        self._credit = self._full_credit
        self.channel.link_flow(self.handle, delivery_count=self._delivery_count, link_credit=self._credit, available=0)

    def on_flow(self, flow: amqp.Flow) -> None:
        if flow.echo:
            self.channel.renew_later(self)

    def on_transfer(self, transfer: amqp.Transfer, payload: bytes) -> None:
        assembly = self._assembly
        whole: bytes | None = payload
        if transfer.more or transfer.aborted or assembly.first is not None or len(payload) > assembly.limit:
            done = assembly.add(transfer, payload)
            if done is None:
                return
            transfer, whole = done
        self.last_transfer = self.connection.last_read
        self._delivery_count = (self._delivery_count + 1) & MASK
        self._credit -= 1
        if self._credit < 0 and self.connection.profile.enforces:
            self.channel.detach(self, BrokerError(TRANSFER_LIMIT, "A message was sent without link credit."))
            return
        if self._credit <= self._low_credit:
            self.channel.renew_later(self)
        self.on_delivery(transfer, whole)

    def on_delivery(self, transfer: amqp.Transfer, payload: bytes | None) -> None:
        """A whole delivery arrived; None if it was too large."""

    def drop(self) -> None:
        super().drop()
        self._assembly.reset()


class IncomingLink(CreditedLink):
    """A client's sender: its messages go to a queue or topic."""

    # A batch may hold more than one message of the largest size; the service takes 1 MB at most.
    BATCH_BYTES = 1 << 20

    def __init__(self, channel: Channel, attach: amqp.Attach, node: Node) -> None:
        limit = max(self.BATCH_BYTES, node.queue.limits.max_message_bytes + 65536)
        super().__init__(channel, attach, limit, channel.connection.profile.sender_credit)
        self.node = node
        self.path = node.path
        self._namespace = self.connection.namespace
        self._gate = Gate(self.connection, Operation.SEND)

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
        if fault is not None and fault.kind is Kind.DETACH:
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
        """A delivery is part of a transaction; whether it is stored is told with that."""
        if not settled and not (fault is not None and fault.hides_answer):
            self.channel.answer(delivery_id, outcome)
        if fault is not None and fault.cuts_after:
            self.connection.cut()

    def _answer(self, delivery_id: int, settled: bool, fault: Fault | None, error: BrokerError | None) -> None:
        """A delivery is stored, or could not be."""
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
    """A client's receiver: it gets messages from a queue, as many as it gave credit for."""

    def __init__(self, channel: Channel, attach: amqp.Attach, node: Node) -> None:
        super().__init__(channel, attach)
        self.node = node
        self.path = node.path
        self.queue = node.queue
        self._gate = Gate(self.connection, Operation.RECEIVE)
        self._gate.on_clear = self.wake
        self._settle_gate = Gate(self.connection, Operation.SETTLE)
        self.deletes = attach.snd_settle_mode == 1
        self.session_id: str | None = None
        self._credit = 0
        self._reserved = 0
        self._delivery_count = 0
        self._count_at_flow = 0
        self._draining = False
        self._last_active = channel.connection.last_read

    # ---- what the queue asks ----

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
            # The message has not left: it is there for the next receiver at once. A session takes its locks along when
            # it is detached, so this comes first.
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

    # ---- what the client says ----

    def on_flow(self, flow: amqp.Flow) -> None:
        self._last_active = self.connection.last_read
        if flow.link_credit is not None:
            credit = max(0, credit_left(flow, self._delivery_count) - self._reserved)
            # The same credit again, and nothing has come for it: a receive has waited in vain.
            is_renewed = 0 < credit == self._credit and not (flow.drain or flow.echo or self._reserved)
            self.queue.activity.polls += is_renewed and self._count_at_flow == self._delivery_count
            self._credit, self._count_at_flow = credit, self._delivery_count
        if self._credit:
            self.queue.wake(self)
        # Only now: what is there for this credit comes first.
        self._draining = bool(flow.drain)
        if self._draining:
            self._finish_drain()
        elif flow.echo:
            self._tell_credit()

    def _finish_drain(self) -> None:
        """Use up the credit that found no message, and say so."""
        if self._reserved:
            return
        self._draining = False
        self._delivery_count = (self._delivery_count + self._credit) & MASK
        self._credit = 0
        self._tell_credit(drain=True)

    def _tell_credit(self, drain: bool = False) -> None:
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
        """The client says what became of a delivery."""
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
        if fault is not None and fault.kind is Kind.DETACH:
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
        """Have a delivery settled with a transaction; raises `BrokerError`."""
        try:
            self.connection.transactions.enlist_settlement(self, delivery_id, token, state)
        except BrokerError:
            # As after a rollback: the message is still locked, and what the client says of it next must be heard.
            if self.attached and not settled and self.queue.holds(token):
                self.channel.unsettled[delivery_id] = self, token
            raise

    def _settled(
        self, delivery_id: int, state: Any, settled: bool, fault: Fault | None, error: BrokerError | None
    ) -> None:
        """A settlement is stored, or could not be."""
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
            self._last_active = now  # whoever waits for messages is not idle
        if idle is not None and now - self._last_active > idle:
            self.channel.detach(self, idle_too_long(self, "consumer", "AmqpMessageConsumer", idle))
        elif not self.connection.rights.allows(self.node.path, Right.LISTEN):
            self.channel.detach(self, token_expired(self.node.path))

    def drop(self) -> None:
        super().drop()
        self.queue.detach(self)


def credit_left(flow: amqp.Flow, sent: int) -> int:
    """What a client's flow allows, after `sent` deliveries. Numbers of AMQP start again at zero after the highest."""
    credit = ((flow.delivery_count or 0) + (flow.link_credit or 0) - sent) & MASK
    # A credit that looks negative was overtaken by deliveries under way.
    return credit if credit <= MASK >> 1 else 0


def idle_too_long(link: Link, role: str, kind: str, seconds: float) -> BrokerError:
    """In the service's words."""
    return BrokerError(
        DETACH_FORCED,
        f"The link '{link.name}' is force detached. Code: {role}(link{link.handle}). Details:"
        f" {kind}.IdleTimerExpired: Idle timeout: {timedelta(seconds=seconds)!s:0>8}.",
    )


def token_expired(path: str) -> BrokerError:
    return BrokerError(UNAUTHORIZED, f"ExpiredToken: The token for '{path}' is expired or gives no right to it.")
