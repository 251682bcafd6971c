# Generated from client/_async/partner.py by `make generate`: change it there.
"""The SDK's client for one of the two namespaces; it reports its close or fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from azure.core.paging import ItemPaged
from azure.servicebus import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from twinbus.ledger.recorder import NamespaceRole
from twinbus.pairing.pairing_errors import PairedClientFaultedError
from twinbus.pairing.sdk.version import check_method

from ..partnership import Partnership


class PartnerClient(ServiceBusClient):
    """A client of the SDK that cannot be used again after `close` or `fault`.

    Its senders and receivers are the SDK's own, which know nothing of the pairing.
    """

    def __init__(
        self,
        role: NamespaceRole,
        partnership: Partnership,
        on_end: Callable[[NamespaceRole], None],
        on_both_closed: Callable[[], None],
        arguments: dict[str, Any],
    ) -> None:
        super().__init__(**arguments)
        self.role = role
        self._partnership = partnership
        self._on_end = on_end
        self._on_both_closed = on_both_closed
        #: For paired senders, which decide about retries themselves.
        self.for_senders = _SendingClient(role, partnership, {**arguments, "retry_total": 0})

    def close(self) -> None:
        """Close all senders and receivers of this namespace; closing both clients closes the paired client, too.

        In a forked child the parent's stay open.
        """
        if self._partnership.is_forked:
            return
        is_news = self._partnership.closed(self.role)
        super().close()
        self.for_senders.close()
        if is_news:
            self._on_end(self.role)
            if self._partnership.are_both_closed:
                self._on_both_closed()

    def fault(self, reason: str, cause: BaseException | None = None) -> None:
        """Fault the client: every later call raises `PairedClientFaultedError`. Close it all the same."""
        if self._partnership.faulted(self.role, PairedClientFaultedError(reason, cause)):
            self._on_end(self.role)

    def get_queue_sender(self, *args: Any, **options: Any) -> ServiceBusSender:
        self._partnership.check(self.role)
        return super().get_queue_sender(*args, **options)

    def get_topic_sender(self, *args: Any, **options: Any) -> ServiceBusSender:
        self._partnership.check(self.role)
        return super().get_topic_sender(*args, **options)

    def get_queue_receiver(self, *args: Any, **options: Any) -> ServiceBusReceiver:
        self._partnership.check(self.role)
        return super().get_queue_receiver(*args, **options)

    def get_subscription_receiver(self, *args: Any, **options: Any) -> ServiceBusReceiver:
        self._partnership.check(self.role)
        return super().get_subscription_receiver(*args, **options)

    def list_queue_sessions(self, *args: Any, **options: Any) -> ItemPaged[str]:
        self._partnership.check(self.role)
        check_method("list_queue_sessions")
        return super().list_queue_sessions(*args, **options)

    def list_subscription_sessions(self, *args: Any, **options: Any) -> ItemPaged[str]:
        self._partnership.check(self.role)
        check_method("list_subscription_sessions")
        return super().list_subscription_sessions(*args, **options)


class _SendingClient(ServiceBusClient):
    """Makes the SDK senders that paired senders use."""

    def __init__(self, role: NamespaceRole, partnership: Partnership, arguments: dict[str, Any]) -> None:
        super().__init__(**arguments)
        self._role = role
        self._partnership = partnership

    def get_queue_sender(self, *args: Any, **options: Any) -> ServiceBusSender:
        self._partnership.check(self._role)
        return super().get_queue_sender(*args, **options)
