"""Paired namespaces for Azure Service Bus: your sends outlive your namespace.

The names are found when they are first used, so that `import twinbus` alone loads nothing of the SDK.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from twinbus.client._sync.client import PairedServiceBusClient, pair_namespaces
    from twinbus.client._sync.receiver import PairedReceiver, RecordedReceiver, record_receives
    from twinbus.client.pairing_status import (
        ApplicationErrors,
        BacklogQueueStatus,
        EntityState,
        EntityStatus,
        PairingStatus,
    )
    from twinbus.client.partnership import Condition
    from twinbus.pairing.backlog.provisioning import ListedQueue
    from twinbus.pairing.events import (
        BacklogQueueRestored,
        BacklogQueueRetired,
        BacklogReady,
        BacklogWarning,
        Diverted,
        Event,
        FailedOver,
        Faulted,
        LedgerAvailable,
        LedgerUnavailable,
        Moved,
        NamespacesLookSwapped,
        OversizeWarning,
        PingFailed,
        PingSent,
        PumpStopped,
        Recovered,
        StarvedWarning,
        Suspected,
        SuspicionCleared,
    )
    from twinbus.pairing.failover.entity_failover import Route
    from twinbus.pairing.failover.error_classification import FailoverPolicy
    from twinbus.pairing.namespace import Namespace
    from twinbus.pairing.options import SendAvailabilityOptions, SyphonOptions
    from twinbus.pairing.pairing_errors import (
        AttemptTimeoutError,
        BacklogConfigurationError,
        BacklogNotReadyError,
        BacklogUnavailableError,
        EntityFailedOverError,
        EntityNotFoundError,
        EnvelopeTooLargeError,
        ForkedClientError,
        HungCallsError,
        NamespacesSwappedError,
        NoFreeLinkError,
        PairedClientFaultedError,
        ScheduledInBacklogError,
        TwinbusError,
    )
    from twinbus.pairing.sending._sync.sender import PairedSender
    from twinbus.pairing.sending.receipt import Receipt

__all__ = [
    "ApplicationErrors",
    "AttemptTimeoutError",
    "BacklogConfigurationError",
    "BacklogNotReadyError",
    "BacklogQueueRestored",
    "BacklogQueueRetired",
    "BacklogQueueStatus",
    "BacklogReady",
    "BacklogUnavailableError",
    "BacklogWarning",
    "Condition",
    "Diverted",
    "EntityFailedOverError",
    "EntityNotFoundError",
    "EntityState",
    "EntityStatus",
    "EnvelopeTooLargeError",
    "Event",
    "FailedOver",
    "FailoverPolicy",
    "Faulted",
    "ForkedClientError",
    "HungCallsError",
    "LedgerAvailable",
    "LedgerUnavailable",
    "ListedQueue",
    "Moved",
    "Namespace",
    "NamespacesLookSwapped",
    "NamespacesSwappedError",
    "NoFreeLinkError",
    "OversizeWarning",
    "PairedClientFaultedError",
    "PairedReceiver",
    "PairedSender",
    "PairedServiceBusClient",
    "PairingStatus",
    "PingFailed",
    "PingSent",
    "PumpStopped",
    "Receipt",
    "RecordedReceiver",
    "Recovered",
    "Route",
    "ScheduledInBacklogError",
    "SendAvailabilityOptions",
    "StarvedWarning",
    "Suspected",
    "SuspicionCleared",
    "SyphonOptions",
    "TwinbusError",
    "__version__",
    "pair_namespaces",
    "record_receives",
]

__version__ = "0.1.0"

_HOMES = {
    "twinbus.client._sync.client": ("PairedServiceBusClient", "pair_namespaces"),
    "twinbus.client._sync.receiver": ("PairedReceiver", "RecordedReceiver", "record_receives"),
    "twinbus.client.partnership": ("Condition",),
    "twinbus.client.pairing_status": (
        "ApplicationErrors",
        "BacklogQueueStatus",
        "EntityState",
        "EntityStatus",
        "PairingStatus",
    ),
    "twinbus.pairing.sending._sync.sender": ("PairedSender",),
    "twinbus.pairing.backlog.provisioning": ("ListedQueue",),
    "twinbus.pairing.pairing_errors": (
        "AttemptTimeoutError",
        "BacklogConfigurationError",
        "BacklogNotReadyError",
        "BacklogUnavailableError",
        "EntityFailedOverError",
        "EntityNotFoundError",
        "EnvelopeTooLargeError",
        "ForkedClientError",
        "HungCallsError",
        "NamespacesSwappedError",
        "NoFreeLinkError",
        "PairedClientFaultedError",
        "ScheduledInBacklogError",
        "TwinbusError",
    ),
    "twinbus.pairing.events": (
        "BacklogQueueRestored",
        "BacklogQueueRetired",
        "BacklogReady",
        "BacklogWarning",
        "Diverted",
        "Event",
        "FailedOver",
        "Faulted",
        "LedgerAvailable",
        "LedgerUnavailable",
        "Moved",
        "NamespacesLookSwapped",
        "OversizeWarning",
        "PingFailed",
        "PingSent",
        "PumpStopped",
        "Recovered",
        "StarvedWarning",
        "Suspected",
        "SuspicionCleared",
    ),
    "twinbus.pairing.failover.entity_failover": ("Route",),
    "twinbus.pairing.namespace": ("Namespace",),
    "twinbus.pairing.options": ("SendAvailabilityOptions", "SyphonOptions"),
    "twinbus.pairing.failover.error_classification": ("FailoverPolicy",),
    "twinbus.pairing.sending.receipt": ("Receipt",),
}


def __getattr__(name: str) -> typing.Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
