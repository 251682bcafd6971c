"""The frame bodies of AMQP 1.0, of SASL, and the outcomes of a delivery, as named tuples.

A performative arrives as `Attach(name="…", handle=0, …)` with plain Python values and `None` for what was left
out; `encode_performative` writes one with the types the specification asks for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .decoding import decode_plain
from .encoding import encode_into
from .types import DecodeError, Described, Symbol, UByte, UInt, ULong, UShort

ROLE_SENDER = False
ROLE_RECEIVER = True


class Open(NamedTuple):
    container_id: str = ""
    hostname: str | None = None
    max_frame_size: int | None = None
    channel_max: int | None = None
    idle_time_out: int | None = None
    outgoing_locales: Any = None
    incoming_locales: Any = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Begin(NamedTuple):
    remote_channel: int | None = None
    next_outgoing_id: int = 0
    incoming_window: int = 0
    outgoing_window: int = 0
    handle_max: int | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Attach(NamedTuple):
    name: str = ""
    handle: int = 0
    role: bool = ROLE_SENDER
    snd_settle_mode: int | None = None
    rcv_settle_mode: int | None = None
    source: Any = None
    target: Any = None
    unsettled: Any = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Flow(NamedTuple):
    next_incoming_id: int | None = None
    incoming_window: int = 0
    next_outgoing_id: int = 0
    outgoing_window: int = 0
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool | None = None
    echo: bool | None = None
    properties: dict[Any, Any] | None = None


class Transfer(NamedTuple):
    handle: int = 0
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: int | None = None
    state: Any = None
    resume: bool | None = None
    aborted: bool | None = None
    batchable: bool | None = None


class Disposition(NamedTuple):
    role: bool = ROLE_SENDER
    first: int = 0
    last: int | None = None
    settled: bool | None = None
    state: Any = None
    batchable: bool | None = None


class Detach(NamedTuple):
    handle: int = 0
    closed: bool | None = None
    error: Any = None


class End(NamedTuple):
    error: Any = None


class Close(NamedTuple):
    error: Any = None


class SaslMechanisms(NamedTuple):
    sasl_server_mechanisms: Any = None


class SaslInit(NamedTuple):
    mechanism: str = ""
    initial_response: bytes | None = None
    hostname: str | None = None


class SaslChallenge(NamedTuple):
    challenge: bytes = b""


class SaslResponse(NamedTuple):
    response: bytes = b""


class SaslOutcome(NamedTuple):
    code: int = 0
    additional_data: bytes | None = None


class Received(NamedTuple):
    section_number: int = 0
    section_offset: int = 0


class Accepted(NamedTuple):
    pass


class Rejected(NamedTuple):
    error: Any = None


class Released(NamedTuple):
    pass


class Modified(NamedTuple):
    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: dict[Any, Any] | None = None


class Source(NamedTuple):
    address: Any = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: Any = None
    distribution_mode: str | None = None
    filter: dict[Any, Any] | None = None
    default_outcome: Any = None
    outcomes: Any = None
    capabilities: Any = None


class Target(NamedTuple):
    address: Any = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: Any = None
    capabilities: Any = None


class Coordinator(NamedTuple):
    """The target of a link that controls transactions."""

    capabilities: Any = None


class Error(NamedTuple):
    condition: str = ""
    description: str | None = None
    info: dict[Any, Any] | None = None


BY_CODE: dict[int, type[tuple[Any, ...]]] = {
    0x10: Open,
    0x11: Begin,
    0x12: Attach,
    0x13: Flow,
    0x14: Transfer,
    0x15: Disposition,
    0x16: Detach,
    0x17: End,
    0x18: Close,
    0x1D: Error,
    0x23: Received,
    0x24: Accepted,
    0x25: Rejected,
    0x26: Released,
    0x27: Modified,
    0x28: Source,
    0x29: Target,
    0x30: Coordinator,
    0x40: SaslMechanisms,
    0x41: SaslInit,
    0x42: SaslChallenge,
    0x43: SaslResponse,
    0x44: SaslOutcome,
}
_CODE = {kind: code for code, kind in BY_CODE.items()}
_SYMBOLIC = {
    f"amqp:{name}:list": code
    for name, code in {
        "open": 0x10,
        "begin": 0x11,
        "attach": 0x12,
        "flow": 0x13,
        "transfer": 0x14,
        "disposition": 0x15,
        "detach": 0x16,
        "end": 0x17,
        "close": 0x18,
        "error": 0x1D,
        "received": 0x23,
        "accepted": 0x24,
        "rejected": 0x25,
        "released": 0x26,
        "modified": 0x27,
        "source": 0x28,
        "target": 0x29,
        "coordinator": 0x30,
        "sasl-mechanisms": 0x40,
        "sasl-init": 0x41,
        "sasl-challenge": 0x42,
        "sasl-response": 0x43,
        "sasl-outcome": 0x44,
    }.items()
}

# The AMQP type of each field whose plain Python value would be written as something else.
_UINT, _USHORT, _UBYTE, _SYMBOL, _ULONG = UInt, UShort, UByte, Symbol, ULong
_FIELD_TYPES: dict[str, type] = {
    "max_frame_size": _UINT,
    "channel_max": _USHORT,
    "idle_time_out": _UINT,
    "remote_channel": _USHORT,
    "next_outgoing_id": _UINT,
    "next_incoming_id": _UINT,
    "incoming_window": _UINT,
    "outgoing_window": _UINT,
    "handle_max": _UINT,
    "handle": _UINT,
    "snd_settle_mode": _UBYTE,
    "rcv_settle_mode": _UBYTE,
    "initial_delivery_count": _UINT,
    "max_message_size": _ULONG,
    "delivery_count": _UINT,
    "link_credit": _UINT,
    "available": _UINT,
    "delivery_id": _UINT,
    "message_format": _UINT,
    "first": _UINT,
    "last": _UINT,
    "code": _UBYTE,
    "mechanism": _SYMBOL,
    "condition": _SYMBOL,
    "durable": _UINT,
    "timeout": _UINT,
    "expiry_policy": _SYMBOL,
    "distribution_mode": _SYMBOL,
    "section_number": _UINT,
    "section_offset": _ULONG,
}
_REQUIRED: dict[type, tuple[tuple[int, type], ...]] = {
    Open: ((0, str),),
    Begin: ((1, int), (2, int), (3, int)),
    Attach: ((0, str), (1, int), (2, bool)),
    Flow: ((1, int), (2, int), (3, int)),
    Transfer: ((0, int),),
    Disposition: ((0, bool), (1, int)),
    Detach: ((0, int),),
    SaslInit: ((0, str),),
}


def as_performative(value: Any) -> Any:
    """Turn a described list into its named tuple, nested ones too; anything else comes back as it is."""
    if type(value) is not Described:
        return value
    descriptor = value.descriptor
    code = _SYMBOLIC.get(descriptor) if isinstance(descriptor, str) else descriptor
    kind = BY_CODE.get(code) if isinstance(code, int) else None
    if kind is None:
        return value
    if not isinstance(value.value, list):
        raise DecodeError(f"{kind.__name__} must be a list")
    try:
        return kind(*[as_performative(field) if type(field) is Described else field for field in value.value])
    except TypeError:
        raise DecodeError(f"{kind.__name__} has {len(value.value)} fields, too many") from None


def decode_performative(buf: bytes | memoryview, pos: int) -> tuple[Any, int]:
    """The performative at `pos` as a named tuple, and where the payload behind it starts."""
    value, pos = decode_plain(buf, pos)
    performative = as_performative(value)
    if type(performative) is Described or type(value) is not Described:
        raise DecodeError("a frame must hold a performative")
    for index, expected in _REQUIRED.get(type(performative), ()):
        if len(value.value) <= index or not isinstance(performative[index], expected):
            field = performative._fields[index]
            raise DecodeError(f"{type(performative).__name__}.{field} must be a {expected.__name__}")
    return performative, pos


def _typed(name: str, value: Any) -> Any:
    if value is None:
        return None
    if type(value) in _CODE:
        return described(value)
    wrap = _FIELD_TYPES.get(name)
    return wrap(value) if wrap is not None and type(value) in (int, str) else value


def described(performative: Any) -> Described:
    """The performative as a described list, trailing empty fields left out."""
    fields = [_typed(name, value) for name, value in zip(performative._fields, performative, strict=True)]
    # A close, detach or rejected with a shortened error hangs some clients, so an error is always written whole.
    while fields and fields[-1] is None and type(performative) is not Error:
        fields.pop()
    return Described(ULong(_CODE[type(performative)]), fields)


def encode_performative(out: bytearray, performative: Any) -> None:
    """Append the encoding of a performative."""
    encode_into(out, described(performative))
