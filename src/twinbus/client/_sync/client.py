# Generated from client/_async/client.py by `make generate`: change it there.
"""The paired client: senders that outlive the primary, receivers of the primary, and control over both."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from azure.core.paging import ItemPaged
from azure.servicebus import AutoLockRenewer, ServiceBusReceiveMode, ServiceBusSessionFilter, ServiceBusSubQueue

from twinbus.ledger.recorder import NamespaceRole, Recorder
from twinbus.pairing import metrics
from twinbus.pairing.backlog import ListedQueue
from twinbus.pairing.core import Pairing
from twinbus.pairing.events import Event
from twinbus.pairing.namespaces import Namespace, NamespaceLike
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.sending._sync.delivery import CLOSING
from twinbus.pairing.sending._sync.sender import PairedSender
from twinbus.pairing.sending._sync.synchronization import in_parallel

from ..checking import check_pair
from ..partnership import SIDES, Partnership
from ..receipts import new_client_name
from ..runtime import Runtime
from ..status import PairingStatus, status_of
from .hosting import Host
from .partner import PartnerClient
from .receiver import PairedReceiver

logger = logging.getLogger("twinbus.client")


class PairedServiceBusClient:
    """Makes senders and receivers like the SDK's `ServiceBusClient`; its senders go on while the primary is down.

    Each namespace is given as (fully_qualified_namespace, credential), as a connection string, or as a `Namespace`,
    which can have options of its own. `client_options` are those of the SDK's client and hold for both. `name` and
    `client` are how the ledger calls the pairing and this client of it; `recorder` is told of all that is billed.

    Enter it as a context, or call `start`, to have the backlog ready before the first send; otherwise that is done
    in the background when the first sender is made.

    Raises:
        ValueError: an option or a part of a connection string is missing or out of its bounds.
        TypeError: an argument is of the wrong type.
    """

    def __init__(
        self,
        primary: NamespaceLike,
        secondary: NamespaceLike,
        options: SendAvailabilityOptions | None = None,
        *,
        name: str = "",
        client: str = "",
        recorder: Recorder | None = None,
        **client_options: Any,
    ) -> None:
        options = options or SendAvailabilityOptions()
        self._namespaces = Namespace.of(primary, **client_options), Namespace.of(secondary, **client_options)
        primary_name = check_pair(*self._namespaces, options)
        client = client or new_client_name()
        self._pairing = Pairing(options, primary_name, name=name, client=client, recorder=recorder)
        self._end_metrics = metrics.watch(self._pairing)
        self._partnership = Partnership()
        self._runtime = Runtime(self._pairing, *self._namespaces, self._partnership)
        self._host = Host(self._runtime, self._failed_to_start)
        # The first thing that has to be done by the clock starts the background, if nobody else has.
        self._pairing.wake = self._host.begin
        self._primary, self._secondary = (
            PartnerClient(role, self._partnership, self._partner_ended, self._host.arguments(namespace))
            for role, namespace in zip(SIDES, self._namespaces, strict=True)
        )
        # Kept until they are closed: a sender that the application has forgotten still has its connections.
        self._senders: set[PairedSender] = set()
        self._is_closed = False

    @classmethod
    def from_connection_strings(
        cls, primary: str, secondary: str, *, options: SendAvailabilityOptions | None = None, **more: Any
    ) -> Self:
        """A client from the connection strings of the two namespaces; `more` are the arguments of the class.

        Raises:
            ValueError: an option or a part of a connection string is missing or out of its bounds.
        """
        return cls(primary, secondary, options, **more)

    # ---- beginning and end ----

    def start(self) -> None:
        """Create the backlog queues that are missing, check the others, and act by the clock from now on.

        Neither namespace has to be up, and the secondary may refuse: what is wrong is an event, shows in `status`, and
        is tried again in the background.

        Raises, with the option `strict` only:
            BacklogConfigurationError: a backlog queue would lose or refuse messages.
            NamespacesSwappedError: primary and secondary seem to be exchanged.
            BacklogNotReadyError: a namespace could not be asked, or refused.
        """
        self._check_open()
        self._host.start()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the senders, end pings and pumps, and close both clients of the SDK with their receivers."""
        self._is_closed = True
        in_parallel([sender.close for sender in self._senders], 3 * CLOSING)
        in_order: list[Any] = [self._host, self._primary, self._secondary]
        for one in in_order:
            try:
                one.close()
            except Exception as error:
                # The others have to be closed all the same.
                logger.warning("A %s of %s did not close: %r", type(one).__name__, self._pairing.name, type(error))
        self._senders.clear()
        self._end_metrics()

    # ---- senders ----

    def get_queue_sender(
        self,
        queue_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedSender:
        """A sender for a queue. It opens when it is first used."""
        return self._sender(queue_name, client_identifier, socket_timeout, kwargs)

    def get_topic_sender(
        self,
        topic_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedSender:
        """A sender for a topic. It opens when it is first used."""
        return self._sender(topic_name, client_identifier, socket_timeout, kwargs)

    def _sender(
        self, path: str, client_identifier: str | None, socket_timeout: float | None, more: dict[str, Any]
    ) -> PairedSender:
        self._check_open()
        self._check_path(path)
        sender = PairedSender(
            self._pairing,
            path,
            self._primary.for_senders,
            self._secondary.for_senders,
            client_identifier=client_identifier,
            socket_timeout=socket_timeout,
            **more,
        )
        self._senders -= {one for one in self._senders.copy() if one.is_closed}
        self._senders.add(sender)
        self._host.begin()
        return sender

    # ---- receivers ----

    def get_queue_receiver(
        self,
        queue_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        session_id: str | ServiceBusSessionFilter | None = None,
        sub_queue: ServiceBusSubQueue | str | None = None,
        receive_mode: ServiceBusReceiveMode | str = ServiceBusReceiveMode.PEEK_LOCK,
        max_wait_time: float | None = None,
        auto_lock_renewer: AutoLockRenewer | None = None,
        prefetch_count: int = 0,
        **kwargs: Any,
    ) -> PairedReceiver:
        """A receiver of a queue of the primary: the SDK's, except that it never shows a ping."""
        self._check_open()
        receiver = self._primary.get_queue_receiver(
            queue_name,
            client_identifier=client_identifier,
            socket_timeout=socket_timeout,
            session_id=session_id,
            sub_queue=sub_queue,
            receive_mode=receive_mode,
            max_wait_time=max_wait_time,
            auto_lock_renewer=auto_lock_renewer,
            prefetch_count=prefetch_count,
            **kwargs,
        )
        return PairedReceiver.of_pairing(receiver, self._pairing, receive_mode, max_wait_time)

    def get_subscription_receiver(
        self,
        topic_name: str,
        subscription_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        session_id: str | ServiceBusSessionFilter | None = None,
        sub_queue: ServiceBusSubQueue | str | None = None,
        receive_mode: ServiceBusReceiveMode | str = ServiceBusReceiveMode.PEEK_LOCK,
        max_wait_time: float | None = None,
        auto_lock_renewer: AutoLockRenewer | None = None,
        prefetch_count: int = 0,
        **kwargs: Any,
    ) -> PairedReceiver:
        """A receiver of a subscription of the primary: the SDK's, except that it never shows a ping."""
        self._check_open()
        receiver = self._primary.get_subscription_receiver(
            topic_name,
            subscription_name,
            client_identifier=client_identifier,
            socket_timeout=socket_timeout,
            session_id=session_id,
            sub_queue=sub_queue,
            receive_mode=receive_mode,
            max_wait_time=max_wait_time,
            auto_lock_renewer=auto_lock_renewer,
            prefetch_count=prefetch_count,
            **kwargs,
        )
        return PairedReceiver.of_pairing(receiver, self._pairing, receive_mode, max_wait_time)

    def list_queue_sessions(
        self, queue_name: str, *, state_updated_after: datetime | None = None, timeout: float | None = None
    ) -> ItemPaged[str]:
        """The sessions of a queue of the primary, as the SDK lists them.

        Raises:
            NotImplementedError: azure-servicebus is older than 7.15.
        """
        self._check_open()
        return self._primary.list_queue_sessions(queue_name, state_updated_after=state_updated_after, timeout=timeout)

    def list_subscription_sessions(
        self,
        topic_name: str,
        subscription_name: str,
        *,
        state_updated_after: datetime | None = None,
        timeout: float | None = None,
    ) -> ItemPaged[str]:
        """The sessions of a subscription of the primary, as the SDK lists them.

        Raises:
            NotImplementedError: azure-servicebus is older than 7.15.
        """
        self._check_open()
        return self._primary.list_subscription_sessions(
            topic_name, subscription_name, state_updated_after=state_updated_after, timeout=timeout
        )

    # ---- control and insight ----

    @property
    def fully_qualified_namespace(self) -> str:
        """The host of the primary namespace."""
        return self._primary.fully_qualified_namespace

    @property
    def primary(self) -> PartnerClient:
        """The SDK's client of the primary namespace."""
        return self._primary

    @property
    def secondary(self) -> PartnerClient:
        """The SDK's client of the secondary namespace."""
        return self._secondary

    def status(self) -> PairingStatus:
        """How the pairing is now: entities, backlog, sessions, syphon, and whether it was closed or has faulted."""
        return self._host.call(
            lambda: status_of(self._pairing, *self._namespaces, self._partnership, self._runtime, self._is_closed)
        )

    def fail_over(self, entity: str) -> None:
        """Send messages for a queue or topic to the backlog, without pings, until `fail_back`."""
        self._check_open()
        self._pairing.fail_over(entity)

    def fail_back(self, entity: str) -> None:
        """Send messages for a queue or topic to the primary again, whatever the pings say."""
        self._check_open()
        self._pairing.fail_back(entity)

    def on_event(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` with every event from now on, in the thread where it happens; returns what ends it.

        Raises:
            TypeError: `callback` is not a plain function.
        """
        return self._pairing.events.subscribe(callback)

    def list_backlog(self) -> list[ListedQueue]:
        """All backlog queues of this primary in the secondary, also those that are not used and may be removed.

        Raises:
            azure.core.exceptions.AzureError: the secondary could not be asked, or refused: it takes the Manage right.
        """
        self._check_open()
        return self._host.run(self._runtime.list_backlog())

    # ---- what goes wrong ----

    def _check_open(self) -> None:
        self._pairing.check()
        if self._is_closed:
            raise ValueError("The client was closed. Make a new one.")

    def _check_path(self, path: str) -> None:
        only = self._namespaces[0].entity_path
        if only is not None and path != only:
            raise ValueError(f"The connection string of the primary is good for '{only}' only, not for '{path}'")

    def _failed_to_start(self, error: BaseException) -> None:
        self._pairing.set_fault("it could not start", error)

    def _partner_ended(self, role: NamespaceRole) -> None:
        """The application has closed or faulted one of the two clients of the SDK."""
        if self._is_closed:
            return
        fault = self._partnership.fault(role)
        if fault is not None:
            self._pairing.set_fault(f"the {role.name.lower()} client has faulted", fault)
        self._runtime.client_ended(role)


def pair_namespaces(
    primary: NamespaceLike, secondary: NamespaceLike, options: SendAvailabilityOptions | None = None, **more: Any
) -> PairedServiceBusClient:
    """A paired client that is all set up: the backlog is ready, unless its `status` says why not. Close it after use.

    Raises:
        Exception: what `PairedServiceBusClient` and its `start` raise.
    """
    client = PairedServiceBusClient(primary, secondary, options, **more)
    return client.__enter__()
