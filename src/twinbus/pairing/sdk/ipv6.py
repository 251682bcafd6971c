"""Lets the SDK connect to IPv6 addresses, whose last colon it takes for a port separator.

There is no public way around that. So the private function that splits host and port is replaced once an IPv6 address
is used. It handles bare IPv6 addresses and leaves the rest to the SDK's function.
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
    """Patch the SDK; return False if this version has no such function, and cannot connect to IPv6 addresses."""
    modules = []
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            modules.append(importlib.import_module(name))
    if len(modules) < len(_MODULES) or not all(callable(getattr(module, _FUNCTION, None)) for module in modules):
        return False
    for module in modules:
        original = getattr(module, _FUNCTION)
        if not isinstance(original, _HostAndPort):
            setattr(module, _FUNCTION, _HostAndPort(original))
    return True


class _HostAndPort:
    """Split an authority as the SDK does, but keep a bare IPv6 address whole."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __call__(self, host: str, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(ValueError):
            ipaddress.IPv6Address(host)
            return host, *args, *kwargs.values()
        return self._original(host, *args, **kwargs)
