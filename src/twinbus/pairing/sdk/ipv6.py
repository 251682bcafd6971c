"""Lets the SDK connect to IPv6 addresses: it takes what follows the last colon of one for a port.

There is no public way around that, so the private function that splits host and port is replaced, once an IPv6 address
is to be connected to. All but bare IPv6 addresses is still left to the SDK's own.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
from collections.abc import Callable
from typing import Any

_MODULES = ("azure.servicebus._pyamqp._transport", "azure.servicebus._pyamqp.aio._transport_async")
_FUNCTION = "to_host_port"


def enable_ipv6() -> bool:
    """Do so; false if this version of the SDK has no such function, and so no way to connect to IPv6 addresses."""
    modules = []
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            modules.append(importlib.import_module(name))
    if len(modules) < len(_MODULES) or not all(callable(getattr(one, _FUNCTION, None)) for one in modules):
        return False
    for module in modules:
        original = getattr(module, _FUNCTION)
        if not isinstance(original, _HostAndPort):
            setattr(module, _FUNCTION, _HostAndPort(original))
    return True


class _HostAndPort:
    """Splits an authority as the SDK does, but leaves a bare IPv6 address whole."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __call__(self, host: str, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(ValueError):
            ipaddress.IPv6Address(host)
            return host, *args, *kwargs.values()
        return self._original(host, *args, **kwargs)
