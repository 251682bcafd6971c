"""Embedded namespace: a durable, Service-Bus-compatible server that runs in your process.

async with Namespace("contoso") as namespace:
    client = ServiceBusClient.from_connection_string(namespace.connection_string)

Names are imported on first use, so that reading a duration does not load the server.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from twinbus.servicebus.access_rights import Right
    from twinbus.servicebus.entity_descriptions import QueueDescription, SubscriptionDescription, TopicDescription

    from .auth.security import BearerToken, sign
    from .config.entity_tables import PolicyConfig, QueueConfig, TopicConfig
    from .config.namespace_file import Config, NamespaceConfig, load_config
    from .config.profile import AZURE, DEFAULT, Profile
    from .config.toml_table import ConfigError
    from .faults.fault_plan import ActiveFault, Fault, FaultError, FaultKind, FaultPoint
    from .server.namespace import Namespace
    from .server.thread_host import NamespaceThread
    from .storage.store import Durability, StoreError

__all__ = [
    "AZURE",
    "DEFAULT",
    "ActiveFault",
    "BearerToken",
    "Config",
    "ConfigError",
    "Durability",
    "Fault",
    "FaultError",
    "FaultKind",
    "FaultPoint",
    "Namespace",
    "NamespaceConfig",
    "NamespaceThread",
    "PolicyConfig",
    "Profile",
    "QueueConfig",
    "QueueDescription",
    "Right",
    "StoreError",
    "SubscriptionDescription",
    "TopicConfig",
    "TopicDescription",
    "load_config",
    "sign",
]

_MODULES = {
    "twinbus.emulator.auth.security": ("BearerToken", "sign"),
    "twinbus.emulator.config.entity_tables": ("PolicyConfig", "QueueConfig", "TopicConfig"),
    "twinbus.emulator.config.namespace_file": ("Config", "NamespaceConfig", "load_config"),
    "twinbus.emulator.config.profile": ("AZURE", "DEFAULT", "Profile"),
    "twinbus.emulator.config.toml_table": ("ConfigError",),
    "twinbus.emulator.faults.fault_plan": ("ActiveFault", "Fault", "FaultError", "FaultKind", "FaultPoint"),
    "twinbus.emulator.server.namespace": ("Namespace",),
    "twinbus.emulator.server.thread_host": ("NamespaceThread",),
    "twinbus.emulator.storage.store": ("Durability", "StoreError"),
    "twinbus.servicebus.access_rights": ("Right",),
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
