"""Describes how to reach a namespace: host, port, TLS, WebSockets, proxy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

MAX_PORT = 65535
TLS_PORT = 5671
PLAIN_PORT = 5672
WEBSOCKET_TLS_PORT = 443
WEBSOCKET_PLAIN_PORT = 80

WEBSOCKET_PATH = "/$servicebus/websocket"

_HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]@?#]+)(:(?P<port>\d{1,5}))?")
_BELOW_AN_ENTITY = ("/$management", "/$deadletterqueue", "/$transfer")


class Proxy(Protocol):
    """An HTTP proxy that supports CONNECT."""

    @property
    def url(self) -> str:
        """Its URL, without user name and password."""

    @property
    def authorization(self) -> str | None:
        """The value of the Proxy-Authorization header, if the proxy needs one."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A namespace's address. `port` None means the default port. A proxy needs WebSockets over TLS.

    Raises `ValueError` for a host that is empty, a port out of bounds, or a proxy without WebSockets or TLS.
    """

    host: str
    port: int | None = None
    tls: bool = True
    websocket: bool = False
    proxy: Proxy | None = None

    def __post_init__(self) -> None:
        if not self.host or _HOST_AND_PORT.fullmatch(self._bracketed) is None:
            raise ValueError(f"host must be the name or address of a namespace, got {self.host!r}")
        if self.port is not None and not 1 <= self.port <= MAX_PORT:
            raise ValueError(f"port must be 1 to {MAX_PORT}, got {self.port}")
        if self.proxy is not None and not (self.websocket and self.tls):
            raise ValueError("proxy needs WebSockets over TLS")

    @classmethod
    def parse(cls, text: str, *, tls: bool = True) -> Endpoint:
        """Parse `host` or `host:port`, with or without `sb://`. Raises `ValueError`."""
        authority = re.sub(r"^(sb|amqps?)://", "", text.strip(), flags=re.IGNORECASE).rstrip("/")
        match = _HOST_AND_PORT.fullmatch(authority)
        if match is None:
            raise ValueError(f"expected an endpoint like sb://host or sb://host:port, got {text!r}")
        port = match["port"]
        return cls(match["host"].strip("[]").lower(), None if port is None else int(port), tls)

    @property
    def effective_port(self) -> int:
        if self.port is not None:
            return self.port
        if self.websocket:
            return WEBSOCKET_TLS_PORT if self.tls else WEBSOCKET_PLAIN_PORT
        return TLS_PORT if self.tls else PLAIN_PORT

    @property
    def websocket_url(self) -> str:
        """The URL that AMQP over WebSockets connects to."""
        return f"{'wss' if self.tls else 'ws'}://{self}{WEBSOCKET_PATH}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def audience(self, path: str) -> str:
        """The audience of an entity's token. Its dead-letter queue and management node share that token."""
        lower = path.lower()
        for suffix in _BELOW_AN_ENTITY:
            at = lower.find(suffix)
            if at >= 0:
                path, lower = path[:at], lower[:at]
        authority = self._bracketed if self.port is None else f"{self._bracketed}:{self.port}"
        return f"sb://{authority}/{path}"

    def __str__(self) -> str:
        return f"{self._bracketed}:{self.effective_port}"
