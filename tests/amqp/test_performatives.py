"""Encoding and decoding frame bodies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.amqp.amqp_values import same
from tests.amqp.sdk_definitions import BY_NAME, FRAME_KINDS, KINDS, NESTED_KINDS, Kind, performatives_of

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.decoding import MAX_DEPTH, decode_plain, skip
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.performatives import as_performative, decode_performative, described, encode_performative
from twinbus.amqp.codec.types import Array, DecodeError, Described, EncodeError, Long, Symbol, UByte, UInt, ULong


def each(kinds: list[Kind]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in kinds])


def encoded(performative: Any) -> bytes:
    out = bytearray()
    encode_performative(out, performative)
    return bytes(out)


def carried(performative: Any) -> Any:
    """A frame body that holds `performative`: itself, or one with a field for it."""
    if isinstance(performative, amqp.Error):
        return amqp.Close(performative)
    if isinstance(performative, (amqp.Source, amqp.Target, amqp.Coordinator)):
        return amqp.Attach("link", 0, True, source=performative)
    return amqp.Disposition(True, 0, state=performative)


def plain(value: Any) -> Any:
    """The values of a performative with plain integers and strings, as decoded."""
    if isinstance(value, Array):
        return Array(value.code, map(plain, value))
    if isinstance(value, Described):
        return Described(plain(value.descriptor), plain(value.value))
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if type(value) in amqp.BY_CODE.values():
        return type(value)(*map(plain, value))
    if isinstance(value, (Symbol, ULong)):
        return str(value) if isinstance(value, Symbol) else int(value)
    return value


@each(KINDS)
def test_a_performative_has_the_fields_the_sdk_knows(kind: Kind) -> None:
    assert list(kind.make._fields) == [field.name for field in kind.fields]


@each(FRAME_KINDS)
@given(data=st.data())
@settings(max_examples=25)
def test_performative_round_trips(kind: Kind, data: st.DataObject) -> None:
    performative = data.draw(performatives_of(kind))
    raw = encoded(performative)
    decoded, end = decode_performative(raw + b"payload", 0)
    assert type(decoded) is kind.make
    assert decoded == plain(performative)
    assert end == len(raw) == skip(raw, 0)


@each(NESTED_KINDS)
@given(data=st.data())
@settings(max_examples=25)
def test_terminus_outcome_or_error_round_trips_inside_a_frame(kind: Kind, data: st.DataObject) -> None:
    body = carried(data.draw(performatives_of(kind)))
    decoded, _ = decode_performative(encoded(body), 0)
    assert decoded == plain(body)
    assert kind.make in map(type, decoded)


@pytest.mark.parametrize(
    "state",
    [
        amqp.TransactionalState(b"txn", amqp.Modified(True)),
        amqp.TransactionalState(b"txn"),
        amqp.Declared(b"txn"),
        amqp.Discharge(b"txn", True),
        amqp.Declare(),
    ],
)
def test_transaction_types_round_trip(state: Any) -> None:
    assert decode_performative(encoded(amqp.Disposition(True, 0, state=state)), 0)[0].state == state


def test_transaction_coordinator_round_trips() -> None:
    body = amqp.Attach("controller", 0, False, target=amqp.Coordinator(Symbol("amqp:local-transactions")))
    assert decode_performative(encoded(body), 0)[0] == body


@each(FRAME_KINDS)
@given(data=st.data())
@settings(max_examples=10)
def test_the_payload_starts_where_the_performative_ends(kind: Kind, data: st.DataObject) -> None:
    before, raw = data.draw(st.binary(max_size=8)), encoded(data.draw(performatives_of(kind)))
    for buf in (before + raw, memoryview(before + raw)):
        assert decode_performative(buf, len(before))[1] == len(before) + len(raw)


@each(KINDS)
@given(data=st.data())
@settings(max_examples=10)
def test_omitted_trailing_fields_are_none(kind: Kind, data: st.DataObject) -> None:
    whole = data.draw(performatives_of(kind))
    least = max((index + 1 for index, field in enumerate(kind.fields) if field.mandatory), default=0)
    values = described(whole).value
    for count in range(least, len(values) + 1):
        short = as_performative(decode_plain(encode(Described(ULong(kind.code), values[:count])))[0])
        assert short == plain(whole._replace(**dict.fromkeys(whole._fields[count:])))


@each(KINDS)
@given(data=st.data())
@settings(max_examples=10)
def test_trailing_nulls_are_written_where_older_clients_need_them(kind: Kind, data: st.DataObject) -> None:
    performative = data.draw(performatives_of(kind))
    values = described(performative).value
    if kind in FRAME_KINDS or kind.make in (amqp.Error, amqp.Source, amqp.Target):
        assert len(values) == len(performative)
    else:
        assert not values or values[-1] is not None
        assert not any(value is not None for value in performative[len(values) :])


def raw_frame(kind: Kind, fields: list[Any]) -> bytes:
    """A frame with a performative of exactly these fields, inside another one if needed."""
    value = Described(ULong(kind.code), fields)
    if kind in FRAME_KINDS:
        return encode(value)
    if kind.name == "Error":
        return encode(Described(ULong(0x18), [value]))
    if kind.name in ("Source", "Target"):
        return encode(Described(ULong(0x12), ["link", UInt(0), True, None, None, value]))
    return encode(Described(ULong(0x15), [True, UInt(0), None, None, value]))


def minimal(kind: Kind) -> list[Any]:
    """Fields with values for the mandatory ones and null for the others."""
    examples = {"STRING": "a", "SYMBOL": Symbol("a"), "BINARY": b"a", "BOOL": True}
    numbers = {"UINT": UInt, "ULONG": ULong}
    fields: list[Any] = []
    for field in kind.fields:
        if not field.mandatory:
            fields.append(None)
        elif field.type in numbers:
            fields.append(numbers[field.type](7))
        else:
            fields.append(UByte(7) if field.type == "UBYTE" else examples[field.type])
    return fields


@each(KINDS)
@given(data=st.data())
@settings(max_examples=10)
def test_explicit_trailing_nulls_equal_omitted_fields(kind: Kind, data: st.DataObject) -> None:
    values = described(data.draw(performatives_of(kind))).value
    padded = values + [None] * (len(kind.fields) - len(values))
    short, _ = decode_performative(raw_frame(kind, values), 0)
    assert decode_performative(raw_frame(kind, padded), 0)[0] == short


@each(KINDS)
def test_a_list_longer_than_the_fields_is_refused(kind: Kind) -> None:
    decode_performative(raw_frame(kind, minimal(kind)), 0)
    with pytest.raises(
        DecodeError, match=f"{kind.name} has at most {len(kind.fields)} fields, got {len(kind.fields) + 1}"
    ):
        decode_performative(raw_frame(kind, [*minimal(kind), None]), 0)
    with pytest.raises(DecodeError, match=f"{kind.name} has at most {len(kind.fields)} fields"):
        as_performative(Described(kind.code, [*minimal(kind), None]))


MANDATORY = [
    pytest.param(kind, index, id=f"{kind.name}.{field.name}")
    for kind in KINDS
    for index, field in enumerate(kind.fields)
    if field.mandatory
]


@pytest.mark.parametrize(("kind", "index"), MANDATORY)
def test_a_missing_mandatory_field_is_refused_by_name(kind: Kind, index: int) -> None:
    fields = minimal(kind)
    name = f"{kind.name}.{kind.fields[index].name} is mandatory"
    for broken in (fields[:index], [*fields[:index], None, *fields[index + 1 :]]):
        with pytest.raises(DecodeError, match=name):
            decode_performative(raw_frame(kind, broken), 0)
        with pytest.raises(DecodeError, match=name):
            as_performative(Described(kind.code, broken))


TYPED = [
    pytest.param(kind, index, id=f"{kind.name}.{field.name}")
    for kind in KINDS
    for index, field in enumerate(kind.fields)
    if not field.multiple and field.name != "address"
]


@pytest.mark.parametrize(("kind", "index"), TYPED)
def test_a_field_of_the_wrong_type_is_refused_by_name(kind: Kind, index: int) -> None:
    fields = minimal(kind)
    # No field is a long, although it is a Python integer, too.
    fields[index] = Long(-1)
    with pytest.raises(DecodeError, match=rf"{kind.name}\.{kind.fields[index].name} must be an? "):
        decode_performative(raw_frame(kind, fields), 0)


@pytest.mark.parametrize("name", ["Detach", "End", "Close", "Rejected"])
def test_error_field_of_another_type_is_refused(name: str) -> None:
    kind = BY_NAME[name]
    for stranger in (Described(ULong(0x24), []), Described(Symbol("other:error"), [])):
        fields = [
            stranger if field.name == "error" else value
            for field, value in zip(kind.fields, minimal(kind), strict=True)
        ]
        with pytest.raises(DecodeError, match=rf"{name}\.error must be an error"):
            decode_performative(raw_frame(kind, fields), 0)


def test_strings_and_symbols_are_interchangeable() -> None:
    raw = encode(Described(ULong(0x41), ["ANONYMOUS", None, Symbol("host")]))
    assert decode_performative(raw, 0)[0] == amqp.SaslInit("ANONYMOUS", None, "host")


@each(KINDS)
def test_a_descriptor_may_be_a_symbol_or_a_long_number(kind: Kind) -> None:
    dashed = "".join("-" + letter.lower() if letter.isupper() else letter for letter in kind.name).lstrip("-")
    short = raw_frame(kind, minimal(kind))
    expected = decode_performative(short, 0)[0]
    descriptor = encode(ULong(kind.code))
    for other in (encode(Symbol(f"amqp:{dashed}:list")), b"\x80" + kind.code.to_bytes(8, "big")):
        if kind in FRAME_KINDS:
            raw = b"\0" + other + short[1 + len(descriptor) :]
            assert decode_performative(raw, 0) == (expected, len(raw))
        value = Described(decode_plain(other)[0], decode_plain(encode(minimal(kind)))[0])
        assert type(as_performative(value)) is kind.make


@pytest.mark.parametrize(
    "value",
    [
        None,
        [UInt(0)],
        UInt(0x10),
        Described(ULong(0x99), []),
        Described(Symbol("amqp:unknown:list"), []),
        Described(16.0, ["container"]),
        Described([], []),
        Described(ULong(0x24), []),
        Described(ULong(0x28), []),
        Described(ULong(0x1D), [Symbol("a")]),
    ],
    ids=repr,
)
def test_a_frame_without_a_performative_is_refused(value: Any) -> None:
    with pytest.raises(DecodeError, match="must hold a performative"):
        decode_performative(encode(value), 0)


@pytest.mark.parametrize("value", [{}, None, "text", Array(0x50, [])], ids=repr)
def test_performative_that_is_not_a_list_is_refused(value: Any) -> None:
    with pytest.raises(DecodeError, match="Close must be a list"):
        decode_performative(encode(Described(ULong(0x18), value)), 0)
    if not isinstance(value, Array):
        with pytest.raises(DecodeError, match="Close must be a list"):
            as_performative(Described(0x18, value))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", "ends inside"),
        ("00", "ends inside"),
        ("0053", "ends inside"),
        ("005318", "ends inside"),
        ("005318c0", "ends inside"),
        ("005318c000", "ends inside"),
        ("005318c00000", "does not fit"),
        ("005318c00201", "does not fit"),
        ("005318c0030140" + "40", "size of Close"),
        ("005314c0020170" + "00000000", "size of Transfer"),
        ("005310c00501a102c328", "invalid text"),
    ],
)
def test_a_malformed_performative_is_refused(raw: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_performative(bytes.fromhex(raw), 0)


def test_performatives_nested_too_deep_are_refused() -> None:
    source: Any = None
    for _ in range(MAX_DEPTH + 1):
        source = amqp.Source(default_outcome=source)
    with pytest.raises(DecodeError, match=f"deeper than {MAX_DEPTH}"):
        decode_performative(encoded(amqp.Attach("link", 0, True, source=source)), 0)


def test_unknown_described_values_inside_a_frame_are_kept() -> None:
    state = Described(ULong(0x39), [b"unheard of"])
    raw = encoded(amqp.Disposition(True, 0, state=state))
    assert same(decode_performative(raw, 0)[0].state, Described(0x39, [b"unheard of"]))
    assert as_performative(state) is state
    assert as_performative("text") == "text"


def test_number_too_large_for_its_field_is_refused() -> None:
    with pytest.raises(EncodeError, match="out of range for UInt"):
        encoded(amqp.Flow(0, 2**32, 0, 0))
