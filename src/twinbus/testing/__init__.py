"""Live namespaces for the tests of programs that use Service Bus: a context manager, and a fixture for pytest.

def test_orders_survive_an_outage(twinbus_namespaces):
    primary, secondary = twinbus_namespaces
    primary.create_queue("orders")
    ...
    with primary.outage():
        place_order()

The names are found when they are first used: pytest loads the plugin in every run, also where nobody asks for it.
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from .namespaces import EmbeddedNamespace, TwinNamespaces, twin_namespaces

__all__ = ["EmbeddedNamespace", "TwinNamespaces", "twin_namespaces"]


def __getattr__(name: str) -> typing.Any:
    if name in __all__:
        from . import namespaces

        return getattr(namespaces, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
