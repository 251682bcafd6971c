# Generated from client/_async/receiver.py by `make generate`: change it there.
"""Receivers that hide pings and record their operations."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Self, cast

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode, ServiceBusReceiver, ServiceBusSession
from azure.servicebus.exceptions import ServiceBusError

from twinbus.ledger.recorder import OperationKind, Recorder
from twinbus.pairing.failover.error_classification import explained
from twinbus.pairing.failover.ping import is_ping
from twinbus.pairing.operation_recording import Records
from twinbus.pairing.pairing_state import Pairing
from twinbus.pairing.sdk import internals

from ..receive_records import Receipts, Scribe

logger = logging.getLogger("twinbus.client")

#: The SDK's default wait for a message, in seconds.
DEFAULT_WAIT = 60.0


class RecordedSession(ServiceBusSession):
    """The SDK's session of a recording receiver: its requests are billed, too."""

    _receiver: RecordedReceiver

    def renew_lock(self, *, timeout: float | None = None, **kwargs: Any) -> datetime:
        """As the SDK's."""
        with self._receiver._noted(OperationKind.RENEW):
            return super().renew_lock(timeout=timeout, **kwargs)

    def get_state(self, *, timeout: float | None = None, **kwargs: Any) -> bytes:
        """As the SDK's."""
        with self._receiver._noted(OperationKind.GET_STATE):
            return super().get_state(timeout=timeout, **kwargs)

    def set_state(
        self,
        state: str | bytes | bytearray | None,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        """As the SDK's."""
        with self._receiver._noted(OperationKind.SET_STATE):
            super().set_state(state, timeout=timeout, **kwargs)


class RecordedReceiver(ServiceBusReceiver):
    """The SDK's receiver, with its operations recorded and pings hidden.

    The service should never deliver a ping; if it does, the ping is settled here.
    """

    _receipts: Receipts
    _default_wait: float
    _settles: bool

    @classmethod
    def of(
        cls,
        receiver: ServiceBusReceiver,
        records: Records,
        receive_mode: ServiceBusReceiveMode | str,
        max_wait_time: float | None,
    ) -> Self:
        """Make one of these from a receiver of the SDK's client, which cannot be told to use another class."""
        receiver.__class__ = cls
        made = cast(Self, receiver)
        # With its sub-queue, if it has one: receiving a dead-lettered message is not a second arrival.
        made._receipts = Receipts(records, receiver.entity_path)
        made._default_wait = DEFAULT_WAIT if max_wait_time is None else max_wait_time
        made._settles = ServiceBusReceiveMode(receive_mode) is ServiceBusReceiveMode.PEEK_LOCK
        if made._receipts.is_recording and receiver.session is not None:
            receiver.session.__class__ = RecordedSession
        return made

    def _check(self) -> None:
        """Raise if this receiver must not be used any more."""

    def __enter__(self) -> Self:
        with self._explained():
            super().__enter__()
        return self

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ServiceBusError as error:
            clear = explained(error, self.entity_path, self.fully_qualified_namespace)
            if clear is error:
                raise
            raise clear from error

    def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Receive as the SDK does; if only pings came, wait for the rest of the time."""
        ends = time.monotonic() + (self._default_wait if max_wait_time is None else max_wait_time)
        while True:
            self._check()
            started = time.perf_counter()
            with self._explained():
                received = super().receive_messages(max_message_count, max_wait_time)
            self._receipts.received(received, started)
            messages = self._without_pings(received)
            max_wait_time = ends - time.monotonic()
            if messages or not received or max_wait_time <= 0:
                return messages

    def __iter__(self) -> Iterator[ServiceBusReceivedMessage]:
        self._check()
        started = time.perf_counter()
        with self._explained():
            for message in super().__iter__():
                self._receipts.received([message], started)
                if self._without_pings([message]):
                    yield message
                self._check()
                started = time.perf_counter()

    def __next__(self) -> ServiceBusReceivedMessage:
        while True:
            self._check()
            started = time.perf_counter()
            with self._explained():
                message = super().__next__()
            self._receipts.received([message], started)
            if self._without_pings([message]):
                return message

    # The SDK's synchronous receiver has this name for it, too.
    next = __next__

    def receive_deferred_messages(
        self,
        sequence_numbers: int | list[int],
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[ServiceBusReceivedMessage]:
        """As the SDK's."""
        self._check()
        started = time.perf_counter()
        with self._explained():
            received = super().receive_deferred_messages(sequence_numbers, timeout=timeout, **kwargs)
        self._receipts.received(received, started)
        return received

    def peek_messages(
        self,
        max_message_count: int = 1,
        *,
        sequence_number: int = 0,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[ServiceBusReceivedMessage]:
        """Peek as the SDK does; if there are only pings, look further."""
        while True:
            with self._explained(), self._noted(OperationKind.PEEK):
                peeked = super().peek_messages(
                    max_message_count, sequence_number=sequence_number, timeout=timeout, **kwargs
                )
            messages = [message for message in peeked if not is_ping(message)]
            if messages or not peeked:
                return messages
            sequence_number = (peeked[-1].sequence_number or 0) + 1

    def _without_pings(self, received: list[ServiceBusReceivedMessage]) -> list[ServiceBusReceivedMessage]:
        messages = [message for message in received if not is_ping(message)]
        if self._settles and len(messages) < len(received):
            for message in filter(is_ping, received):
                self._settle_ping(message)
        return messages

    def _settle_ping(self, message: ServiceBusReceivedMessage) -> None:
        try:
            self.complete_message(message)
        except Exception as error:
            # Its lock may be lost by now; a ping expires after a second anyway.
            logger.debug("Settling a ping failed: %s", type(error).__name__)

    def _noted(
        self, kind: OperationKind, message: ServiceBusReceivedMessage | None = None
    ) -> AbstractContextManager[None]:
        self._check()
        return self._receipts.noted(kind, message)

    def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """As the SDK's."""
        with self._noted(OperationKind.COMPLETE, message):
            super().complete_message(message)

    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """As the SDK's."""
        with self._noted(OperationKind.ABANDON, message):
            super().abandon_message(message)

    def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """As the SDK's."""
        with self._noted(OperationKind.DEFER, message):
            super().defer_message(message)

    def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """As the SDK's."""
        with self._noted(OperationKind.DEAD_LETTER, message):
            super().dead_letter_message(message, reason, error_description)

    def renew_message_lock(
        self,
        message: ServiceBusReceivedMessage,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> datetime:
        """As the SDK's."""
        with self._noted(OperationKind.RENEW, message):
            return super().renew_message_lock(message, timeout=timeout, **kwargs)


class PairedReceiver(RecordedReceiver):
    """A receiver of the primary, made by a paired client."""

    _pairing: Pairing

    @classmethod
    def of_pairing(
        cls,
        receiver: ServiceBusReceiver,
        pairing: Pairing,
        receive_mode: ServiceBusReceiveMode | str,
        max_wait_time: float | None,
    ) -> PairedReceiver:
        """Make one as `of` does, for a pairing: when the pairing has faulted, so has its receiver."""
        paired = cls.of(receiver, pairing, receive_mode, max_wait_time)
        paired._pairing = pairing
        return paired

    def _check(self) -> None:
        self._pairing.check()

    def close(self) -> None:
        """Close as the SDK does. In a forked child the parent's connection stays open."""
        if not self._pairing.is_forked:
            super().close()


def record_receives(
    receiver: ServiceBusReceiver, recorder: Recorder, *, pairing: str = "", client: str = ""
) -> RecordedReceiver:
    """Make a receiver of the SDK record what arrives, so that reconciliation can find it.

        receiver = record_receives(client.get_queue_receiver("orders"), LedgerWriter("./ledger"))

    It is the same receiver, used as before; receives, settlements and lock renewals are recorded, and pings are
    skipped. All receivers of a queue or subscription should record: a message that another one receives seems to be
    lost. The receivers of a paired client with a recorder do so by themselves. Close the recorder yourself, after the
    receiver.

    Args:
        pairing: The name of the pairing in the ledger; by default the first part of the namespace's host.
        client: The name of this process in the ledger; by default made from host and process.

    Raises:
        TypeError: `receiver` is not an synchronous receiver of the SDK, or `recorder` cannot record.
        ValueError: the receiver records already.
    """
    if not isinstance(receiver, ServiceBusReceiver):
        raise TypeError(f"receiver must be an azure.servicebus.ServiceBusReceiver, not {type(receiver).__name__}")
    if isinstance(receiver, RecordedReceiver):
        raise ValueError(f"the receiver of {receiver.entity_path} records already")
    scribe = Scribe.named(receiver.fully_qualified_namespace, recorder, pairing, client)
    mode, wait = internals.receiving(receiver)
    return RecordedReceiver.of(receiver, scribe, mode or ServiceBusReceiveMode.PEEK_LOCK, wait)
