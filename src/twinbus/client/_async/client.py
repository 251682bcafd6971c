"""The paired client: senders that survive an outage of the primary, receivers, and control."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, NoReturn, Self, overload

from azure.core.async_paging import AsyncItemPaged
from azure.servicebus import ServiceBusReceiveMode, ServiceBusSessionFilter, ServiceBusSubQueue
from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient

from twinbus.ledger.recorder import NamespaceRole, Recorder
from twinbus.pairing import metrics
from twinbus.pairing.argument_checks import check_path, check_timeout, check_type
from twinbus.pairing.backlog.provisioning import ListedQueue
from twinbus.pairing.events import Event
from twinbus.pairing.namespace import NamespaceLike
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.pairing_state import Pairing
from twinbus.pairing.sdk.subclass import guarded
from twinbus.pairing.sending._async.sender import PairedSender
from twinbus.pairing.sending._async.synchronization import in_parallel
from twinbus.pairing.sending.call_budget import Retries

from ..client_arguments import Credential, check_connection_string, check_names, read_arguments
from ..pair_check import check_pair
from ..pairing_status import PairingStatus, status_of
from ..partnership import SIDES, Partnership
from ..receive_records import new_client_name
from ..runtime import Runtime
from .hosting import Host
from .partner import PartnerClient
from .receiver import PairedReceiver
from .session_pages import explained_sessions

#: Maximum seconds of `close`, and the part of them reserved for the SDK's clients.
CLOSING, CLIENTS_CLOSING = 5.0, 1.0


@guarded(ServiceBusClient)
class PairedServiceBusClient(ServiceBusClient):
    """Makes senders and receivers like the SDK's `ServiceBusClient`; its senders go on while the primary is down.

    Each namespace is given as (fully_qualified_namespace, credential), as a connection string, or as a `Namespace`,
    which can have its own options. Instead of `primary`, host and credential can be given as for the SDK's client; a
    `secondary` that is a host then shares the credential. Without `secondary` it comes from the environment:
    `TWINBUS_SECONDARY` is its connection string, `TWINBUS_SECONDARY_NAMESPACE` its host if the primary was given with a
    credential.

    `client_options` are those of the SDK's client and apply to both namespaces, except `custom_endpoint_address`, which
    is the primary's. The `retry_*` options apply to receivers as with the SDK; for senders they say how often and when
    a busy namespace is retried, because all other failures are diverted or raised. `name` and `client` are the names of
    the pairing and of this client in the ledger; `recorder` gets every billed operation.

    Use it as a context manager, or call `start`, to have the backlog ready before the first send; otherwise that
    happens in the background when the first sender is made.

    Raises:
        ValueError: an option or a part of a connection string is missing or out of bounds, or there is no
            secondary.
        TypeError: an argument is missing, of the wrong type or given twice.
    """

    @overload
    def __init__(
        self,
        primary: NamespaceLike,
        secondary: NamespaceLike | None = None,
        options: SendAvailabilityOptions | None = None,
        *,
        name: str = "",
        client: str = "",
        recorder: Recorder | None = None,
        **client_options: Any,
    ) -> None: ...
    @overload
    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Credential,
        options: SendAvailabilityOptions | None = None,
        *,
        secondary: NamespaceLike | None = None,
        name: str = "",
        client: str = "",
        recorder: Recorder | None = None,
        **client_options: Any,
    ) -> None: ...
    def __init__(
        self,
        *positional: Any,
        name: str = "",
        client: str = "",
        recorder: Recorder | None = None,
        **named: Any,
    ) -> None:
        # Not `super().__init__`: the two partner clients do everything of the SDK.
        check_names(name, client, recorder)
        arguments = read_arguments(positional, named)
        self._namespaces = arguments.primary, arguments.secondary
        retries = [Retries.of(namespace.client_options) for namespace in self._namespaces]
        primary_name = check_pair(*self._namespaces, arguments.options)
        self._new_pairing = partial(
            Pairing,
            arguments.options,
            primary_name,
            name=name,
            client=client or new_client_name(),
            address=arguments.primary.fully_qualified_namespace,
            recorder=recorder,
            primary_retries=retries[0],
            backlog_retries=retries[1],
        )
        self._set_up(self._new_pairing())

    def _set_up(self, pairing: Pairing) -> None:
        """Make everything that `close` ends. Nothing is opened."""
        self._pairing = pairing
        self._end_metrics = metrics.watch(self._pairing)
        self._partnership = Partnership()
        self._runtime = Runtime(self._pairing, *self._namespaces, self._partnership)
        self._host = Host(self._runtime, self._failed_to_start)
        # The first timed task starts the background, if nothing else has.
        self._pairing.wake = self._host.begin
        ended = self._partner_ended, self._both_closed
        self._primary, self._secondary = (
            PartnerClient(role, self._partnership, *ended, self._host.arguments(namespace))
            for role, namespace in zip(SIDES, self._namespaces, strict=True)
        )
        self.fully_qualified_namespace: str = self._primary.fully_qualified_namespace
        # Kept until they are closed: a sender that the application has forgotten still has its connections.
        self._senders: set[PairedSender] = set()
        self._is_closed = False

    @classmethod
    def from_connection_string(
        cls,
        conn_str: str,
        *,
        secondary: NamespaceLike | None = None,
        options: SendAvailabilityOptions | None = None,
        **more: Any,
    ) -> Self:
        """Return a client from the primary's connection string, as with the SDK; `more` as for the class.

        Without `secondary` its connection string is taken from the environment variable `TWINBUS_SECONDARY`.

        Raises:
            ValueError: an option or a part of a connection string is missing or out of bounds, or there is no
                secondary.
            TypeError: an argument is of the wrong type or given twice.
        """
        check_connection_string(conn_str)
        return cls(conn_str, secondary, options, **more)

    @classmethod
    def from_connection_strings(
        cls, primary: str, secondary: str, *, options: SendAvailabilityOptions | None = None, **more: Any
    ) -> Self:
        """Return a client from the connection strings of the two namespaces; `more` are arguments of the class.

        Raises:
            ValueError: an option or a part of a connection string is missing or out of bounds.
        """
        return cls(primary, secondary, options, **more)

    async def start(self) -> None:
        """Create missing backlog queues, check the others, and start the background work.

        Neither namespace has to be up, and the secondary may refuse: problems are published as events, show in
        `status`, and are retried in the background.

        Raises, with the option `strict` only:
            BacklogConfigurationError: a backlog queue would lose or refuse messages.
            NamespacesSwappedError: primary and secondary look swapped.
            BacklogNotReadyError: a namespace did not answer, or refused.
        """
        self._check_open()
        self._host.loop.check()
        await self._host.start()

    async def __aenter__(self) -> Self:
        if self._is_closed and self._pairing.fault is None:
            # As with the SDK's client, a context can be entered again. Event callbacks stay subscribed.
            pairing = self._new_pairing()
            pairing.events = self._pairing.events
            pairing.foreign.adopt_callbacks(self._pairing.foreign)
            self._set_up(pairing)
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *args: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the senders, stop pings and pumps, and close both SDK clients with their receivers.

        It takes at most 5 seconds. What is not closed by then, because a credential or the network hangs, is abandoned.
        In a forked child the parent's connections stay open.
        """
        if self._pairing.is_forked:
            self._is_closed = True
            return
        self._host.loop.check()
        self._is_closed = True
        ends = time.monotonic() + CLOSING
        await in_parallel([self._host.close, *(sender.close for sender in self._senders)], CLOSING - CLIENTS_CLOSING)
        await in_parallel([self._primary.close, self._secondary.close], ends - time.monotonic())
        self._senders.clear()
        self._pairing.foreign.close()
        self._end_metrics()

    def get_queue_sender(
        self,
        queue_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedSender:
        """Return a sender for a queue. It opens on first use."""
        check_path("queue_name", queue_name)
        return self._sender(queue_name, client_identifier, socket_timeout, kwargs)

    def get_topic_sender(
        self,
        topic_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedSender:
        """Return a sender for a topic. It opens on first use."""
        check_path("topic_name", topic_name)
        return self._sender(topic_name, client_identifier, socket_timeout, kwargs)

    def _sender(
        self, path: str, client_identifier: str | None, socket_timeout: float | None, more: dict[str, Any]
    ) -> PairedSender:
        self._check_open()
        self._check_path(path)
        if client_identifier is not None:
            check_type("client_identifier", client_identifier, str)
        check_timeout("socket_timeout", socket_timeout)
        sender = PairedSender(
            self._pairing,
            path,
            self._primary.for_senders,
            self._secondary.for_senders,
            loop=self._host.loop,
            client_identifier=client_identifier,
            socket_timeout=socket_timeout,
            **more,
        )
        self._senders -= {sender for sender in self._senders.copy() if sender.is_closed}
        self._senders.add(sender)
        self._host.begin()
        return sender

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
        """Return a receiver of a queue of the primary: the SDK's, except that it never shows a ping."""
        self._check_open()
        check_path("queue_name", queue_name)
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
        """Return a receiver of a subscription of the primary: the SDK's, except that it never shows a ping."""
        self._check_open()
        check_path("topic_name", topic_name)
        check_path("subscription_name", subscription_name)
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
    ) -> AsyncItemPaged[str]:
        """List the sessions of a queue of the primary, as the SDK does.

        Raises:
            NotImplementedError: azure-servicebus is older than 7.15.
        """
        self._check_open()
        check_path("queue_name", queue_name)
        sessions = self._primary.list_queue_sessions(
            queue_name, state_updated_after=state_updated_after, timeout=timeout
        )
        return explained_sessions(sessions, queue_name, self.fully_qualified_namespace)

    def list_subscription_sessions(
        self,
        topic_name: str,
        subscription_name: str,
        *,
        state_updated_after: datetime | None = None,
        timeout: float | None = None,
    ) -> AsyncItemPaged[str]:
        """List the sessions of a subscription of the primary, as the SDK does.

        Raises:
            NotImplementedError: azure-servicebus is older than 7.15.
        """
        self._check_open()
        check_path("topic_name", topic_name)
        check_path("subscription_name", subscription_name)
        sessions = self._primary.list_subscription_sessions(
            topic_name, subscription_name, state_updated_after=state_updated_after, timeout=timeout
        )
        path = f"{topic_name}/Subscriptions/{subscription_name}"
        return explained_sessions(sessions, path, self.fully_qualified_namespace)

    @property
    def primary(self) -> PartnerClient:
        """The SDK's client of the primary namespace."""
        return self._primary

    @property
    def secondary(self) -> PartnerClient:
        """The SDK's client of the secondary namespace."""
        return self._secondary

    def status(self) -> PairingStatus:
        """Return the status of the pairing: entities, backlog, sessions, syphon, and whether it is closed or faulted.

        Raises:
            ForkedClientError: this process was forked after the client was made.
        """
        self._check_process()
        return self._host.call(
            lambda: status_of(self._pairing, *self._namespaces, self._partnership, self._runtime, self._is_closed)
        )

    def fail_over(self, entity: str) -> None:
        """Send messages for a queue or topic to the backlog, without pings, until `fail_back`."""
        self._check_open()
        check_path("entity", entity)
        self._pairing.fail_over(entity)

    def fail_back(self, entity: str) -> None:
        """Send messages for a queue or topic to the primary again, whatever the pings say."""
        self._check_open()
        check_path("entity", entity)
        self._pairing.fail_back(entity)

    def on_event(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` with every event from now on, in order, on a helper thread; return what unsubscribes it.

        A callback that is slow or raises does no harm: it is logged once and counted in `status`.

        Raises:
            TypeError: `callback` is not a plain function.
            ForkedClientError: this process was forked after the client was made.
        """
        self._check_process()
        return self._pairing.on_event(callback)

    async def list_backlog(self) -> list[ListedQueue]:
        """List all backlog queues of this primary in the secondary, also unused ones that may be deleted.

        Raises:
            azure.core.exceptions.AzureError: the secondary did not answer, or refused: it needs the Manage right.
        """
        self._check_open()
        return await self._host.run(self._runtime.list_backlog())

    def __reduce__(self) -> NoReturn:
        raise TypeError("a paired client cannot be pickled or copied: make a client in each process that uses one")

    def _check_process(self) -> None:
        if self._pairing.is_forked:
            self._pairing.check()

    def _check_open(self) -> None:
        self._pairing.check()
        if self._is_closed:
            raise ValueError("The client was closed. Enter it again as a context, or make a new one.")

    def _check_path(self, path: str) -> None:
        only = self._namespaces[0].entity_path
        if only is not None and path != only:
            raise ValueError(f"The connection string of the primary is valid for '{only}' only, not for '{path}'")

    def _failed_to_start(self, error: BaseException) -> None:
        self._pairing.set_fault("its background work could not start", error)

    def _partner_ended(self, role: NamespaceRole) -> None:
        """Fault or close the pairing after the application closed or faulted one of the two SDK clients."""
        if self._is_closed:
            return
        fault = self._partnership.fault(role)
        if fault is not None:
            self._pairing.set_fault(f"the {role.name.lower()} client has faulted", fault)
        self._runtime.client_ended(role)

    async def _both_closed(self) -> None:
        """Close the pairing after the application closed both SDK clients: pings and pumps have nothing left to do."""
        if not self._is_closed:
            await self.close()


async def pair_namespaces(
    primary: NamespaceLike,
    secondary: NamespaceLike | None = None,
    options: SendAvailabilityOptions | None = None,
    **more: Any,
) -> PairedServiceBusClient:
    """A started paired client: the backlog is ready, unless its `status` says why not. Close it after use.

    Raises:
        Exception: what `PairedServiceBusClient` and its `start` raise.
    """
    client = PairedServiceBusClient(primary, secondary, options, **more)
    return await client.__aenter__()
