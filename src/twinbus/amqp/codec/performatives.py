"""Defines AMQP and SASL frame bodies and delivery outcomes as named tuples, and encodes and decodes them.

A decoded performative, such as `Attach(name="…", handle=0, …)`, has plain Python values and `None` for missing fields.
`encode_performative` writes the types of the specification.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .composites import Composite, check_mandatory, composite, decode_fields, too_many
from .decoding import MALFORMED, MAX_DEPTH, PLAIN, extent, malformed, too_deep
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


class Declare(NamedTuple):
    """Begins a transaction: the body of a message to a coordinator."""

    global_id: Any = None


class Discharge(NamedTuple):
    """Commits a transaction, or rolls it back if `fail`: the body of a message to a coordinator."""

    txn_id: bytes = b""
    fail: bool | None = None


class Declared(NamedTuple):
    """The outcome of a declare."""

    txn_id: bytes = b""


class TransactionalState(NamedTuple):
    """The state of a delivery within a transaction."""

    txn_id: bytes = b""
    outcome: Any = None


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
    0x31: Declare,
    0x32: Discharge,
    0x33: Declared,
    0x34: TransactionalState,
    0x40: SaslMechanisms,
    0x41: SaslInit,
    0x42: SaslChallenge,
    0x43: SaslResponse,
    0x44: SaslOutcome,
}
_CODE = {kind: code for code, kind in BY_CODE.items()}
_FRAME_BODIES = frozenset(kind for code, kind in BY_CODE.items() if code <= 0x18 or code >= 0x40)
_WRITTEN_WHOLE = _FRAME_BODIES | {Error, Source, Target}

# The type of each field, with a `!` where it is mandatory; a `value` may be of any type.
_TYPES: dict[type, str] = {
    Open: "string!, string, uint, ushort, uint, value, value, value, value, map",
    Begin: "ushort, uint!, uint!, uint!, uint, value, value, map",
    Attach: "string!, uint!, boolean!, ubyte, ubyte, described type, described type, map, boolean, uint, "
    "ulong, value, value, map",
    Flow: "uint, uint!, uint!, uint!, uint, uint, uint, uint, boolean, boolean, map",
    Transfer: "uint!, uint, binary, uint, boolean, boolean, ubyte, described type, boolean, boolean, boolean",
    Disposition: "boolean!, uint!, uint, boolean, described type, boolean",
    Detach: "uint!, boolean, described type",
    End: "described type",
    Close: "described type",
    SaslMechanisms: "value!",
    SaslInit: "symbol!, binary, string",
    SaslChallenge: "binary!",
    SaslResponse: "binary!",
    SaslOutcome: "ubyte!, binary",
    Received: "uint!, ulong!",
    Accepted: "",
    Rejected: "described type",
    Released: "",
    Modified: "boolean, boolean, map",
    Source: "value, uint, symbol, uint, boolean, map, symbol, map, described type, value, value",
    Target: "value, uint, symbol, uint, boolean, map, value",
    Coordinator: "value",
    Declare: "value",
    Discharge: "binary!, boolean",
    Declared: "binary!",
    TransactionalState: "binary!, described type",
    Error: "symbol!, string, map",
}


def _kinds() -> dict[int | str, tuple[type[tuple[Any, ...]], Composite]]:
    """All composite types by both of their descriptors."""
    kinds: dict[int | str, tuple[type[tuple[Any, ...]], Composite]] = {}
    for code, make in BY_CODE.items():
        fields: tuple[str, ...] = make._fields  # type: ignore[attr-defined]
        dashed = re.sub("(?<=[a-z])(?=[A-Z])", "-", make.__name__).lower()
        kinds[code] = kinds[f"amqp:{dashed}:list"] = make, composite(make.__name__, fields, _TYPES[make])
    return kinds


_KINDS = _kinds()
_UNKNOWN: tuple[Any, None] = None, None
_COMPOSITE = dict(_KINDS.values())
_ERROR_FIELD = {Detach: 2, End: 0, Close: 0, Rejected: 0}
# The type to write for a plain `int` or `str`, by field type.
_WRAPS: dict[str, type] = {"ubyte": UByte, "ushort": UShort, "uint": UInt, "ulong": ULong, "symbol": Symbol}


def _build(make: type[tuple[Any, ...]], kind: Composite, values: list[Any]) -> Any:
    if make in _ERROR_FIELD and len(values) > _ERROR_FIELD[make]:
        error = values[_ERROR_FIELD[make]]
        if error is not None and type(error) is not Error:
            raise DecodeError(f"{kind.name}.error must be an error")
    if len(values) < kind.max_fields:
        values += [None] * (kind.max_fields - len(values))
    # Skip the constructor: mandatory fields are present, and all other defaults are None.
    return tuple.__new__(make, values)


def as_performative(value: Any) -> Any:
    """Convert a described list into its named tuple, nested ones too. Other values are returned unchanged."""
    if type(value) is not Described or not isinstance(value.descriptor, (int, str)):
        return value
    make, kind = _KINDS.get(value.descriptor, _UNKNOWN)
    if kind is None:
        return value
    fields = value.value
    if not isinstance(fields, list):
        raise DecodeError(f"{kind.name} must be a list")
    if len(fields) > kind.max_fields:
        raise too_many(kind, len(fields))
    check_mandatory(kind, fields)
    return _build(make, kind, [as_performative(field) for field in fields])


def _decode_described(buf: Any, pos: int, depth: int) -> tuple[Any, int]:
    """Decode a described value inside a frame: a known type as its named tuple, others as `Described`."""
    if depth >= MAX_DEPTH:
        raise too_deep()
    if buf[pos] == 0x53:
        descriptor = buf[pos + 1]
        pos += 2
    else:
        descriptor, pos = PLAIN[buf[pos]](buf, pos + 1, depth + 1)
    code = buf[pos]
    # Checked by type so that 16.0 is not 16, and lists are not used as keys.
    is_known = type(descriptor) is int or type(descriptor) is str
    make, kind = _KINDS.get(descriptor, _UNKNOWN) if is_known else _UNKNOWN
    if kind is None:
        value, pos = PLAIN[code](buf, pos + 1, depth + 1)
        return Described(descriptor, value), pos
    if code == 0x45:
        count, start, end = 0, pos + 1, pos + 1
    elif code == 0xC0 or code == 0xD0:
        count, start, end = extent(buf, pos + 1, code == 0xD0)
    else:
        raise DecodeError(f"{kind.name} must be a list")
    if count > kind.max_fields:
        raise too_many(kind, count)
    values, pos = decode_fields(kind, _DECODERS, buf, start, count, depth + 1)
    if pos != end:
        raise DecodeError(f"the size of {kind.name} does not match its fields")
    return _build(make, kind, values), end


_DECODERS = PLAIN.copy()
_DECODERS[0] = _decode_described


def decode_performative(buf: bytes | memoryview, pos: int) -> tuple[Any, int]:
    """Decode the performative at `pos`. Returns a named tuple and where the payload behind it starts.

    Raises `DecodeError` for anything but a frame body, with the name of a missing or wrong field.
    """
    try:
        performative, pos = _DECODERS[buf[pos]](buf, pos + 1, 0)
    except MALFORMED as error:
        raise malformed(error) from None
    if type(performative) not in _FRAME_BODIES:
        raise DecodeError("a frame must hold a performative")
    return performative, pos


def _typed(type_name: str, value: Any) -> Any:
    if type(value) in _CODE:
        return described(value)
    wrap = _WRAPS.get(type_name)
    return wrap(value) if wrap is not None and type(value) in (int, str) else value


def described(performative: Any) -> Described:
    """Convert a performative into a described list."""
    kind = type(performative)
    fields = [_typed(name, value) for name, value in zip(_COMPOSITE[kind].types, performative, strict=True)]
    # Older clients index into a frame's list without checking its length, and hang on a shortened error.
    while fields and fields[-1] is None and kind not in _WRITTEN_WHOLE:
        fields.pop()
    return Described(ULong(_CODE[kind]), fields)


def encode_performative(out: bytearray, performative: Any) -> None:
    """Append the encoding of a performative."""
    encode_into(out, described(performative))
