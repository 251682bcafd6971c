"""Makes the SDK connect to the given address: it drops ports over WebSockets and misreads IPv6."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from azure.servicebus import TransportType

from twinbus.servicebus.connection_strings import MAX_PORT

from .ipv6 import enable_ipv6
from .version import has_option

_TLS_PORT, _PLAIN_PORT = 5671, 5672
_WEBSOCKET_TLS_PORT, _WEBSOCKET_PLAIN_PORT = 443, 80


def connection_options(
    authority: str, use_tls: bool, uses_websocket: bool, http_proxy: dict[str, Any] | None, custom_address: str | None
) -> dict[str, Any]:
    """Return the client options that make the SDK connect to a host and port.

    `custom_address` is the user's own option `custom_endpoint_address`, which is kept.

    Raises:
        ValueError: the address is malformed, or one that the SDK cannot connect to.
    """
    try:
        address = urlsplit(authority if "//" in authority else f"//{authority}")
        host, port = address.hostname or "", address.port
    except ValueError:
        raise ValueError(
            f"fully_qualified_namespace must be a host, or host:port with a port of 1 to {MAX_PORT}, not {authority!r}"
        ) from None
    is_ipv6 = ":" in host
    # Before 7.14 a custom address always means WebSockets.
    if is_ipv6 and (uses_websocket or not has_option("use_tls") or not enable_ipv6()):
        raise ValueError(
            f"azure-servicebus cannot connect to the IPv6 address {host}{' over WebSockets' if uses_websocket else ''}:"
            " give a host name for it"
        )
    options: dict[str, Any] = {}
    if uses_websocket:
        options = {"transport_type": TransportType.AmqpOverWebsocket, "http_proxy": http_proxy}
        port = port or (_WEBSOCKET_TLS_PORT if use_tls else _WEBSOCKET_PLAIN_PORT)
        if custom_address is None and (port, use_tls) != (_WEBSOCKET_TLS_PORT, True):
            options["custom_endpoint_address"] = f"sb://{host}:{port}"
    elif is_ipv6 and custom_address is None:
        port = port or (_TLS_PORT if use_tls else _PLAIN_PORT)
        # With a custom address the SDK uses WebSockets, unless told otherwise.
        options = {"transport_type": TransportType.Amqp, "custom_endpoint_address": f"sb://[{host}]:{port}"}
    return options
