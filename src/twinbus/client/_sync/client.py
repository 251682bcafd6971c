# Generated from client/_async/client.py by `make generate`: change it there.
"""The paired client: senders that outlive the primary, receivers of the primary, and control over both."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, NoReturn, Self, overload

from azure.core.paging import ItemPaged
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusReceiveMode,
    ServiceBusSessionFilter,
    ServiceBusSubQueue,
)

from twinbus.ledger.recorder import NamespaceRole, Recorder
from twinbus.pairing import metrics
from twinbus.pairing.backlog import ListedQueue
from twinbus.pairing.checks import check_path, check_timeout, check_type
from twinbus.pairing.core import Pairing
from twinbus.pairing.events import Event
from twinbus.pairing.namespaces import NamespaceLike
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.sdk.subclass import guarded
from twinbus.pairing.sending._sync.sender import PairedSender
from twinbus.pairing.sending._sync.synchronization import in_parallel
from twinbus.pairing.sending.budget import Retries

from ..arguments import Credential, check_connection_string, check_names, read_arguments
from ..checking import check_pair
from ..partnership import SIDES, Partnership
from ..receipts import new_client_name
from ..runtime import Runtime
from ..status import PairingStatus, status_of
from .hosting import Host
from .partner import PartnerClient
from .receiver import PairedReceiver

#: Seconds that `close` takes at most, and how many of them are left for the SDK's clients.
CLOSING, CLIENTS_CLOSING = 5.0, 1.0


@guarded(ServiceBusClient)
class PairedServiceBusClient(ServiceBusClient):
    """Makes senders and receivers like the SDK's `ServiceBusClient`; its senders go on while the primary is down.

    Each namespace is given as (fully_qualified_namespace, credential), as a connection string, or as a `Namespace`,
    which can have options of its own. In place of `primary`, host and credential can be given as to the SDK's client;
    a `secondary` that is a host then shares the credential. Without `secondary` it comes from the environment:
    `TWINBUS_SECONDARY` is its connection string, `TWINBUS_SECONDARY_NAMESPACE` its host where the primary was given
    with a credential.

    `client_options` are those of the SDK's client and hold for both namespaces, except `custom_endpoint_address`, which
    is the primary's. The `retry_*` options hold for receivers as with the SDK; for senders they say how often and when
    a busy namespace is tried again, for all else is diverted. `name` and `client` are how the ledger calls the pairing
    and this client of it; `recorder` is told of all that is billed.

    Enter it as a context, or call `start`, to have the backlog ready before the first send; otherwise that is done
    in the background when the first sender is made.

    Raises:
        ValueError: an option or a part of a connection string is missing or out of its bounds, or there is no
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
        # Not `super().__init__`: everything of the SDK is done by the two partner clients.
        check_names(name, client, recorder)
        given = read_arguments(positional, named)
        self._namespaces = given.primary, given.secondary
        retries = [Retries.of(namespace.client_options) for namespace in self._namespaces]
        primary_name = check_pair(*self._namespaces, given.options)
        self._new_pairing = partial(
            Pairing,
            given.options,
            primary_name,
            name=name,
            client=client or new_client_name(),
            address=given.primary.fully_qualified_namespace,
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
        # The first thing that has to be done by the clock starts the background, if nobody else has.
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
        """A client from the connection string of the primary, as the SDK makes one; `more` as for the class.

        Without `secondary` its connection string is taken from the environment variable `TWINBUS_SECONDARY`.

        Raises:
            ValueError: an option or a part of a connection string is missing or out of its bounds, or there is no
                secondary.
            TypeError: an argument is of the wrong type or given twice.
        """
        check_connection_string(conn_str)
        return cls(conn_str, secondary, options, **more)

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
        self._host.loop.check()
        self._host.start()

    def __enter__(self) -> Self:
        if self._is_closed and self._pairing.fault is None:
            # As with the SDK's client, a context can be entered again. Who listens to events goes on doing so.
            pairing = self._new_pairing()
            pairing.events = self._pairing.events
            pairing.foreign.adopt_callbacks(self._pairing.foreign)
            self._set_up(pairing)
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *args: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the senders, end pings and pumps, and close both clients of the SDK with their receivers.

        It takes 5 seconds at most. What is not closed by then, because a credential or the network hangs, is given up.
        In a forked child it leaves the connections of the parent alone.
        """
        if self._pairing.is_forked:
            self._is_closed = True
            return
        self._host.loop.check()
        self._is_closed = True
        ends = time.monotonic() + CLOSING
        in_parallel([self._host.close, *(sender.close for sender in self._senders)], CLOSING - CLIENTS_CLOSING)
        in_parallel([self._primary.close, self._secondary.close], ends - time.monotonic())
        self._senders.clear()
        self._pairing.foreign.close()
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
        """A sender for a topic. It opens when it is first used."""
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
        """A receiver of a subscription of the primary: the SDK's, except that it never shows a ping."""
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
    def primary(self) -> PartnerClient:
        """The SDK's client of the primary namespace."""
        return self._primary

    @property
    def secondary(self) -> PartnerClient:
        """The SDK's client of the secondary namespace."""
        return self._secondary

    def status(self) -> PairingStatus:
        """How the pairing is now: entities, backlog, sessions, syphon, and whether it was closed or has faulted.

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
        """Call `callback` with every event from now on, in order, on a helper thread; returns what ends it.

        It may take its time, and raise: that changes nothing, is logged once and counted in `status`.

        Raises:
            TypeError: `callback` is not a plain function.
            ForkedClientError: this process was forked after the client was made.
        """
        self._check_process()
        return self._pairing.on_event(callback)

    def list_backlog(self) -> list[ListedQueue]:
        """All backlog queues of this primary in the secondary, also those that are not used and may be removed.

        Raises:
            azure.core.exceptions.AzureError: the secondary could not be asked, or refused: it takes the Manage right.
        """
        self._check_open()
        return self._host.run(self._runtime.list_backlog())

    # ---- what goes wrong ----

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

    def _both_closed(self) -> None:
        """The application has closed both clients of the SDK: nothing is left to do for pings and pumps."""
        if not self._is_closed:
            self.close()


def pair_namespaces(
    primary: NamespaceLike,
    secondary: NamespaceLike | None = None,
    options: SendAvailabilityOptions | None = None,
    **more: Any,
) -> PairedServiceBusClient:
    """A paired client that is all set up: the backlog is ready, unless its `status` says why not. Close it after use.

    Raises:
        Exception: what `PairedServiceBusClient` and its `start` raise.
    """
    client = PairedServiceBusClient(primary, secondary, options, **more)
    return client.__enter__()
