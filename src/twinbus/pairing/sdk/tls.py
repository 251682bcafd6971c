"""Creates one TLS context for all connections of a client, with a bounded handshake."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import certifi

from .deadline import seconds_left


class ClientTls(ssl.SSLContext):
    """A context with a handshake timeout. The SDK would wait without a bound, and hides its socket meanwhile."""

    handshake_seconds: float

    def wrap_socket(self, sock: socket.socket, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        """Wrap a socket; raise `TimeoutError` at the call's deadline, or after `handshake_seconds`."""
        before = sock.gettimeout()
        sock.settimeout(seconds_left(self.handshake_seconds) or 0.001)
        wrapped = super().wrap_socket(sock, *arguments, **options)
        wrapped.settimeout(before)
        return wrapped


def client_tls(certificate_authorities: str | None, handshake_seconds: float) -> ClientTls:
    """Return a context that trusts the authorities in a file, or certifi's."""
    context = ClientTls(ssl.PROTOCOL_TLS_CLIENT)
    context.handshake_seconds = handshake_seconds
    context.load_verify_locations(certificate_authorities or certifi.where())
    return context
