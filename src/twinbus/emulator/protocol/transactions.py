"""Implements transactions: sends and settlements of one connection, stored together or not at all.

A step is checked when it arrives and done when the transaction is discharged, all steps in one commit. Until then
its messages are not visible, and settled messages stay locked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.types import DecodeError

from ..storage.store import Store, StoreError
from .error_conditions import (
    ARGUMENT_ERROR,
    DECODE_ERROR,
    INTERNAL_ERROR,
    QUOTA_EXCEEDED,
    ROLLED_BACK,
    UNKNOWN_TRANSACTION,
    BrokerError,
    message_lock_lost,
)
from .links import CreditedLink
from .outcomes import apply_outcome

if TYPE_CHECKING:
    from ..entities.inbox import Done
    from ..entities.message import Arrival
    from ..entities.queue import Queue
    from .channel import Channel
    from .links import OutgoingLink

MAX_SECONDS = 120.0
MAX_STEPS = 100
MAX_OPEN = 1000
MAX_BYTES = 32 << 20  # of pending messages, over all transactions of one connection
MESSAGE_COST = 256  # memory of a message on top of its bytes, which may be four
MAX_REQUEST = 4096
CREDIT = 100


class Transaction:
    """The steps of one transaction, and how to undo them after a rollback."""

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer
        self.steps: list[Callable[[], None]] = []
        self.undo_steps: list[Callable[[], None]] = []
        self.size = 0

    def add(self, step: Callable[[], None], undo: Callable[[], None] | None = None) -> None:
        if len(self.steps) >= MAX_STEPS:
            message = f"A transaction can hold {MAX_STEPS} messages and settlements."
            raise BrokerError(QUOTA_EXCEEDED, message)
        self.steps.append(step)
        if undo is not None:
            self.undo_steps.append(undo)

    def undo(self) -> None:
        for undo_step in self.undo_steps:
            undo_step()


class Transactions:
    """The open transactions of one connection."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[bytes, Transaction] = {}

    @property
    def is_busy(self) -> bool:
        """Whether any transaction is open."""
        return bool(self._open)

    def declare(self) -> bytes:
        """Begin a transaction and return its id; raises `BrokerError` if too many are open."""
        if len(self._open) >= MAX_OPEN:
            raise BrokerError(QUOTA_EXCEEDED, f"A connection can have {MAX_OPEN} open transactions.")
        name = os.urandom(16)
        timer = asyncio.get_running_loop().call_later(MAX_SECONDS, self.roll_back, name)
        self._open[name] = Transaction(timer)
        return name

    def enlist_send(self, queue: Queue, state: Any, batch: list[Arrival]) -> amqp.TransactionalState:
        """Store checked messages when their transaction commits; returns the outcome to answer with.

        `state` is the state of the transfer. Raises `BrokerError`.
        """
        if not isinstance(state, amqp.TransactionalState):
            raise BrokerError(ARGUMENT_ERROR, "The state of a transfer can only be a transactional state.")
        transaction = self._find(state.txn_id)
        size = sum(arrival.size + MESSAGE_COST for arrival in batch)
        if size + sum(opened.size for opened in self._open.values()) > MAX_BYTES:
            raise BrokerError(QUOTA_EXCEEDED, f"Open transactions can hold {MAX_BYTES} bytes of messages.")

        def store() -> None:
            queue.check(batch)  # again, as earlier steps of the transaction count too
            queue.take(batch, _ignore)

        transaction.add(store)
        transaction.size += size
        return amqp.TransactionalState(state.txn_id, amqp.Accepted())

    def enlist_settlement(
        self, link: OutgoingLink, delivery_id: int, token: bytes, state: amqp.TransactionalState
    ) -> None:
        """Settle a message when its transaction commits; raises `BrokerError`.

        After a rollback the message is still locked, and the same delivery can be settled again.
        """
        transaction = self._find(state.txn_id)
        if not link.queue.holds(token):
            raise message_lock_lost()

        def restore_delivery() -> None:
            if link.attached:
                link.channel.unsettled[delivery_id] = link, token

        transaction.add(lambda: apply_outcome(link.queue, token, state.outcome, _ignore), restore_delivery)

    def commit(self, name: bytes, done: Done) -> None:
        """Do all steps or none; `done` is called with the error, or None."""
        transaction = self._take(name)

        def run_steps() -> None:
            for step in transaction.steps:
                step()

        def committed(error: StoreError | None) -> None:
            if error is not None:
                transaction.undo()
            done(None if error is None else BrokerError(INTERNAL_ERROR, f"Nothing was stored: {error}."))

        try:
            self._store.atomically(run_steps, committed)
        except BrokerError as error:
            transaction.undo()
            done(BrokerError(ROLLED_BACK, f"The transaction was rolled back. {error.condition}: {error.description}"))

    def roll_back(self, name: bytes) -> None:
        """Discard a transaction."""
        self._take(name).undo()

    def _find(self, name: bytes) -> Transaction:
        transaction = self._open.get(name)
        if transaction is None:
            message = (
                f"There is no such transaction. One that is not discharged within {MAX_SECONDS:g} s is rolled back."
            )
            raise BrokerError(UNKNOWN_TRANSACTION, message)
        return transaction

    def _take(self, name: bytes) -> Transaction:
        transaction = self._find(name)
        del self._open[name]
        transaction.timer.cancel()
        return transaction

    def close(self) -> None:
        """Roll back all open transactions, when the coordinator link ends."""
        for name in list(self._open):
            self.roll_back(name)


class CoordinatorLink(CreditedLink):
    """The link on which a client declares and discharges transactions."""

    def __init__(self, channel: Channel, attach: amqp.Attach) -> None:
        super().__init__(channel, attach, MAX_REQUEST, CREDIT)
        self._transactions = channel.connection.transactions

    def on_delivery(self, transfer: amqp.Transfer, payload: bytes | None) -> None:
        delivery_id = transfer.delivery_id or 0
        try:
            request = _request_in(payload)
            if isinstance(request, amqp.Declare):
                self.channel.answer(delivery_id, amqp.Declared(self._transactions.declare()))
            elif request.fail:
                self._transactions.roll_back(request.txn_id)
                self.channel.answer(delivery_id, amqp.Accepted())
            else:
                self._transactions.commit(request.txn_id, partial(self._committed, delivery_id))
        except BrokerError as error:
            self.channel.reject(delivery_id, error)

    def _committed(self, delivery_id: int, error: BrokerError | None) -> None:
        if not self.attached:
            return
        if error is None:
            self.channel.answer(delivery_id, amqp.Accepted())
        else:
            self.channel.reject(delivery_id, error)

    def drop(self) -> None:
        super().drop()
        self._transactions.close()


def _request_in(payload: bytes | None) -> amqp.Declare | amqp.Discharge:
    if payload is None:
        raise BrokerError(ARGUMENT_ERROR, f"A request to the coordinator has at most {MAX_REQUEST} bytes.")
    try:
        request = amqp.as_performative(sections.section_value(sections.split_sections(payload).body))
    except DecodeError as error:
        raise BrokerError(DECODE_ERROR, str(error)) from error
    if not isinstance(request, (amqp.Declare, amqp.Discharge)):
        raise BrokerError(ARGUMENT_ERROR, "A request to the coordinator is a declare or a discharge.")
    if isinstance(request, amqp.Declare) and request.global_id is not None:
        raise BrokerError(ARGUMENT_ERROR, "Distributed transactions are not supported: global-id must be null.")
    return request


def _ignore(error: BrokerError | None) -> None:
    """Ignore a step's result: the client gets one answer for the whole transaction."""
