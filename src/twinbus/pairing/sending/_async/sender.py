"""The sender: it looks like the SDK's, and goes on when the primary is down."""

from __future__ import annotations

import itertools
import uuid
import warnings
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn, Self

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage

from ...batch import EnvelopeBatch
from ...checks import check_count, check_timeout, check_type
from ...core import Pairing
from ...errors import ScheduledInBacklogError
from ...failover import Route
from ...parcel import Scheduled, parcel_of
from ...receipt import Receipt
from ...sdk.subclass import guarded
from ..budget import Budget
from .delivery import Delivery
from .synchronization import LoopBinding

MessageTypes = (
    Mapping[str, Any]
    | ServiceBusMessage
    | AmqpAnnotatedMessage
    | Iterable[Mapping[str, Any]]
    | Iterable[ServiceBusMessage]
    | Iterable[AmqpAnnotatedMessage]
)

# What is scheduled through the backlog has no number yet. These are negative, and never the same twice.
_placeholders = itertools.count(-1, -1)


@guarded(ServiceBusSender)
class PairedSender(ServiceBusSender):
    """Sends to a queue or topic of the primary namespace, or through the backlog while that cannot be reached.

    It is a `ServiceBusSender` to programs and type checkers, with its methods and parameters, but inherits nothing that
    sends, and opens when it is first used. Sends return a `Receipt`. The caller's `timeout` covers everything that a
    call does. It can be shared: each call has a link of its own, up to the option `max_links` at a time.

    The clients are used for nothing but to make senders. They must do without retries of their own (`retry_total=0`):
    trying again is decided here.
    """

    def __init__(
        self,
        pairing: Pairing,
        entity_path: str,
        primary_client: ServiceBusClient,
        backlog_client: ServiceBusClient,
        *,
        loop: LoopBinding | None = None,
        client_identifier: str | None = None,
        **options: Any,
    ) -> None:
        # Not `super().__init__`: the links of the SDK are in `Delivery`.
        self.entity_name: str = entity_path
        self.fully_qualified_namespace: str = primary_client.fully_qualified_namespace
        self._client_identifier = client_identifier or f"SBSender-{uuid.uuid4()}"
        self._pairing = pairing
        self._entity = pairing.entity(entity_path)
        self._attempt_timeout = pairing.options.attempt_timeout
        self._unbounded = Budget(None, self._attempt_timeout, pairing.clock)
        self._is_closed = False
        self._loop = loop or LoopBinding()
        options["client_identifier"] = self._client_identifier
        self._delivery = Delivery(pairing, entity_path, primary_client, backlog_client, **options)

    # ---- sending ----

    # The SDK's returns nothing, so whoever takes this sender for the SDK's drops the receipt.
    async def send_messages(  # type: ignore[override]
        self,
        message: MessageTypes | ServiceBusMessageBatch,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **kwargs: Any,
    ) -> Receipt:
        """Send a message, a list of messages or a batch, and return when it is accepted by the primary or the backlog.

        Several messages that do not fit the backlog as one batch, because of their envelopes, are stored in parts. For
        an empty list nothing is sent; its receipt has the route that a message would take now, and 0 attempts.

        Raises:
            BacklogUnavailableError: it was not accepted, or only the messages that its `accepted_ids` name.
            NoFreeLinkError: the call's time was over before it had a link; nothing was tried.
            EnvelopeTooLargeError: it fits the entity but not the backlog, and that is needed.
            PairedClientFaultedError: the pairing is out of order for good.
            azure.servicebus.exceptions.ServiceBusError: what the SDK's sender raises, unless it means that the primary
                cannot be reached.
            TypeError, ValueError: an argument is not as it has to be.
        """
        if kwargs or timeout is not None or self._is_closed or not self._loop.is_current:
            self._check(timeout, kwargs)
        parcel = parcel_of(message, self.entity_name)
        if not parcel.message_ids:
            return Receipt(self._pairing.route(self._entity).route, self.entity_name, None, (), 0)
        queue, _ = await self._delivery.deliver(parcel, self._unbounded if timeout is None else self._budget(timeout))
        if parcel.nameless:
            parcel.accepted()
        route = Route.PRIMARY if queue is None else Route.BACKLOG
        return Receipt(route, self.entity_name, queue, parcel.message_ids, parcel.attempts)

    async def schedule_messages(
        self,
        messages: MessageTypes,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **kwargs: Any,
    ) -> list[int]:
        """Send messages that are to arrive at a later time, and return their sequence numbers.

        Those that went through the backlog have negative ones: they name no message and cannot be cancelled.

        Raises:
            Exception: the same as `send_messages`.
        """
        self._check(timeout, kwargs)
        check_type("schedule_time_utc", schedule_time_utc, datetime)
        parcel = Scheduled(messages, schedule_time_utc, self.entity_name)
        if not parcel.messages:
            return []

        _, numbers = await self._delivery.deliver(parcel, self._budget(timeout))
        return numbers or [next(_placeholders) for _ in parcel.messages]

    async def cancel_scheduled_messages(
        self,
        sequence_numbers: int | list[int],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **kwargs: Any,
    ) -> None:
        """Cancel messages that were scheduled and have not arrived yet.

        Raises:
            ScheduledInBacklogError: there are negative numbers among them. Nothing was cancelled.
            EntityFailedOverError: the primary must be left alone now.
            azure.servicebus.exceptions.ServiceBusError: what the SDK's sender raises.
        """
        self._check(timeout, kwargs)
        numbers = _sequence_numbers(sequence_numbers)
        if not numbers:
            return
        if placeholders := [number for number in numbers if number < 0]:
            raise ScheduledInBacklogError(self.entity_name, placeholders)
        await self._delivery.cancel(numbers, self._budget(timeout))

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """A batch that can be diverted whole: it leaves room for the envelope. Messages are added until it is full.

        Raises:
            ValueError: `max_size_in_bytes` is more than the entity takes.
            azure.servicebus.exceptions.ServiceBusError: the entity refuses a link.
        """
        self._check(None, {})
        if max_size_in_bytes is not None:
            check_count("max_size_in_bytes", max_size_in_bytes, minimum=0)
        limit, options = await self._delivery.batch_limit(self._unbounded)
        if max_size_in_bytes and max_size_in_bytes > limit:
            raise ValueError(f"max_size_in_bytes must be at most {limit} bytes, not {max_size_in_bytes}")
        return EnvelopeBatch(
            limit,
            self.entity_name,
            leaves_room=True,
            max_size_in_bytes=max_size_in_bytes,
            tracing_attributes={
                "net.peer.name": self.fully_qualified_namespace,
                "messaging.destination.name": self.entity_name,
            },
            **options,
        )

    async def open_standby(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Open the link to a backlog queue in advance, so that the first send after a failover need not.

        Raises:
            azure.servicebus.exceptions.ServiceBusError: it cannot be opened.
        """
        self._check(timeout, {})
        await self._delivery.open_standby(self._budget(timeout))

    # ---- the rest of the SDK's sender ----

    @property
    def client_identifier(self) -> str:
        """What the service calls this sender in its error messages."""
        return self._client_identifier

    def __str__(self) -> str:
        return f"Sender client id: {self.client_identifier}, entity: {self.entity_name}"

    async def __aenter__(self) -> Self:
        self._check(None, {})
        return self

    async def __aexit__(self, *args: Any) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a paired sender cannot be pickled or copied: make a client in each process that uses one")

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        """Close all its links. It cannot be used again. In a forked child it leaves those of the parent alone."""
        if not self._pairing.is_forked:
            self._loop.check()
            self._is_closed = True
            await self._delivery.close()

    def _budget(self, timeout: float | None) -> Budget:
        return self._unbounded if timeout is None else Budget(timeout, self._attempt_timeout, self._pairing.clock)

    def _check(self, timeout: float | None, unknown: dict[str, Any]) -> None:
        if unknown:
            warnings.warn(f"Unsupported keyword args: {unknown}", stacklevel=3)
        self._pairing.check()
        if self._is_closed:
            # In the words of the SDK, which programs may look for.
            raise ValueError(
                "The sender was closed: the handler has already been shutdown."
                " Please use ServiceBusClient to create a new instance."
            )
        self._loop.check()
        check_timeout("timeout", timeout)


def _sequence_numbers(given: Any) -> list[int]:
    numbers = [given] if isinstance(given, int) or not isinstance(given, Iterable) else list(given)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"sequence_numbers must be whole numbers, not {number!r}")
    return numbers
