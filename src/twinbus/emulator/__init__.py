"""Embedded namespace: a durable, Service-Bus-compatible server that runs in your process.

async with Namespace("contoso") as namespace:
    client = ServiceBusClient.from_connection_string(namespace.connection_string)

Names are imported on first use, so that reading a duration does not load the server.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from twinbus.servicebus.entity_descriptions import QueueDescription, SubscriptionDescription, TopicDescription

    from .config.namespace_file import NamespaceConfig
    from .config.profile import AZURE, DEFAULT, Profile
    from .faults.fault_plan import Fault, FaultError, FaultKind, FaultPoint
    from .server.namespace import Namespace
    from .storage.store import Durability, StoreError

__all__ = [
    "AZURE",
    "DEFAULT",
    "Durability",
    "Fault",
    "FaultError",
    "FaultKind",
    "FaultPoint",
    "Namespace",
    "NamespaceConfig",
    "Profile",
    "QueueDescription",
    "StoreError",
    "SubscriptionDescription",
    "TopicDescription",
]

_MODULES = {
    "twinbus.emulator.config.namespace_file": ("NamespaceConfig",),
    "twinbus.emulator.config.profile": ("AZURE", "DEFAULT", "Profile"),
    "twinbus.emulator.faults.fault_plan": ("Fault", "FaultError", "FaultKind", "FaultPoint"),
    "twinbus.emulator.server.namespace": ("Namespace",),
    "twinbus.emulator.storage.store": ("Durability", "StoreError"),
    "twinbus.servicebus.entity_descriptions": ("QueueDescription", "SubscriptionDescription", "TopicDescription"),
}


def __getattr__(name: str) -> typing.Any:
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(importlib.import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
