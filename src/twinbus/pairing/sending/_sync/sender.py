# Generated from pairing/sending/_async/sender.py by `make generate`: change it there.
"""The paired sender: a drop-in for the SDK's that keeps sending while the primary is down."""

from __future__ import annotations

import itertools
import uuid
import warnings
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn, Self

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage

from ...argument_checks import check_count, check_timeout, check_type
from ...failover.entity_failover import Route
from ...pairing_errors import ScheduledInBacklogError
from ...pairing_state import Pairing
from ...sdk.subclass import guarded
from ..batch import EnvelopeBatch
from ..call_budget import Budget
from ..parcel import Scheduled, parcel_of
from ..receipt import Receipt
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

# Sequence numbers of messages scheduled through the backlog: negative and unique.
_placeholders = itertools.count(-1, -1)


@guarded(ServiceBusSender)
class PairedSender(ServiceBusSender):
    """Sends to a queue or topic of the primary namespace, or through the backlog while the primary is unavailable.

    It is a `ServiceBusSender` to programs and type checkers, with the same methods and parameters, but inherits no code
    that sends, and opens on first use. Sends return a `Receipt`. The caller's `timeout` covers the whole call. A sender
    can be shared: each call has its own link, up to `max_links` at a time.

    The clients are used only to make senders. They must not retry by themselves (`retry_total=0`): that is decided
    here.
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
        # Not `super().__init__`: `Delivery` has the links of the SDK.
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

    # The SDK's method returns nothing, so code written for it ignores the receipt.
    def send_messages(  # type: ignore[override]
        self,
        message: MessageTypes | ServiceBusMessageBatch,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Receipt:
        """Send a message, a list of messages or a batch, and return when it is accepted by the primary or the backlog.

        Several messages that do not fit the backlog as one batch, because of their envelopes, are stored in parts. For
        an empty list nothing is sent; its receipt has the route that a message would take now, and 0 attempts.

        Raises:
            BacklogUnavailableError: nothing was accepted, or only the messages in its `accepted_ids`.
            NoFreeLinkError: the call timed out before it had a link; nothing was tried.
            EnvelopeTooLargeError: it fits the entity but not the backlog, and that is needed.
            PairedClientFaultedError: the pairing has faulted.
            azure.servicebus.exceptions.ServiceBusError: what the SDK's sender raises, unless it means that the primary
                cannot be reached.
            TypeError, ValueError: an argument has the wrong type or value.
        """
        if kwargs or timeout is not None or self._is_closed or not self._loop.is_current:
            self._check(timeout, kwargs)
        parcel = parcel_of(message, self.entity_name)
        if not parcel.message_ids:
            return Receipt(self._pairing.route(self._entity).route, self.entity_name, None, (), 0)
        queue, _ = self._delivery.deliver(parcel, self._unbounded if timeout is None else self._budget(timeout))
        if parcel.newly_identified:
            parcel.accepted()
        route = Route.PRIMARY if queue is None else Route.BACKLOG
        return Receipt(route, self.entity_name, queue, parcel.message_ids, parcel.attempts)

    def schedule_messages(
        self,
        messages: MessageTypes,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Schedule messages for a later time, and return their sequence numbers.

        Messages that went through the backlog have negative numbers: they name no message and cannot be cancelled.

        Raises:
            Exception: the same as `send_messages`.
        """
        self._check(timeout, kwargs)
        check_type("schedule_time_utc", schedule_time_utc, datetime)
        parcel = Scheduled(messages, schedule_time_utc, self.entity_name)
        if not parcel.messages:
            return []

        _, numbers = self._delivery.deliver(parcel, self._budget(timeout))
        return numbers or [next(_placeholders) for _ in parcel.messages]

    def cancel_scheduled_messages(
        self,
        sequence_numbers: int | list[int],
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Cancel scheduled messages that have not arrived yet.

        Raises:
            ScheduledInBacklogError: there are negative numbers among them. Nothing was cancelled.
            EntityFailedOverError: the entity is failed over.
            azure.servicebus.exceptions.ServiceBusError: what the SDK's sender raises.
        """
        self._check(timeout, kwargs)
        numbers = _sequence_numbers(sequence_numbers)
        if not numbers:
            return
        if placeholders := [number for number in numbers if number < 0]:
            raise ScheduledInBacklogError(self.entity_name, placeholders)
        self._delivery.cancel(numbers, self._budget(timeout))

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Return a batch that can be diverted whole: it leaves room for the envelope.

        Raises:
            ValueError: `max_size_in_bytes` is more than the entity takes.
            azure.servicebus.exceptions.ServiceBusError: the entity refuses a link.
        """
        self._check(None, {})
        if max_size_in_bytes is not None:
            check_count("max_size_in_bytes", max_size_in_bytes, minimum=0)
        limit, options = self._delivery.batch_limit(self._unbounded)
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

    def open_standby(self, *, timeout: float | None = None) -> None:
        """Open the link to a backlog queue in advance, so that the first send after a failover is fast.

        Raises:
            azure.servicebus.exceptions.ServiceBusError: it cannot be opened.
        """
        self._check(timeout, {})
        self._delivery.open_standby(self._budget(timeout))

    @property
    def client_identifier(self) -> str:
        """The name of this sender in the service's error messages."""
        return self._client_identifier

    def __str__(self) -> str:
        return f"Sender client id: {self.client_identifier}, entity: {self.entity_name}"

    def __enter__(self) -> Self:
        self._check(None, {})
        return self

    def __exit__(self, *args: Any) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a paired sender cannot be pickled or copied: make a client in each process that uses one")

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Close all links; the sender cannot be used again. In a forked child the parent's links stay open."""
        if not self._pairing.is_forked:
            self._loop.check()
            self._is_closed = True
            self._delivery.close()

    def _budget(self, timeout: float | None) -> Budget:
        return self._unbounded if timeout is None else Budget(timeout, self._attempt_timeout, self._pairing.clock)

    def _check(self, timeout: float | None, unknown: dict[str, Any]) -> None:
        if unknown:
            warnings.warn(f"Unsupported keyword args: {unknown}", stacklevel=3)
        self._pairing.check()
        if self._is_closed:
            # The SDK's words, which programs may look for.
            raise ValueError(
                "The sender was closed: the handler has already been shutdown."
                " Please use ServiceBusClient to create a new instance."
            )
        self._loop.check()
        check_timeout("timeout", timeout)


def _sequence_numbers(value: Any) -> list[int]:
    numbers = [value] if isinstance(value, int) or not isinstance(value, Iterable) else list(value)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"sequence_numbers must be whole numbers, not {number!r}")
    return numbers
