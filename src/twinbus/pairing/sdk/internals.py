"""Reads the few private attributes of the SDK that twinbus can use; all are optional.

Each function says what happens without it if an SDK version has renamed the attribute. Nothing is written or replaced.
`tests/pairing` also runs with every attribute hidden.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch


def attribute(owner: Any, *names: str) -> Any:
    """Return the value at the end of a chain of attributes; None as soon as one is missing or None."""
    for name in names:
        owner = getattr(owner, name, None)
        if owner is None:
            return None
    return owner


def connection(sender: Any) -> Any:
    """Return the connection of a sender or receiver; None if it has none, or the SDK hides it.

    The SDK forgets a broken connection, or one that could not be opened, and leaves its socket open. Without this
    function the garbage collector closes the socket, with a warning.
    """
    return attribute(sender, "_handler", "_connection", "_transport")


def can_cut(sender: Any) -> bool:
    """Return whether `cut` can end a call of this synchronous sender, which must be open.

    Otherwise calls are made in helper threads that can be abandoned.
    """
    return open_socket(connection(sender)) is not None


def cut(sdk_connection: Any) -> None:
    """Cut a connection at once: a call that waits for it in another thread or task fails.

    The public `close` would first wait and write. Without this function an abandoned call ends when the SDK gives up.
    """
    if sdk_connection is None:
        return
    transport = asyncio_transport(sdk_connection)
    if transport is not None:
        transport.abort()
        return
    sock = open_socket(sdk_connection)
    if sock is not None:
        # Not closed: another thread may be reading, and the descriptor of a closed socket may already be reused. Not
        # SSLSocket.shutdown either, which would let that thread go on without encryption.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def asyncio_transport(sdk_connection: Any) -> Any:
    """Return the transport of an asynchronous connection, to abort after closing; None if there is none.

    A closed WebSocket forgets it while TLS is still closing. Without this function the event loop closes it.
    """
    over_tcp = attribute(sdk_connection, "writer", "transport")
    return over_tcp or attribute(sdk_connection, "sock", "_response", "connection", "transport")


def http_session(sdk_connection: Any) -> Any:
    """Return the HTTP session of an asynchronous WebSocket connection, to close after it; None if there is none."""
    return attribute(sdk_connection, "session")


def open_socket(sdk_connection: Any) -> socket.socket | None:
    """Return the socket of a synchronous connection, to close after it; None if there is none."""
    outer = attribute(sdk_connection, "sock")
    inner = attribute(outer, "sock") or outer  # a WebSocket wraps the real one
    return inner if isinstance(inner, socket.socket) else None


def max_message_size(sender: Any) -> int | None:
    """Return the largest single message of the entity in bytes; None if the SDK hides it.

    Then the batch limit is used, which is right except for large messages on Premium.
    """
    size = attribute(sender, "_max_message_size_on_link")
    return int(size) if size else None


def batch_options(sender: Any) -> dict[str, Any]:
    """Return options to send a `ServiceBusMessageBatch` as it is; without them the SDK encodes it again."""
    transport = attribute(sender, "_amqp_transport")
    return {} if transport is None else {"amqp_transport": transport}


def messages_of(batch: ServiceBusMessageBatch) -> list[ServiceBusMessage] | None:
    """Return the messages of a batch made by an SDK sender; None if hidden: it then cannot be diverted."""
    messages = attribute(batch, "_messages")
    return None if messages is None else list(messages)


def receiving(receiver: Any) -> tuple[Any, float | None]:
    """Return a receiver's mode and default wait for messages; (None, None) if the SDK hides them."""
    return attribute(receiver, "_receive_mode"), attribute(receiver, "_max_wait_time")
