"""Answers what comes before the first AMQP frame: protocol headers and SASL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, FramingError, frame, split_frames
from twinbus.amqp.codec.performatives import decode_performative
from twinbus.amqp.codec.types import Array, Symbol

from ..auth.refusals import log_refusal
from ..auth.security import Grant, UnauthorizedError

if TYPE_CHECKING:
    from ..server.namespace import Namespace

MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
MAX_SASL_FRAME = 4096
HEADER_BYTES = 8
_OFFER = frame(0, amqp.SaslMechanisms(Array(0xA3, [Symbol(name) for name in MECHANISMS])), frame_type=TYPE_SASL)
_ACCEPTED, _REFUSED = (frame(0, amqp.SaslOutcome(code), frame_type=TYPE_SASL) for code in (0, 1))


class Handshake:
    """Answers the handshake of one connection, one step at a time.

    `is_done` if AMQP frames follow, `is_refused` if the connection must be closed. `grant` is the result of SASL PLAIN.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._in_sasl = False
        self._is_authenticated = False
        self.is_done = False
        self.is_refused = False
        self.grant: Grant | None = None

    def read(self, buffer: bytearray) -> bytes:
        """Consume the next step from the buffer and return its answer, empty if more bytes are needed.

        Raises `FramingError` or `DecodeError` for malformed input.
        """
        return self._read_sasl(buffer) if self._in_sasl else self._read_header(buffer)

    def _read_header(self, buffer: bytearray) -> bytes:
        if len(buffer) < HEADER_BYTES:
            return b""
        header = bytes(buffer[:HEADER_BYTES])
        del buffer[:HEADER_BYTES]
        if header == SASL_HEADER and not self._is_authenticated:
            self._in_sasl = True
            return SASL_HEADER + _OFFER
        if header == AMQP_HEADER and (self._is_authenticated or not self._namespace.profile.enforces):
            self.is_done = True
            return AMQP_HEADER
        # The specification: answer with a supported header, then close.
        self.is_refused = True
        return SASL_HEADER

    def _read_sasl(self, buffer: bytearray) -> bytes:
        for frame_type, _, body in split_frames(buffer, MAX_SASL_FRAME):
            if frame_type != TYPE_SASL:
                raise FramingError(f"expected a SASL frame, got a frame of type {frame_type}")
            init, _ = decode_performative(body, 0)
            if not isinstance(init, amqp.SaslInit):
                raise FramingError(f"expected a sasl-init, got {type(init).__name__}")
            self._in_sasl = False
            try:
                self.grant = _authenticate(init, self._namespace)
            except UnauthorizedError:
                self.is_refused = True
                return _REFUSED
            self._is_authenticated = True
            return _ACCEPTED
        return b""


def _authenticate(init: amqp.SaslInit, namespace: Namespace) -> Grant | None:
    """The grant of SASL PLAIN (a policy's name and key). Other mechanisms prove nothing: clients put tokens later.

    Raises:
        UnauthorizedError: the mechanism is unknown, or the name and key are wrong.
    """
    if init.mechanism not in MECHANISMS:
        raise UnauthorizedError("The SASL mechanism is not one of those that were offered.")
    if init.mechanism != "PLAIN":
        return None
    try:
        _, name, key = (part.decode() for part in (init.initial_response or b"").split(b"\0"))
    except ValueError as error:  # not three parts, or not UTF-8
        raise UnauthorizedError("The name and key of SASL PLAIN are malformed.") from error
    try:
        return namespace.grant_for_key(name, key)
    except UnauthorizedError as error:
        log_refusal(namespace, "SASL PLAIN for", namespace.name, error.message, lambda: [name])
        raise
