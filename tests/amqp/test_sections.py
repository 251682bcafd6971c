"""Splitting messages into sections, and building sections."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Header, Message, Properties
from azure.servicebus._pyamqp.types import TYPE, VALUE, AMQPTypes
from hypothesis import given
from hypothesis import strategies as st
from tests.amqp.amqp_values import SIMPLE, SIMPLE_VALUES, VALUES, same

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.decoding import decode
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.sections import (
    Sections,
    data_sections,
    entry,
    entry_value,
    list_fields,
    list_section,
    map_entries,
    map_section,
    raw_fields,
    section_value,
    split_sections,
)
from twinbus.amqp.codec.types import DecodeError, Described, Int, Long, Symbol, Timestamp, UByte, UInt, ULong

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
ASCII = st.text(st.characters(codec="ascii"), min_size=1, max_size=20)
UINTS = st.integers(0, 2**32 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)
IDS = (
    TEXT
    | st.binary(max_size=20)
    | st.integers(0, 2**64 - 1)
    | st.binary(min_size=16, max_size=16).map(lambda raw: uuid.UUID(bytes=raw))
)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


HEADERS = st.builds(
    Header,
    maybe(st.booleans()),
    maybe(st.integers(0, 255)),
    maybe(UINTS),
    maybe(st.booleans()),
    maybe(UINTS),
)
PROPERTIES = st.builds(
    Properties,
    maybe(IDS),
    maybe(st.binary(max_size=20)),
    *[maybe(TEXT)] * 3,
    maybe(IDS),
    *[maybe(ASCII)] * 2,
    *[maybe(TIMES)] * 2,
    maybe(TEXT),
    maybe(UINTS),
    maybe(TEXT),
)
SDK_VALUES = st.one_of(
    st.booleans(), TEXT, st.binary(max_size=20), st.integers(-(2**31), 2**31 - 1), st.floats(allow_nan=False)
)
ANNOTATIONS = st.dictionaries(ASCII.map(str.encode), SDK_VALUES, min_size=1, max_size=4)
APPLICATION_PROPERTIES = st.dictionaries(TEXT, SDK_VALUES, min_size=1, max_size=12)
BODIES: dict[str, st.SearchStrategy[Any]] = {
    "data": st.lists(st.binary(max_size=300), min_size=1, max_size=3),
    "sequence": st.lists(st.lists(SDK_VALUES, max_size=3), min_size=1, max_size=3),
    "value": st.recursive(SDK_VALUES, lambda inner: st.lists(inner, max_size=3), max_leaves=5).filter(bool),
}


def _messages(body: str) -> st.SearchStrategy[Message]:
    bodies = [BODIES[kind] if kind == body else st.none() for kind in ("data", "sequence", "value")]
    return st.builds(
        Message,
        maybe(HEADERS),
        st.none(),
        maybe(ANNOTATIONS),
        maybe(PROPERTIES),
        maybe(APPLICATION_PROPERTIES),
        *bodies,
        maybe(ANNOTATIONS),
    )


MESSAGES = st.sampled_from(["data", "sequence", "value", "none"]).flatmap(_messages)


def by_the_sdk(message: Message) -> bytes:
    out = bytearray()
    encode_payload(out, message)
    return bytes(out)


def section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


def as_text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode()


def plain(value: Any) -> Any:
    """A value as the SDK decodes it: text as bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


@given(MESSAGES)
def test_the_sections_of_the_sdks_messages_are_found(message: Message) -> None:
    raw = by_the_sdk(message)
    found = split_sections(raw)
    assert b"".join(found) == raw
    for index, given_section in enumerate(message[:5]):
        assert bool(found[index]) == bool(given_section)
    body = decode_payload(memoryview(found.body))
    assert (body.data, body.sequence, body.value) == tuple(plain(part or None) for part in message[5:8])
    assert data_sections(found.body) == (message.data or [])


@given(MESSAGES)
def test_the_fields_of_the_sdks_messages_are_read(message: Message) -> None:
    found = split_sections(by_the_sdk(message))
    assert list_fields(found.header, 5) == list(message.header or Header())
    assert list_fields(found.properties, 13) == list(message.properties or Properties())
    for upto in (0, 1, 11, 15):
        whole = [*(message.properties or Properties()), None, None]
        assert list_fields(found.properties, upto) == whole[:upto]


@given(MESSAGES)
def test_the_entries_of_the_sdks_messages_keep_their_types(message: Message) -> None:
    found = split_sections(by_the_sdk(message))
    annotations = [(as_text(key), value) for key, value in (message.message_annotations or {}).items()]
    application = list((message.application_properties or {}).items())
    for raw, expected, key_type in (
        (found.message_annotations, annotations, Symbol),
        (found.application_properties, application, str),
    ):
        entries = map_entries(raw)
        assert [(key, entry_value(one)) for key, one in entries] == expected
        assert all(type(decode(one)[0]) is key_type for _, one in entries)
        # The SDK writes a Python integer as an int.
        for (_, one), (_, value) in zip(entries, expected, strict=True):
            assert type(entry_value(one)) is (Int if type(value) is int else type(value))


@given(MESSAGES, ANNOTATIONS)
def test_delivery_annotations_are_found_where_the_sdk_writes_them(message: Message, annotations: Any) -> None:
    without = split_sections(by_the_sdk(message))
    found = split_sections(by_the_sdk(message._replace(delivery_annotations=annotations)))
    assert found._replace(delivery_annotations=b"") == without
    entries = [(key, entry_value(raw)) for key, raw in map_entries(found.delivery_annotations)]
    assert entries == [(key.decode(), value) for key, value in annotations.items()]
    # Written in the order of the specification, which the SDK reads as well.
    assert decode_payload(memoryview(b"".join(found))).delivery_annotations == {
        key: plain(value) for key, value in annotations.items()
    }


def test_typed_application_properties_of_the_sdk_keep_their_types() -> None:
    typed: dict[str | bytes, Any] = {
        "long": {TYPE: AMQPTypes.long, VALUE: 2**40},
        "time": {TYPE: AMQPTypes.timestamp, VALUE: 5},
        "symbol": {TYPE: AMQPTypes.symbol, VALUE: "s"},
        "span": {
            TYPE: AMQPTypes.described,
            VALUE: ({TYPE: AMQPTypes.symbol, VALUE: "com.microsoft:timespan"}, {TYPE: AMQPTypes.long, VALUE: 7}),
        },
    }
    found = split_sections(by_the_sdk(Message(application_properties=typed, data=[b""])))
    values = {key: entry_value(raw) for key, raw in map_entries(found.application_properties)}
    expected = {
        "long": Long(2**40),
        "time": Timestamp(5),
        "symbol": Symbol("s"),
        "span": Described(Symbol("com.microsoft:timespan"), Long(7)),
    }
    assert same(values, expected)


@given(st.dictionaries(SIMPLE_VALUES, VALUES, max_size=6))
def test_map_section_round_trips_through_its_entries(entries: dict[Any, Any]) -> None:
    raw = section(sections.APPLICATION_PROPERTIES, entries)
    parts = map_entries(raw)
    assert map_section(sections.APPLICATION_PROPERTIES, [one for _, one in parts]) == raw
    assert same([decode(one)[0] for _, one in parts], list(entries))
    assert same([entry_value(one) for _, one in parts], list(entries.values()))
    assert same(section_value(raw), entries)
    written = [entry(key, value) for key, value in entries.items()]
    assert map_section(sections.APPLICATION_PROPERTIES, written) == raw


@given(st.lists(VALUES, max_size=13))
def test_list_section_round_trips_through_its_fields(fields: list[Any]) -> None:
    raw = section(sections.PROPERTIES, fields)
    again = list_section(sections.PROPERTIES, raw_fields(raw))
    while fields and fields[-1] is None:
        fields.pop()
    assert same(section_value(again), fields)
    assert raw_fields(again) == [encode(field) for field in fields]


@pytest.mark.parametrize("size", [252, 253, 254, 255, 256, 70_000])
def test_section_has_the_shortest_form(size: int) -> None:
    raw = list_section(sections.PROPERTIES, [encode(b"x" * (size - 2 if size < 258 else size - 5))])
    assert raw[3] == (0xC0 if size < 255 else 0xD0)
    assert raw_fields(raw) == raw_fields(split_sections(raw).properties)
    entries = [entry(UInt(0), b"x" * (size - 3 if size < 259 else size - 6))]
    raw = map_section(sections.MESSAGE_ANNOTATIONS, entries)
    assert raw[3] == (0xC1 if size < 255 else 0xD1)
    assert [one for _, one in map_entries(raw)] == entries


def test_list_section_does_not_change_the_given_fields() -> None:
    fields = [encode(UInt(5)), b"\x40"]
    assert raw_fields(list_section(sections.HEADER, fields)) == [encode(UInt(5))]
    assert fields == [encode(UInt(5)), b"\x40"]


def test_a_missing_section_is_empty() -> None:
    assert split_sections(b"") == Sections()
    assert list_fields(b"", 3) == [None, None, None]
    assert not raw_fields(b"")
    assert not map_entries(b"")
    assert not data_sections(b"")
    assert section_value(b"") is None


@given(TEXT, st.integers(0, 12), st.integers(1, 13))
def test_lone_message_id_is_read_like_any_other(name: str, nulls: int, upto: int) -> None:
    fields = b"\xa1" + bytes([len(name.encode())]) + name.encode() + b"\x40" * nulls
    raw = b"\x00\x53\x73\xc0" + bytes([len(fields) + 1, nulls + 1]) + fields
    assert list_fields(raw, upto) == [name, *[None] * (upto - 1)]


@pytest.mark.parametrize("length", [0, 1, 4, 6, 255])
def test_message_id_with_a_wrong_length_is_refused(length: int) -> None:
    fields = b"\xa1" + bytes([length]) + b"abcde" + b"\x40"
    raw = b"\x00\x53\x73\xc0" + bytes([len(fields) + 1, 2]) + fields
    with pytest.raises(DecodeError):
        list_fields(raw, 13)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"\xc3"])
def test_message_id_with_invalid_text_is_refused(name: bytes) -> None:
    fields = b"\xa1" + bytes([len(name)]) + name + b"\x40"
    with pytest.raises(DecodeError, match="invalid text"):
        list_fields(b"\x00\x53\x73\xc0" + bytes([len(fields) + 1, 2]) + fields, 13)


@pytest.mark.parametrize("empty", [None, []])
def test_null_or_an_empty_list_is_a_section_without_fields(empty: Any) -> None:
    raw = split_sections(section(sections.HEADER, empty)).header
    assert list_fields(raw, 2) == [None, None]
    assert raw_fields(raw) == []


@pytest.mark.parametrize("empty", [None, {}])
def test_null_or_an_empty_map_is_a_section_without_entries(empty: Any) -> None:
    assert map_entries(split_sections(section(sections.APPLICATION_PROPERTIES, empty)).application_properties) == []


SYMBOLIC = {
    0x70: "amqp:header:list",
    0x71: "amqp:delivery-annotations:map",
    0x72: "amqp:message-annotations:map",
    0x73: "amqp:properties:list",
    0x74: "amqp:application-properties:map",
    0x75: "amqp:data:binary",
    0x76: "amqp:amqp-sequence:list",
    0x77: "amqp:amqp-value:*",
    0x78: "amqp:footer:map",
}
CONTENT: dict[int, Any] = {0x70: [], 0x71: {}, 0x72: {}, 0x73: [], 0x74: {}, 0x75: b"x", 0x76: [], 0x77: None, 0x78: {}}


@pytest.mark.parametrize("code", list(SYMBOLIC))
def test_a_section_may_have_a_symbolic_or_a_long_descriptor(code: int) -> None:
    field = min(code - 0x70, 5)
    wide = b"\0\x80" + code.to_bytes(8, "big") + encode(CONTENT[code])
    for raw in (encode(Described(Symbol(SYMBOLIC[code]), CONTENT[code])), wide, section(code, CONTENT[code])):
        assert split_sections(raw)[field] == raw
        assert same(section_value(raw), CONTENT[code])


def test_data_sections_of_both_lengths_are_read() -> None:
    parts = [b"", b"a" * 255, b"b" * 256, b"c" * 70_000]
    body = b"".join(section(sections.DATA, part) for part in parts) + section(sections.FOOTER, {})
    assert data_sections(split_sections(body).body) == parts
    assert data_sections(section(sections.VALUE, b"value")) == []


def parts_of(*codes: int) -> bytes:
    return b"".join(section(code, CONTENT[code]) for code in codes)


@pytest.mark.parametrize(
    "codes",
    [
        (0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x78),
        (0x70, 0x73, 0x75, 0x75, 0x75),
        (0x76, 0x76, 0x78),
        (0x77, 0x78),
        (0x78,),
        (0x72,),
    ],
)
def test_sections_in_order_are_a_message(codes: tuple[int, ...]) -> None:
    assert b"".join(split_sections(parts_of(*codes))) == parts_of(*codes)


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ((0x70, 0x70), "out of order"),
        ((0x72, 0x71, 0x75), "out of order"),
        ((0x71, 0x71), "out of order"),
        ((0x74, 0x73), "out of order"),
        ((0x75, 0x70), "out of order"),
        ((0x75, 0x73), "out of order"),
        ((0x71, 0x75, 0x71), "out of order"),
        ((0x75, 0x71, 0x75), "out of order"),
        ((0x75, 0x71, 0x71), "out of order"),
        ((0x75, 0x76), "do not belong together"),
        ((0x76, 0x75), "do not belong together"),
        ((0x75, 0x77), "do not belong together"),
        ((0x77, 0x77), "do not belong together"),
        ((0x78, 0x78), "do not belong together"),
        ((0x78, 0x75), "do not belong together"),
    ],
)
def test_sections_out_of_order_are_refused(codes: tuple[int, ...], reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        split_sections(parts_of(*codes))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (encode([]), "described sections"),
        (section(0x6F, []), "unknown kind"),
        (section(0x79, []), "unknown kind"),
        (encode(Described(Symbol("amqp:other:list"), [])), "unknown kind"),
        (encode(Described(115.0, [])), "unknown kind"),
        (encode(Described([], [])), "unknown kind"),
        (section(0x70, {}), "0x70 of a message has the wrong type"),
        (section(0x73, "text"), "0x73 of a message has the wrong type"),
        (section(0x74, []), "0x74 of a message has the wrong type"),
        (section(0x75, "text"), "0x75 of a message has the wrong type"),
        (section(0x76, {}), "0x76 of a message has the wrong type"),
        (section(0x78, []), "0x78 of a message has the wrong type"),
        (b"\0", "ends inside"),
        (b"\0\x53", "ends inside"),
        (b"\0\x53\x75", "ends inside"),
        (b"\0\x53\x75\xa0", "ends inside"),
        (b"\0\x53\x75\xa0\x02x", "past the end"),
        (section(0x75, b"x") + b"\0", "ends inside"),
    ],
)
def test_a_malformed_message_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        split_sections(raw)


HEADER_TYPES = ["boolean", "ubyte", "uint", "boolean", "uint"]
PROPERTY_TYPES = [
    *("message-id", "binary", None, "string", None, "message-id", "symbol", "symbol"),
    *("timestamp", "timestamp", "string", "uint", "string"),
]


@pytest.mark.parametrize(
    ("code", "index", "name"),
    [(0x70, index, name) for index, name in enumerate(HEADER_TYPES)]
    + [(0x73, index, name) for index, name in enumerate(PROPERTY_TYPES) if name],
)
def test_a_field_of_the_wrong_type_is_refused_by_name(code: int, index: int, name: str) -> None:
    raw = split_sections(section(code, [*[None] * index, Long(-1)]))[code - 0x70]
    assert list_fields(raw, index) == [None] * index
    with pytest.raises(DecodeError, match=f"(header|properties).[a-z-]+ must be a {name}"):
        list_fields(raw, index + 1)


def test_every_allowed_type_of_a_message_id_is_read() -> None:
    for value in (ULong(5), uuid.UUID(int=5), b"five", "five"):
        assert list_fields(section(sections.PROPERTIES, [value]), 1) == [value]


@pytest.mark.parametrize(("code", "max_fields"), [(0x70, 5), (0x73, 13)])
def test_a_section_with_too_many_fields_is_refused(code: int, max_fields: int) -> None:
    with pytest.raises(DecodeError, match=f"has at most {max_fields} fields, got {max_fields + 1}"):
        list_fields(section(code, [None] * (max_fields + 1)), 1)


@pytest.mark.parametrize("key", [[], {}, Described(ULong(1), [])], ids=repr)
def test_map_section_with_a_compound_key_is_refused(key: Any) -> None:
    with pytest.raises(DecodeError, match="simple value"):
        map_entries(map_section(sections.APPLICATION_PROPERTIES, [entry(key, None)]))


@pytest.mark.parametrize(
    ("read", "raw"),
    [
        (raw_fields, "005370c000"),
        (raw_fields, "005370d000000000"),
        (raw_fields, "005370c0020240"),
        (raw_fields, "005370c003014040"),
        (raw_fields, "005374c10100"),
        (lambda raw: list_fields(raw, 5), "005370c000"),
        (lambda raw: list_fields(raw, 5), "005370d000000000"),
        (lambda raw: list_fields(raw, 5), "005373c00401a10361"),
        (lambda raw: list_fields(raw, 5), "005373c00501a102c328"),
        (lambda raw: list_fields(raw, 5), "005374c10100"),
        (lambda raw: list_fields(raw, 5), "00537645"),
        (map_entries, "005374c100"),
        (map_entries, "005374c1020140"),
        (map_entries, "005374c1030440"),
        (map_entries, "005374c10402404040"),
        (map_entries, "00537045"),
        (data_sections, "0053"),
        (data_sections, "005375a002"),
        (section_value, "00"),
        (section_value, "005375a002"),
    ],
)
def test_a_malformed_section_is_refused(read: Any, raw: str) -> None:
    with pytest.raises(DecodeError):
        read(bytes.fromhex(raw))


def test_header_fields_have_plain_types() -> None:
    fields = list_fields(section(sections.HEADER, [True, UByte(4), UInt(5), False, UInt(6)]), 5)
    assert same(fields, [True, 4, 5, False, 6])


@given(SIMPLE[Symbol], VALUES)
def test_an_entry_has_a_key_and_a_value(key: Any, value: Any) -> None:
    assert same(entry_value(entry(key, value)), value)


def _short(ident: bytes, nulls: int, body: bytes, wide: bool) -> bytes:
    """A message with an id and one data section, as most clients write it."""
    fields = b"\xa1" + bytes((len(ident),)) + ident + b"\x40" * nulls
    head = b"\xb0" + len(body).to_bytes(4, "big") if wide else b"\xa0" + bytes((len(body),))
    return b"\x00\x53\x73\xc0" + bytes((len(fields) + 1, nulls + 1)) + fields + b"\x00\x53\x75" + head + body


SHORT = st.builds(
    _short, st.text(max_size=40).map(str.encode) | st.binary(max_size=8), st.integers(0, 13), st.binary(), st.booleans()
)


@given(SHORT, st.integers(0, 120), st.integers(-1, 255))
def test_sole_id_agrees_with_the_general_reader(message: bytes, at: int, byte: int) -> None:
    if byte >= 0 and at < len(message):
        message = message[:at] + bytes((byte,)) + message[at + 1 :]
    found = sections.sole_id(message)
    if found is not None:
        parts = split_sections(message)
        assert parts.properties + parts.body == message
        assert len(data_sections(parts.body)) == 1
        assert list_fields(parts.properties, 13) == [found] + [None] * 12
        assert all(field == b"\x40" for field in raw_fields(parts.properties)[1:])


@given(st.text(max_size=40).map(str.encode), st.integers(0, 12), st.binary(max_size=255), st.booleans())
def test_sole_id_reads_what_most_clients_send(ident: bytes, nulls: int, body: bytes, wide: bool) -> None:
    assert sections.sole_id(_short(ident, nulls, body, wide)) == ident.decode()
