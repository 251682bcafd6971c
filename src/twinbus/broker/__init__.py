"""The embedded namespace: a durable, Service-Bus-compatible server that runs in a process of yours.

async with Namespace("contoso") as namespace:
    client = ServiceBusClient.from_connection_string(namespace.connection_string)
"""

from __future__ import annotations

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
