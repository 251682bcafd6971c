"""The embedded namespace: a durable, Service-Bus-compatible server that runs in a process of yours.

async with Namespace("contoso") as namespace:
    client = ServiceBusClient.from_connection_string(namespace.connection_string)

The names are found when they are first used: who only wants to read a duration need not load a server.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from .config import NamespaceConfig
    from .descriptions import QueueDescription, SubscriptionDescription, TopicDescription
    from .faults import Fault, FaultError, Kind, Operation
    from .namespace import Namespace
    from .profile import AZURE, DEFAULT, Profile
    from .store import Durability, StoreError

__all__ = [
    "AZURE",
    "DEFAULT",
    "Durability",
    "Fault",
    "FaultError",
    "Kind",
    "Namespace",
    "NamespaceConfig",
    "Operation",
    "Profile",
    "QueueDescription",
    "StoreError",
    "SubscriptionDescription",
    "TopicDescription",
]

_HOMES = {
    "config": ("NamespaceConfig",),
    "descriptions": ("QueueDescription", "SubscriptionDescription", "TopicDescription"),
    "faults": ("Fault", "FaultError", "Kind", "Operation"),
    "namespace": ("Namespace",),
    "profile": ("AZURE", "DEFAULT", "Profile"),
    "store": ("Durability", "StoreError"),
}


def __getattr__(name: str) -> typing.Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(f".{home}", __name__), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
