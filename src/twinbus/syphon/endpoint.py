"""Where a namespace is and how it is reached: host, port, TLS, WebSockets, proxy."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from twinbus.pairing.connection_strings import MAX_PORT, ConnectionString
from twinbus.pairing.http_proxy import HttpProxy
from twinbus.pairing.namespaces import Namespace

from .credentials import Credential, SasKey, SasToken

TLS_PORT = 5671
PLAIN_PORT = 5672
WEBSOCKET_TLS_PORT = 443
WEBSOCKET_PLAIN_PORT = 80

WEBSOCKET_PATH = "/$servicebus/websocket"

_HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]@?#]+)(:(?P<port>\d{1,5}))?")
_BELOW_AN_ENTITY = ("/$management", "/$deadletterqueue", "/$transfer")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A namespace's address. Without a port it is the usual one. A proxy is used for WebSockets over TLS only.

    Raises `ValueError` for a host that is empty, a port out of bounds, or a proxy without WebSockets or TLS.
    """

    host: str
    port: int | None = None
    tls: bool = True
    websocket: bool = False
    proxy: HttpProxy | None = None

    def __post_init__(self) -> None:
        if not self.host or _HOST_AND_PORT.fullmatch(self._bracketed) is None:
            raise ValueError(f"host must be the name or address of a namespace, not {self.host!r}")
        if self.port is not None and not 1 <= self.port <= MAX_PORT:
            raise ValueError(f"port must be 1 to {MAX_PORT}, not {self.port}")
        if self.proxy is not None and not (self.websocket and self.tls):
            raise ValueError("proxy needs WebSockets over TLS")

    @classmethod
    def parse(cls, text: str, *, tls: bool = True) -> Endpoint:
        """Read `host`, `host:port`, or either with `sb://` before it; raises `ValueError`."""
        authority = re.sub(r"^(sb|amqps?)://", "", text.strip(), flags=re.IGNORECASE).rstrip("/")
        match = _HOST_AND_PORT.fullmatch(authority)
        if match is None:
            raise ValueError(f"an endpoint is sb://host or sb://host:port, not {text!r}")
        port = match["port"]
        return cls(match["host"].strip("[]").lower(), None if port is None else int(port), tls)

    @classmethod
    def of(cls, namespace: Namespace) -> Endpoint:
        """Where the SDK's clients of a namespace connect to, and how; raises `ValueError`."""
        namespace.check_proxy()
        parsed = cls.parse(namespace.fully_qualified_namespace, tls=namespace.use_tls)
        return replace(parsed, websocket=namespace.uses_websocket, proxy=namespace.proxy)

    @property
    def dialled_port(self) -> int:
        if self.port is not None:
            return self.port
        if self.websocket:
            return WEBSOCKET_TLS_PORT if self.tls else WEBSOCKET_PLAIN_PORT
        return TLS_PORT if self.tls else PLAIN_PORT

    @property
    def websocket_url(self) -> str:
        """What an AMQP connection over WebSockets asks for."""
        return f"{'wss' if self.tls else 'ws'}://{self}{WEBSOCKET_PATH}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def audience(self, path: str) -> str:
        """What a token for an entity is for. Its dead letters and management node need no token of their own."""
        lower = path.lower()
        for suffix in _BELOW_AN_ENTITY:
            at = lower.find(suffix)
            if at >= 0:
                path, lower = path[:at], lower[:at]
        authority = self._bracketed if self.port is None else f"{self._bracketed}:{self.port}"
        return f"sb://{authority}/{path}"

    def __str__(self) -> str:
        return f"{self._bracketed}:{self.dialled_port}"


def from_connection_string(text: str) -> tuple[Endpoint, Credential]:
    """The endpoint and the credential of a connection string.

    Raises:
        ValueError: a part is missing or malformed. The message never holds a key or a token.
    """
    parts = ConnectionString.parse(text)
    endpoint = Endpoint(parts.host.strip("[]").lower(), parts.port, tls=parts.use_tls)
    if parts.signature:
        return endpoint, SasToken(parts.signature)
    return endpoint, SasKey(parts.key_name, parts.key)
