"""Reads the few private attributes of the SDK that twinbus can use; nothing here is needed.

Each function says what is done without it when a version of the SDK has renamed the attribute. Nothing is written or
replaced. `tests/pairing` also runs with every attribute hidden.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch


def attribute(owner: Any, *names: str) -> Any:
    """The value at the end of a chain of attributes; None as soon as one is missing or None."""
    for name in names:
        owner = getattr(owner, name, None)
        if owner is None:
            return None
    return owner


def connection(sender: Any) -> Any:
    """The connection of a sender or receiver; None if it has none, or the SDK does not say.

    The SDK forgets a connection that broke, or that could not be opened, and leaves its socket open. Without it the
    garbage collector closes the socket, with a warning.
    """
    return attribute(sender, "_handler", "_connection", "_transport")


def can_cut(sender: Any) -> bool:
    """Whether `cut` can end a call of this synchronous sender, which must be open.

    Otherwise calls are made in helper threads that can be abandoned.
    """
    return open_socket(connection(sender)) is not None


def cut(found: Any) -> None:
    """Cut a connection at once: a call that waits for it in another thread or task fails.

    The public `close` would first wait and write. Without it an abandoned call ends when the SDK gives up.
    """
    if found is None:
        return
    transport = asyncio_transport(found)
    if transport is not None:
        transport.abort()
        return
    sock = open_socket(found)
    if sock is not None:
        # Not closed: another thread may be reading, and the number of a closed socket may already be another file's.
        # Not SSLSocket.shutdown either, which would let that thread go on without encryption.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def asyncio_transport(found: Any) -> Any:
    """The transport of an asynchronous connection, to be aborted after it was closed; None if there is none.

    A closed WebSocket forgets it, while TLS is still saying goodbye. Without it that is left to the event loop.
    """
    over_tcp = attribute(found, "writer", "transport")
    return over_tcp or attribute(found, "sock", "_response", "connection", "transport")


def http_session(found: Any) -> Any:
    """The HTTP session of an asynchronous connection over WebSockets, to be closed after it; None if there is none."""
    return attribute(found, "session")


def open_socket(found: Any) -> socket.socket | None:
    """The socket of a synchronous connection, to be closed after it; None if there is none."""
    outer = attribute(found, "sock")
    inner = attribute(outer, "sock") or outer  # a WebSocket has the real one inside
    return inner if isinstance(inner, socket.socket) else None


def max_message_size(sender: Any) -> int | None:
    """The largest single message that the entity takes, in bytes; None if the SDK does not say.

    Then it is taken to be as large as a batch, which is right but for large messages on Premium.
    """
    size = attribute(sender, "_max_message_size_on_link")
    return int(size) if size else None


def batch_options(sender: Any) -> dict[str, Any]:
    """Arguments with which a `ServiceBusMessageBatch` is sent as it is; without them the SDK encodes it again."""
    transport = attribute(sender, "_amqp_transport")
    return {} if transport is None else {"amqp_transport": transport}


def messages_of(batch: ServiceBusMessageBatch) -> list[ServiceBusMessage] | None:
    """What is in a batch that an SDK sender made; None if the SDK does not say: such a batch cannot be diverted."""
    messages = attribute(batch, "_messages")
    return None if messages is None else list(messages)


def receiving(receiver: Any) -> tuple[Any, float | None]:
    """The mode of a receiver and how long it waits for messages by default; (None, None) if the SDK does not say."""
    return attribute(receiver, "_receive_mode"), attribute(receiver, "_max_wait_time")
