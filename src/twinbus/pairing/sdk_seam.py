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
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSender,
)
from azure.servicebus._common.tracing import TraceAttributes
from azure.servicebus._pyamqp.constants import SessionState, SessionTransferState
from azure.servicebus._pyamqp.message import Message
from azure.servicebus._pyamqp.performatives import TransferFrame
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio import ServiceBusReceiver as AsyncServiceBusReceiver
from azure.servicebus.aio import ServiceBusSender as AsyncServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage

from .sdk_encoding import encoded
from .tokens import AbortableCredential

AnySender = ServiceBusSender | AsyncServiceBusSender

_MAPPED, _OKAY = SessionState.MAPPED, SessionTransferState.OKAY


# ---- connections ----


def prepare(sender: AnySender) -> None:
    """Make a new sender fit to be given up on; call it before the sender is opened.

    The SDK forgets the connection of a failed opening with its socket still open, hides the socket while TLS shakes
    hands, waits for a credential for as long as that takes, and up to a second for its keep-alive to wake up whenever
    a link breaks. So the connection is remembered, handshake and credential made reachable, and keeping alive left to
    `listen`.
    """
    create = sender._create_handler
    config = sender._config
    interval, config.keep_alive = config.keep_alive, 0
    config.retry_total = 0  # to try again is our business, and no opening may outlive the one who gave up on it

    def create_and_remember(auth: Any) -> None:
        create(auth)
        sender._twinbus_handler = sender._handler  # type: ignore[union-attr]
        _keep_awake(sender)

    sender._create_handler = create_and_remember  # type: ignore[method-assign]
    sender._twinbus_keep_alive = float(interval or 0)  # type: ignore[union-attr]
    # What the SDK signs itself has a type, and needs nobody's answer.
    if isinstance(sender, ServiceBusSender) and not hasattr(sender._credential, "token_type"):
        sender._credential = sender._twinbus_tokens = AbortableCredential(  # type: ignore[attr-defined, assignment]
            sender._credential
        )
    if isinstance(sender, ServiceBusSender) and config.use_tls:
        config.ssl_context = sender._twinbus_tls = _ReachableTls(  # type: ignore[attr-defined, assignment]
            config.ssl_context or _tls_context(config.connection_verify)
        )


def abort(sender: AnySender | AsyncServiceBusReceiver) -> None:
    """Cut the connection, whatever it is doing: what waits for it in another thread or task fails at once.

    Also while it is being opened, except in the moment of the TCP connect, which the SDK bounds to a second; so
    somebody who gave up on an opening has to call it again. The public `close` would first wait and write. For an
    asynchronous sender it must be called where its event loop runs.
    """
    tokens = getattr(sender, "_twinbus_tokens", None)
    if tokens is not None:
        tokens.abort()
    tls = getattr(sender, "_twinbus_tls", None)
    if tls is not None and tls.handshaking is not None:
        _shut_down(tls.handshaking)
    transport = _transport(sender)
    if transport is None:
        return
    if isinstance(sender, (AsyncServiceBusSender, AsyncServiceBusReceiver)):
        _abort_async(transport)
    else:
        # A WebSocket has the real one inside.
        _shut_down(getattr(transport.sock, "sock", transport.sock))


def forgotten(sender: AnySender) -> Any:
    """Close the socket that the SDK's `close` leaves open after a failure; a coroutine for an asynchronous sender.

    None if there was no connection, or it was not aborted.
    """
    transport = _transport(sender)
    if transport is None:
        return None
    session = getattr(transport, "session", None)
    # An asynchronous WebSocket that did not come about leaves its HTTP session behind, and cannot be closed itself.
    return transport.close() if session is None or transport.sock is not None else session.close()


def is_open(sender: AnySender) -> bool:
    """Whether the link can still be used; the SDK itself opens a new one without a word."""
    handler = sender._handler
    link = handler._link if sender._running and handler is not None else None
    # 3 is ATTACHED; asking the link itself would raise its error.
    return link is not None and link.state is not None and link.state.value == 3


def opened(sender: AnySender) -> float:
    """Remember the connection of a sender that was just opened: if it breaks, the SDK drops it with its socket open.

    From now on its messages are sent faster. Returns after how many idle seconds `listen` is to be called; 0: never.
    """
    _transport(sender)
    for name in _ASKED_WHETHER_READY:
        vars(sender._handler).pop(name, None)
    _quicken(sender)
    return float(getattr(sender, "_twinbus_keep_alive", 0.0))


# An opening takes about ten steps.
_STEPS = 20
_ASKED_WHETHER_READY = ("client_ready", "client_ready_async")


def _keep_awake(sender: AnySender) -> None:
    """Make a new connection be opened without naps: the SDK takes one of 50 ms after each step, half a second in all.

    A step waits for the peer, so that this is no busy loop; and if nothing comes of so many steps there is a nap.
    """
    handler: Any = sender._handler
    if isinstance(sender, ServiceBusSender):
        is_ready = handler.client_ready

        def is_ready_soon() -> bool:
            return any(is_ready() for _ in range(_STEPS))

        handler.client_ready = is_ready_soon
    else:
        is_ready_async = handler.client_ready_async

        async def is_ready_soon_async() -> bool:
            for _ in range(_STEPS):
                if await is_ready_async():
                    return True
            return False

        handler.client_ready_async = is_ready_soon_async


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


def _transport(sender: AnySender | AsyncServiceBusReceiver) -> Any:
    handler = getattr(sender, "_twinbus_handler", None) or sender._handler
    connection = None if handler is None else handler._connection
    if connection is None:
        return getattr(sender, "_twinbus_transport", None)
    sender._twinbus_transport = connection._transport  # type: ignore[union-attr]
    return connection._transport


def _shut_down(sock: socket.socket | None) -> None:
    if sock is None:
        return
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


# ---- transfers ----

# More than a transfer has besides its message.
_TRANSFER_ROOM = 512
_COUNTERS = ("next_outgoing_id", "remote_incoming_window", "outgoing_window")


class _WholeTransfer(TransferFrame):
    """The transfer of a whole message, without the last fields, none of which it needs: each takes time to encode."""

    payload: Any = b""


class _Encoded(Message):
    """Stands in for a message whose bytes are made: it seems to be empty to the SDK, which has nothing to encode."""

    message: Message
    payload: bytes | bytearray


def _stand_in(message: Message) -> _Encoded:
    made = _Encoded()
    made.message, made.payload, made._code = message, encoded(message), message._code  # type: ignore[attr-defined]
    return made


def _quicken(sender: AnySender) -> None:
    """Make a sender that is open write a message that fits one frame at once, and remember how large it was.

    The SDK takes its time to encode a message, and to see whether it has to be split it encodes its frame twice; that
    is a fifth of all that a send takes. What has to be split, traced or waited for is left to the SDK, as is everything
    if it has changed inside.
    """
    handler: Any = sender._handler
    session: Any = None if handler is None else handler._session
    if session is None or not all(hasattr(session, name) for name in _COUNTERS):
        return
    connection, split = session._connection, session._outgoing_transfer
    link = handler._link
    send = link.send_transfer

    def send_encoded(message: Any, **options: Any) -> Any:
        return send(_stand_in(message) if isinstance(message, Message) else message, **options)

    def transfer(delivery: Any, trace: Any) -> Any:
        frame, message = delivery.frame, delivery.message
        if type(message) is _Encoded:
            frame["payload"], message = message.payload, message.message
        size = len(frame["payload"])
        # Not the message itself: it may be large, and would be kept until the next one.
        sender._twinbus_sent = id(message), size  # type: ignore[union-attr]
        is_whole = size + _TRANSFER_ROOM <= connection._remote_max_frame_size
        if not is_whole or trace or session.state is not _MAPPED or session.remote_incoming_window <= 0:
            return split(delivery, trace)
        number = frame["delivery_id"] = session.next_outgoing_id
        fields = frame["handle"], number, frame["delivery_tag"], frame["message_format"], frame["settled"]
        written = tuple.__new__(_WholeTransfer, fields)
        written.payload, frame["payload"] = frame["payload"], b""
        session.next_outgoing_id += 1
        session.remote_incoming_window -= 1
        session.outgoing_window -= 1
        delivery.transfer_state = _OKAY
        # A coroutine for an asynchronous sender, as the SDK's own is.
        return connection._process_outgoing_frame(session.channel, written)

    session._outgoing_transfer = transfer
    link.send_transfer = send_encoded


# ---- receivers ----


def how_it_receives(
    receiver: ServiceBusReceiver | AsyncServiceBusReceiver,
) -> tuple[ServiceBusReceiveMode, float | None]:
    """The mode of a receiver, and how long it waits for messages if nobody says; both were given to the client only."""
    return receiver._receive_mode, receiver._max_wait_time


# ---- sizes ----


def max_message_size(sender: AnySender) -> int:
    """The largest message the entity takes, in bytes; known only after the link was opened."""
    return int(sender._max_message_size_on_link)


def max_batch_size(sender: AnySender) -> int:
    """The largest batch the entity takes, in bytes; known only after the link was opened."""
    return int(sender._max_batch_size_on_link)


def body_size(message: ServiceBusMessage) -> int | None:
    """The bytes of a body of one data section, at a glance; None for others. The public attributes take their time."""
    data: Any = message.raw_amqp_message._data_body
    return len(data[0]) if data is not None and len(data) == 1 else None


# ---- messages ----


class _EncodingOnce(PyamqpTransport):
    """What a batch has its messages measured and added by. The SDK encodes them for either; half of that is saved."""

    def __init__(self) -> None:
        self._encoded: bytes | bytearray = b""

    def get_message_encoded_size(self, message: Any) -> int:  # type: ignore[override]
        self._encoded = encoded(message)
        return len(self._encoded)

    def add_batch(self, sb_message_batch: ServiceBusMessageBatch, outgoing_sb_message: Any) -> None:  # type: ignore[override]
        sb_message_batch._message[5].append(self._encoded)


def encoding_once() -> dict[str, Any]:
    """Arguments for a `ServiceBusMessageBatch` that is filled faster."""
    return {"amqp_transport": _EncodingOnce()}


def new_batch(max_size_in_bytes: int) -> ServiceBusMessageBatch:
    """A batch that is filled faster than one of the SDK's; it holds the same bytes."""
    return ServiceBusMessageBatch(max_size_in_bytes, **encoding_once())


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


def tracing_attributes(host: str, entity: str) -> dict[str, str | int]:
    """What the SDK's own senders have written into the trace of a message in a batch."""
    return {
        TraceAttributes.TRACE_NET_PEER_NAME_ATTRIBUTE: host,
        TraceAttributes.TRACE_MESSAGING_DESTINATION_ATTRIBUTE: entity,
    }


def suit(payload: ServiceBusMessage | ServiceBusMessageBatch | None, sender: AnySender) -> None:
    """Make a batch one of the sender's own: the SDK makes it anew, and its messages too, if the other kind made it."""
    if isinstance(payload, ServiceBusMessageBatch):
        payload._amqp_transport = sender._amqp_transport


def messages_of(batch: ServiceBusMessageBatch) -> list[ServiceBusMessage]:
    """What is in a batch; nothing public tells."""
    return list(batch._messages)
