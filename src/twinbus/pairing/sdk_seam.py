"""The only place that looks behind the SDK's public face.

Each function says what the public part cannot do. The tests of this module run against the installed SDK: a version
that moves these things fails there, and not in an outage.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any

import certifi
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.aio import ServiceBusSender as AsyncServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage

AnySender = ServiceBusSender | AsyncServiceBusSender


# ---- connections ----


def prepare(sender: AnySender) -> None:
    """Make a new sender fit to be given up on; call it before the sender is opened.

    The SDK forgets the connection of a failed opening with its socket still open, hides the socket while TLS shakes
    hands, and waits up to a second for its keep-alive to wake up whenever a link breaks. So the connection is
    remembered, the handshake made reachable, and keeping alive left to `keep_alive`.
    """
    create = sender._create_handler
    config = sender._config
    interval, config.keep_alive = config.keep_alive, 0

    def create_and_remember(auth: Any) -> None:
        create(auth)
        sender._twinbus_handler = sender._handler  # type: ignore[union-attr]

    sender._create_handler = create_and_remember  # type: ignore[method-assign]
    sender._twinbus_keep_alive = float(interval or 0)  # type: ignore[union-attr]
    if isinstance(sender, ServiceBusSender) and config.use_tls:
        config.ssl_context = sender._twinbus_tls = _ReachableTls(  # type: ignore[attr-defined, assignment]
            config.ssl_context or _tls_context(config.connection_verify)
        )


def abort(sender: AnySender) -> None:
    """Cut the connection, whatever it is doing: what waits for it in another thread or task fails at once.

    Also while it is being opened, except in the moment of the TCP connect, which the SDK bounds to a second; so
    somebody who gave up on an opening has to call it again. The public `close` would first wait and write. For an
    asynchronous sender it must be called where its event loop runs.
    """
    tls = getattr(sender, "_twinbus_tls", None)
    if tls is not None and tls.handshaking is not None:
        _shut_down(tls.handshaking)
    transport = _transport(sender)
    if transport is None:
        return
    if isinstance(sender, AsyncServiceBusSender):
        _abort_async(transport)
    elif transport.sock is not None:
        # A WebSocket has the real one inside.
        _shut_down(getattr(transport.sock, "sock", transport.sock))


def is_open(sender: AnySender) -> bool:
    """Whether the link can still be used; the SDK itself opens a new one without a word."""
    handler = sender._handler
    link = handler._link if sender._running and handler is not None else None
    # 3 is ATTACHED; asking the link itself would raise its error.
    return link is not None and link.state is not None and link.state.value == 3


def keep_alive_interval(sender: AnySender) -> float:
    """After how many idle seconds `listen` is to be called; 0: never."""
    return float(getattr(sender, "_twinbus_keep_alive", 0.0))


def listen(sender: AnySender) -> Any:
    """Read what has come and say that we are alive; a coroutine for an asynchronous sender, which must be awaited.

    It is what the SDK's keep-alive does. Nobody reads from an idle sender otherwise.
    """
    handler = sender._handler
    connection = None if handler is None else handler._connection
    if handler is None or connection is None:
        raise ConnectionError("the link was closed")
    return connection.listen(wait=handler._socket_timeout)


class _ReachableTls:
    """Stands in for the `SSLContext` of one sender, so that its socket can be reached during the handshake.

    `SSLContext.wrap_socket` takes the socket away from the SDK and returns another one only after the handshake.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.handshaking: socket.socket | None = None

    def wrap_socket(self, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        options["do_handshake_on_connect"] = False
        wrapped = self._context.wrap_socket(sock, **options)
        self.handshaking = wrapped
        try:
            wrapped.do_handshake()
        except BaseException:
            wrapped.close()
            raise
        finally:
            self.handshaking = None
        return wrapped


def _tls_context(certificate_authorities: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificate_authorities or certifi.where())
    return context


def _transport(sender: AnySender) -> Any:
    handler = getattr(sender, "_twinbus_handler", None) or sender._handler
    connection = None if handler is None else handler._connection
    return None if connection is None else connection._transport


def _shut_down(sock: socket.socket) -> None:
    # Not closed: another thread may be reading, and the number of a closed socket may already be another file's. Not
    # SSLSocket.shutdown either, which would let that thread go on without encryption.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _abort_async(transport: Any) -> None:
    writer = getattr(transport, "writer", None)
    if writer is not None:
        writer.transport.abort()
        return
    websocket = getattr(transport, "sock", None)
    connection = None if websocket is None else websocket._response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


# ---- sizes ----


def max_message_size(sender: AnySender) -> int:
    """The largest message the entity takes, in bytes; known only after the link was opened."""
    return int(sender._max_message_size_on_link)


def max_batch_size(sender: AnySender) -> int:
    """The largest batch the entity takes, in bytes; known only after the link was opened."""
    return int(sender._max_batch_size_on_link)


def body_size(message: ServiceBusMessage) -> int | None:
    """The bytes of a data body, for the price of a look; None for the other kinds, which have to be encoded."""
    raw = message.raw_amqp_message
    data = raw._data_body
    if data is None:
        return 0 if raw._value_body is None and raw._sequence_body is None else None
    return len(data[0]) if len(data) == 1 else sum(map(len, data))


def encoded_size(message: ServiceBusMessage) -> int:
    """The bytes of a message on the wire. The SDK tells them of batches only."""
    transport = ServiceBusMessageBatch()._amqp_transport
    return int(transport.get_message_encoded_size(transport.to_outgoing_amqp_message(message.raw_amqp_message)))


# ---- messages ----


def from_annotated(annotated: AmqpAnnotatedMessage) -> ServiceBusMessage:
    """The other form in which the SDK takes messages, as the usual one; it shares its parts."""
    return ServiceBusMessage(None, message=None, raw_amqp_message=annotated)


def snapshot(message: ServiceBusMessage) -> Any:
    """What a batch has just encoded of a message, unaffected by what its owner does to the message later."""
    outgoing: Any = message._message
    properties = outgoing.application_properties
    return outgoing._replace(application_properties=dict(properties)) if properties else outgoing


def from_snapshot(taken: Any) -> ServiceBusMessage:
    """A message with the content of a snapshot."""
    return ServiceBusMessage(None, message=taken)


def messages_of(batch: ServiceBusMessageBatch) -> list[ServiceBusMessage]:
    """What is in a batch; nothing public tells."""
    return list(batch._messages)


def encoded_sizes(batch: ServiceBusMessageBatch) -> list[int]:
    """The bytes of each message in a batch."""
    return [len(encoded) for encoded in batch._message[5]]  # type: ignore[index]
