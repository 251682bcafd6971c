"""Runs live namespaces in tests of programs that use Service Bus: a context manager and a pytest fixture.

def test_orders_survive_an_outage(twinbus_namespaces):
    primary, secondary = twinbus_namespaces
    primary.create_queue("orders")
    ...
    with primary.outage():
        place_order()

Names are imported on first use: pytest loads the plugin in every run, even if no test uses it.
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from twinbus.emulator import AZURE, DEFAULT, ActiveFault, Fault, FaultError, FaultKind, FaultPoint, Profile

    from .embedded_namespaces import EmbeddedNamespace, TwinNamespaces, twin_namespaces

__all__ = [
    "AZURE",
    "DEFAULT",
    "ActiveFault",
    "EmbeddedNamespace",
    "Fault",
    "FaultError",
    "FaultKind",
    "FaultPoint",
    "Profile",
    "TwinNamespaces",
    "twin_namespaces",
]

_OWN = ("EmbeddedNamespace", "TwinNamespaces", "twin_namespaces")


def __getattr__(name: str) -> typing.Any:
    if name in _OWN:
        from . import embedded_namespaces

        return getattr(embedded_namespaces, name)
    if name in __all__:
        from twinbus import emulator

        return getattr(emulator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
