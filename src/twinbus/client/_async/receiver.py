"""Receivers of the primary that never show a ping, and tell the recorder what they do."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, cast

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusReceiver

from twinbus.ledger.recorder import OperationKind
from twinbus.pairing.core import Pairing
from twinbus.pairing.ping import is_ping

from ..receipts import Receipts

logger = logging.getLogger("twinbus.client")

#: How long the SDK waits for a message if nobody says.
DEFAULT_WAIT = 60.0


class PairedReceiver(ServiceBusReceiver):
    """The SDK's receiver, without pings: the service should never deliver one, and if it does it is settled here."""

    _pairing: Pairing
    _receipts: Receipts
    _default_wait: float
    _settles: bool

    @classmethod
    def of(
        cls,
        receiver: ServiceBusReceiver,
        pairing: Pairing,
        entity: str,
        receive_mode: ServiceBusReceiveMode | str,
        max_wait_time: float | None,
    ) -> PairedReceiver:
        """Make one of a receiver of the SDK's client, which has no way to be asked for another class."""
        receiver.__class__ = cls
        paired = cast(PairedReceiver, receiver)
        paired._pairing = pairing
        paired._receipts = Receipts(pairing, entity)
        paired._default_wait = DEFAULT_WAIT if max_wait_time is None else max_wait_time
        paired._settles = ServiceBusReceiveMode(receive_mode) is ServiceBusReceiveMode.PEEK_LOCK
        return paired

    # ---- receiving ----

    async def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """As the SDK's; if only pings came, it goes on waiting for the rest of the time."""
        ends = time.monotonic() + (self._default_wait if max_wait_time is None else max_wait_time)
        while True:
            self._pairing.check()
            started = time.perf_counter()
            received = await super().receive_messages(max_message_count, max_wait_time)
            self._receipts.received(received, started)
            messages = await self._without_pings(received)
            max_wait_time = ends - time.monotonic()
            if messages or not received or max_wait_time <= 0:
                return messages

    async def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        self._pairing.check()
        started = time.perf_counter()
        async for message in super().__aiter__():
            self._receipts.received([message], started)
            if await self._without_pings([message]):
                yield message
            self._pairing.check()
            started = time.perf_counter()

    async def __anext__(self) -> ServiceBusReceivedMessage:
        while True:
            self._pairing.check()
            started = time.perf_counter()
            message = await super().__anext__()
            self._receipts.received([message], started)
            if await self._without_pings([message]):
                return message

    # The SDK's synchronous receiver has this name for it, too.
    next = __anext__

    async def receive_deferred_messages(
        self,
        sequence_numbers: int | list[int],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **kwargs: Any,
    ) -> list[ServiceBusReceivedMessage]:
        """As the SDK's."""
        self._pairing.check()
        started = time.perf_counter()
        received = await super().receive_deferred_messages(sequence_numbers, timeout=timeout, **kwargs)
        self._receipts.received(received, started)
        return received

    async def peek_messages(
        self,
        max_message_count: int = 1,
        *,
        sequence_number: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109
        **kwargs: Any,
    ) -> list[ServiceBusReceivedMessage]:
        """As the SDK's; where there are only pings it looks further."""
        while True:
            with self._noted(OperationKind.PEEK):
                peeked = await super().peek_messages(
                    max_message_count, sequence_number=sequence_number, timeout=timeout, **kwargs
                )
            messages = [message for message in peeked if not is_ping(message)]
            if messages or not peeked:
                return messages
            sequence_number = (peeked[-1].sequence_number or 0) + 1

    async def _without_pings(self, received: list[ServiceBusReceivedMessage]) -> list[ServiceBusReceivedMessage]:
        messages = [message for message in received if not is_ping(message)]
        if self._settles and len(messages) < len(received):
            for message in filter(is_ping, received):
                await self._settle_ping(message)
        return messages

    async def _settle_ping(self, message: ServiceBusReceivedMessage) -> None:
        try:
            await self.complete_message(message)
        except Exception as error:
            # Its lock may be lost by now; it lives for a second anyway.
            logger.debug("A ping was not settled: %s", type(error).__name__)

    def _noted(
        self, kind: OperationKind, message: ServiceBusReceivedMessage | None = None
    ) -> AbstractContextManager[None]:
        self._pairing.check()
        return self._receipts.noted(kind, message)

    # ---- settling ----

    async def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """As the SDK's."""
        with self._noted(OperationKind.COMPLETE, message):
            await super().complete_message(message)

    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """As the SDK's."""
        with self._noted(OperationKind.ABANDON, message):
            await super().abandon_message(message)

    async def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """As the SDK's."""
        with self._noted(OperationKind.DEFER, message):
            await super().defer_message(message)

    async def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """As the SDK's."""
        with self._noted(OperationKind.DEAD_LETTER, message):
            await super().dead_letter_message(message, reason, error_description)

    async def renew_message_lock(
        self,
        message: ServiceBusReceivedMessage,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **kwargs: Any,
    ) -> datetime:
        """As the SDK's."""
        with self._noted(OperationKind.RENEW, message):
            return await super().renew_message_lock(message, timeout=timeout, **kwargs)
