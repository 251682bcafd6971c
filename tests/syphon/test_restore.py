"""Restoring diverted messages from bytes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.amqp.amqp_values import SIMPLE, SYMBOLS, TEXT, VALUES, same

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import Described, Int, Long, Symbol, Timestamp, UInt, ULong
from twinbus.envelope import aliases
from twinbus.envelope.restoring import EnvelopeError, MalformedEnvelopeError, NoEnvelopeError, Restored, restore

NOW = 1_794_000_000_000
MAX_UINT = 0xFFFFFFFF
TOKEN = uuid.UUID(int=7)
BODY = b"\x00\x53\x75" + encode(b"body")
NULL = b"\x40"


def map_of(code: int, entries: dict[Any, Any]) -> bytes:
    raw = [sections.entry(key, value) for key, value in entries.items()]
    return sections.map_section(code, raw) if raw else b""


def list_of(code: int, fields: list[Any]) -> bytes:
    return sections.list_section(code, [encode(field) for field in fields])


def timespan(milliseconds: int) -> Described:
    return Described(Symbol("com.microsoft:timespan"), Long(milliseconds * 10_000))


def delivery(
    application: dict[Any, Any],
    *,
    header: list[Any] | None = None,
    annotations: dict[Any, Any] | None = None,
    delivery_annotations: dict[Any, Any] | None = None,
    properties: list[Any] | None = None,
    body: bytes = BODY,
    enqueued_at: int = NOW,
) -> bytes:
    """A message as a broker delivers it to a peek-lock receiver."""
    of_the_broker = {
        Symbol("x-opt-enqueued-time"): Timestamp(enqueued_at),
        Symbol("x-opt-sequence-number"): Long(42),
        Symbol("x-opt-locked-until"): Timestamp(NOW + 60_000),
        Symbol("x-opt-message-state"): Int(1),
        Symbol("x-opt-enqueue-sequence-number"): Long(41),
        Symbol("x-opt-partition-id"): Int(3),
    }
    head = [*(header or []), *[None] * 5][:5]
    head[4] = UInt(2)
    return (
        list_of(sections.HEADER, head)
        + map_of(sections.DELIVERY_ANNOTATIONS, {**(delivery_annotations or {}), Symbol("x-opt-lock-token"): TOKEN})
        + map_of(sections.MESSAGE_ANNOTATIONS, of_the_broker | (annotations or {}))
        + list_of(sections.PROPERTIES, ["m"] if properties is None else properties)
        + map_of(sections.APPLICATION_PROPERTIES, application)
        + body
    )


def restored(application: dict[Any, Any], ttl: Any = "remaining", now: int = NOW, **parts: Any) -> Restored:
    return restore(delivery({"x-ms-path": "orders", **application}, **parts), now_ms=now, ttl=ttl)


def fields_of(one: Restored) -> list[Any]:
    fields = sections.section_value(sections.split_sections(one.payload).properties) or []
    return fields + [None] * (13 - len(fields))


def header_of(one: Restored) -> list[Any]:
    fields = sections.section_value(sections.split_sections(one.payload).header) or []
    return fields + [None] * (5 - len(fields))


# ---- what passes through ----

_OWN_NAMES = TEXT.filter(lambda name: not aliases.is_taken(name))
_ANNOTATIONS = st.dictionaries(
    SYMBOLS.filter(lambda name: name not in aliases.BROKER_ANNOTATIONS | {aliases.SCHEDULED_ANNOTATION})
    | SIMPLE[ULong],
    VALUES,
    max_size=4,
)
_BODIES = st.one_of(
    st.just(b""),
    st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(
        lambda parts: b"".join(b"\x00\x53\x75" + encode(part) for part in parts)
    ),
    VALUES.map(lambda value: b"\x00\x53\x77" + encode(value)),
    st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=3).map(
        lambda parts: b"".join(b"\x00\x53\x76" + encode(part) for part in parts)
    ),
)


@given(
    st.dictionaries(_OWN_NAMES, VALUES, max_size=5),
    _ANNOTATIONS,
    _ANNOTATIONS,
    _BODIES,
    _ANNOTATIONS,
    st.sampled_from([b"", encode("x"), encode(uuid.UUID(int=1)), encode(b"x"), encode(ULong(3))]),
)
def test_untouched_sections_pass_byte_for_byte(
    own: dict[Any, Any],
    annotations: dict[Any, Any],
    delivery_annotations: dict[Any, Any],
    body: bytes,
    footer: dict[Any, Any],
    message_id: bytes,
) -> None:
    properties = sections.list_section(sections.PROPERTIES, [message_id or NULL, encode(b"user"), encode("to")])
    ending = body + map_of(sections.FOOTER, footer)
    split = sections.split_sections(
        delivery({**own, "x-ms-path": "p"}, annotations=annotations, delivery_annotations=delivery_annotations)
    )
    payload = b"".join(split._replace(properties=properties, body=ending))
    assert restore(payload, now_ms=NOW, ttl="remaining").payload == b"".join(
        (
            map_of(sections.DELIVERY_ANNOTATIONS, delivery_annotations),
            map_of(sections.MESSAGE_ANNOTATIONS, annotations),
            properties,
            map_of(sections.APPLICATION_PROPERTIES, own),
            ending,
        )
    )


def test_senders_header_fields_stay_and_the_brokers_are_dropped() -> None:
    one = restored({}, header=[True, None, UInt(99), True])
    assert same(header_of(one), [True, None, None, None, None])
    assert sections.split_sections(restored({}, header=[None, None, UInt(99), False]).payload).header == b""


def test_broker_annotations_are_reported() -> None:
    one = restored({"x-ms-sessionid": "s"}, enqueued_at=NOW - 5)
    assert one == Restored("orders", "s", "m", one.payload, NOW - 5, 42, 2, False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é", "é"),
        (b"abc", "abc"),
        (b"\xff", "\\xff"),
        (ULong(7), "7"),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (None, None),
    ],
)
def test_a_message_id_of_any_type_is_reported_as_text(value: Any, text: str | None) -> None:
    assert restored({}, properties=[value]).message_id == text


# ---- what is put back ----


def test_session_expiry_and_creation_time_are_restored() -> None:
    application = {"x-ms-sessionid": "s", "x-twinbus-expiry": Timestamp(9), "x-twinbus-created": Timestamp(8)}
    others = ["m", b"user", "to", "subject", "reply", ULong(1), Symbol("type"), Symbol("encoding")]
    one = restored(application, properties=[*others, None, None, None, UInt(3), "replies"])
    assert same(fields_of(one), [*others, Timestamp(9), Timestamp(8), "s", UInt(3), "replies"])
    assert same(
        fields_of(restored(application, properties=[])), [None] * 8 + [Timestamp(9), Timestamp(8), "s", None, None]
    )


def test_empty_session_id_is_restored() -> None:
    assert fields_of(restored({"x-ms-sessionid": ""}))[10] == ""


def test_values_of_the_backlogs_broker_in_cleared_fields_are_dropped() -> None:
    # The service writes the queue's time to live and the resulting expiry on every message.
    scheduled = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5)}
    fields = ["m", *[None] * 7, Timestamp(NOW + 9), Timestamp(NOW), "session"]
    one = restored({}, header=[None, None, UInt(9)], annotations=scheduled, properties=fields)
    assert header_of(one)[2] is None
    assert same(fields_of(one), ["m", *[None] * 12])
    assert sections.split_sections(one.payload).message_annotations == b""


def test_scheduled_time_is_restored_as_an_annotation() -> None:
    one = restored({"x-ms-scheduledenqueuetimeutc": Timestamp(NOW + 5)}, annotations={Symbol("x-opt-other"): "kept"})
    section = sections.section_value(sections.split_sections(one.payload).message_annotations)
    assert same(section, {Symbol("x-opt-other"): "kept", Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW + 5)})


def test_senders_own_property_gets_its_name_back() -> None:
    own = {"x-twinbus-own-x-ms-path": "mine", "x-twinbus-own-x-twinbus-own-": Symbol("s"), "x-twinbus-own-": 1.5}
    section = sections.split_sections(restored(own).payload).application_properties
    assert section == map_of(
        sections.APPLICATION_PROPERTIES, {"x-ms-path": "mine", "x-twinbus-own-": Symbol("s"), "": 1.5}
    )


def test_dead_letter_properties_of_the_queue_are_dropped() -> None:
    application = {"DeadLetterReason": "r", "DeadLetterErrorDescription": "d"}
    assert sections.split_sections(restored(application).payload).application_properties == b""


# ---- time ----


def with_life(milliseconds: int, ttl: str = "remaining", waited: int = 0, **others: Any) -> Restored:
    times = {"x-twinbus-created": Timestamp(NOW - waited), "x-twinbus-expiry": Timestamp(NOW - waited + milliseconds)}
    return restored({"x-ms-timetolive": timespan(milliseconds), **times, **others}, ttl, enqueued_at=NOW - waited)


@given(st.integers(0, MAX_UINT // 2), st.integers(1, MAX_UINT // 2))
def test_time_in_the_backlog_reduces_the_time_to_live(waited: int, left: int) -> None:
    one = with_life(waited + left, waited=waited)
    assert not one.expired
    assert same(header_of(one)[2], UInt(left))
    assert same(fields_of(one)[8:10], [Timestamp(NOW + left), Timestamp(NOW - waited)])


@given(st.integers(0, MAX_UINT), st.integers(0, MAX_UINT))
def test_message_expires_when_its_time_to_live_ends(life: int, longer: int) -> None:
    one = with_life(life, waited=life + longer)
    assert one.expired
    assert one.payload == b""
    assert (one.destination, one.message_id, one.sequence_number) == ("orders", "m", 42)


@given(st.integers(0, MAX_UINT), st.integers(0, MAX_UINT))
def test_restarted_time_to_live_is_full_and_never_expired(life: int, waited: int) -> None:
    one = with_life(life, "restart", waited)
    assert not one.expired
    assert same(header_of(one)[2], UInt(life))
    assert same(fields_of(one)[8:10], [Timestamp(NOW + life), Timestamp(NOW)])


def test_clock_that_goes_back_does_not_change_the_time_to_live() -> None:
    for ttl in ("remaining", "restart"):
        one = with_life(1000, ttl, waited=-500)
        assert header_of(one)[2] == 1000
        assert fields_of(one)[8] == NOW + 1500


def test_time_to_live_starts_at_the_scheduled_time() -> None:
    scheduled = {"x-ms-scheduledenqueuetimeutc": Timestamp(NOW - 300)}
    assert header_of(with_life(1000, waited=5000, **scheduled))[2] == 700
    assert header_of(with_life(1000, waited=200, **scheduled))[2] == 800
    later = {"x-ms-scheduledenqueuetimeutc": Timestamp(NOW + 300)}
    assert header_of(with_life(1000, waited=5000, **later))[2] == 1000


def test_expiry_without_a_time_to_live_is_left_to_the_destination() -> None:
    times = {"x-twinbus-created": Timestamp(1), "x-twinbus-expiry": Timestamp(2)}
    for ttl in ("remaining", "restart"):
        one = restored(times, ttl, enqueued_at=NOW - 1000)
        assert not one.expired
        assert fields_of(one)[8:10] == [2, 1]
        assert header_of(one)[2] is None


def test_time_to_live_is_capped_at_the_headers_maximum() -> None:
    assert header_of(restored({"x-ms-timetolive": timespan(MAX_UINT + 5)}))[2] == MAX_UINT
    assert header_of(restored({"x-ms-timetolive": Long(2**63 - 1)}))[2] is None


def test_times_as_plain_integers_are_read() -> None:
    one = restored({"x-ms-timetolive": Long(50_000), "x-ms-scheduledenqueuetimeutc": Long(7), "x-twinbus-expiry": 8})
    assert header_of(one)[2] == 5
    assert same(fields_of(one)[8], Timestamp(8))


# ---- what cannot be restored ----


def test_message_without_a_path_has_no_envelope() -> None:
    with pytest.raises(NoEnvelopeError, match="x-ms-path") as caught:
        restore(delivery({"x-ms-sessionid": "s"}), now_ms=NOW, ttl="remaining")
    assert caught.value.reason == "NoEnvelope"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-ms-path", b"orders"),
        ("x-ms-path", ""),
        ("x-ms-path", None),
        ("x-ms-path", "p" * 261),
        ("x-ms-path", Timestamp(5)),
        ("x-ms-sessionid", 5),
        ("x-ms-timetolive", "PT1M"),
        ("x-ms-timetolive", Long(-1)),
        ("x-ms-timetolive", True),
        ("x-ms-timetolive", Described(Symbol("com.microsoft:datetime-offset"), Long(5))),
        ("x-ms-scheduledenqueuetimeutc", "orders"),
        ("x-twinbus-expiry", 1.5),
        ("x-twinbus-created", ULong(2**63)),
    ],
)
def test_malformed_alias_is_named_in_the_error(name: str, value: Any) -> None:
    with pytest.raises(MalformedEnvelopeError, match=name) as caught:
        restored({name: value})
    assert caught.value.reason == "MalformedEnvelope"


def test_duplicate_alias_is_refused() -> None:
    split = sections.split_sections(delivery({"x-ms-path": "a"}))
    paths = [sections.entry("x-ms-path", "a"), sections.entry("x-ms-path", "b")]
    section = sections.map_section(sections.APPLICATION_PROPERTIES, paths)
    with pytest.raises(MalformedEnvelopeError, match=r"x-ms-path.* twice"):
        restore(b"".join(split._replace(application_properties=section)), now_ms=NOW, ttl="remaining")


@pytest.mark.parametrize("name", ["x-opt-enqueued-time", "x-opt-sequence-number"])
def test_message_without_broker_annotations_is_refused(name: str) -> None:
    with pytest.raises(MalformedEnvelopeError, match=name):
        restored({}, annotations={Symbol(name): None})


@given(st.data())
@settings(max_examples=500)
def test_damaged_bytes_are_restored_or_refused_with_a_reason(data: st.DataObject) -> None:
    application = {"x-ms-path": "p", "x-ms-timetolive": timespan(5), "x-ms-sessionid": "s", "own": Symbol("x")}
    payload = bytearray(delivery(application))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(payload[: data.draw(st.integers(0, len(payload)) | st.just(len(payload)))])
    try:
        sections.split_sections(restore(damaged, now_ms=NOW, ttl="restart").payload)
    except EnvelopeError as error:
        event(error.reason)
    else:
        event("restored")
