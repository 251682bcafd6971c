"""Hypothesis strategies for SDK messages of every kind, and their encoded sizes."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import strategies as st
from tests.amqp.amqp_values import SIMPLE, SYMBOLS, UUIDS, Values
from tests.amqp.test_sdk_codec import DESCRIPTORS, KNOWN, as_the_sdk_writes_it

from twinbus.amqp.codec.types import Described, UByte, UInt
from twinbus.envelope import aliases
from twinbus.pairing.sdk.version import INSTALLED

MINUTE_MS = 60_000
MAX_UINT = 0xFFFFFFFF


def encoded(message: AmqpAnnotatedMessage) -> bytes:
    """Return the bytes that the SDK sends for a message."""
    return bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(_untouched(message))))


def written_size(message: AmqpAnnotatedMessage) -> int:
    """How many bytes the SDK makes of a message: what a batch grows by, without the section around the message."""
    batch = ServiceBusMessageBatch(1 << 40)
    before = batch.size_in_bytes
    batch.add_message(_untouched(message))
    grown = batch.size_in_bytes - before
    return grown - (5 if grown < 256 + 5 else 8)


def _untouched(message: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """A copy of the message: the SDK decodes properties of type bytes in place."""
    copied = copy.copy(message)
    if copied.application_properties:
        copied.application_properties = dict(copied.application_properties)
    return copied


def _compounds(inner: Values) -> Values:
    return (
        st.lists(inner, max_size=4)
        | st.dictionaries(SIMPLE[str], inner, max_size=3)
        | st.builds(Described, DESCRIPTORS, inner)
    )


#: Values of an exact type, in the SDK's notation.
TYPED: Values = st.recursive(st.one_of(*KNOWN.values()), _compounds, max_leaves=6).map(as_the_sdk_writes_it)
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC))
#: Values whose type the SDK chooses.
PLAIN: Values = st.one_of(
    TEXT,
    st.integers(-(2**31), 2**31 - 1),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    UUIDS,
    MOMENTS,
    # The SDK encodes them from 7.14 on.
    st.decimals(-(10**12), 10**12, places=3) if INSTALLED >= (7, 14) else st.nothing(),
)
VALUES = TYPED | PLAIN

TAKEN_NAMES = [
    *sorted(aliases.ALIASES),
    *sorted(aliases.DEAD_LETTER_PROPERTIES),
    aliases.OWN,
    aliases.OWN + "x-ms-path",
]
NAMES = TEXT | st.sampled_from([*TAKEN_NAMES, "x-ms-other", "x-twinbus-other", "x-opt-sequence-number"])
ANNOTATION_NAMES = (SYMBOLS.map(str) | st.sampled_from(["x-opt-partition-key", "x-opt-via-partition-key"])).filter(
    lambda name: name not in aliases.BROKER_ANNOTATIONS | {aliases.SCHEDULED_ANNOTATION}
)


@st.composite
def _keyed(draw: st.DrawFn, names: Values, values: Values, numbers: bool = False) -> dict[Any, Any] | None:
    """A map as a user may write it: keys may be bytes, and those of annotations numbers."""
    entries = draw(st.none() | st.dictionaries(names, values, max_size=5))
    if entries is None:
        return None
    keyed: dict[Any, Any] = {name.encode() if draw(st.booleans()) else name: value for name, value in entries.items()}
    if numbers and draw(st.booleans()):
        keyed[draw(st.integers(0, 2**64 - 1))] = draw(values)
    return keyed


ANNOTATIONS = _keyed(ANNOTATION_NAMES, VALUES, numbers=True)
# Properties of type bytes are decoded by the SDK.
APPLICATION_PROPERTIES = _keyed(NAMES, VALUES | TEXT.map(str.encode))

SHORT_TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
_EITHER_TEXT = SHORT_TEXT | SHORT_TEXT.map(str.encode)
_IDS = SHORT_TEXT | UUIDS | st.integers(0, 2**64 - 1) | st.binary(max_size=20)
_SYMBOL_TEXT = SYMBOLS.map(str)
# A message's life is long enough for it to arrive.
LIVES = st.none() | st.integers(10 * MINUTE_MS, MAX_UINT) | st.just(MAX_UINT)


def _optional(**fields: Values) -> Values:
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def _properties(draw: st.DrawFn) -> dict[str, Any]:
    fields: dict[str, Any] = draw(
        _optional(
            user_id=st.binary(max_size=20),
            to=_EITHER_TEXT,
            subject=_EITHER_TEXT,
            reply_to=_EITHER_TEXT,
            correlation_id=_IDS,
            content_type=_SYMBOL_TEXT,
            content_encoding=_SYMBOL_TEXT,
            creation_time=st.integers(0, 2**50),
            group_id=_EITHER_TEXT,
            group_sequence=SIMPLE[UInt].map(int),
            reply_to_group_id=_EITHER_TEXT,
        )
    )
    fields["message_id"] = draw(_IDS)
    if draw(st.booleans()):
        # A namespace takes the time between the two for the message's life if there is no other.
        fields["absolute_expiry_time"] = fields.get("creation_time", 0) + draw(st.integers(10 * MINUTE_MS, 2**50))
    return fields


HEADERS = _optional(
    durable=st.booleans(),
    priority=SIMPLE[UByte].map(int),
    time_to_live=LIVES,
    first_acquirer=st.booleans(),
    delivery_count=SIMPLE[UInt].map(int),
)
# The SDK leaves out a body that is false, and knows no exact type for the value of a body itself.
BODIES = st.one_of(
    st.fixed_dictionaries({"data_body": st.lists(st.binary(max_size=300), max_size=3)}),
    st.fixed_dictionaries({"sequence_body": st.lists(st.lists(VALUES, max_size=3), max_size=3)}),
    st.fixed_dictionaries({"value_body": PLAIN | st.lists(VALUES, max_size=4)}),
)


@st.composite
def sdk_messages(draw: st.DrawFn) -> AmqpAnnotatedMessage:
    """A message with anything in it that the SDK can send."""
    annotations = draw(ANNOTATIONS)
    if draw(st.booleans()):
        key = draw(st.sampled_from([aliases.SCHEDULED_ANNOTATION, aliases.SCHEDULED_ANNOTATION.encode()]))
        moment = draw(st.datetimes(datetime(2000, 1, 1), datetime(2020, 1, 1), timezones=st.just(UTC)))
        annotations = {**(annotations or {}), key: moment}
    properties = draw(_properties())
    return AmqpAnnotatedMessage(
        header=draw(st.none() | HEADERS),
        properties=properties,
        annotations=_with_allowed_partition_key(draw, annotations, properties.get("group_id")),
        delivery_annotations=draw(ANNOTATIONS),
        application_properties=draw(APPLICATION_PROPERTIES),
        footer=draw(ANNOTATIONS),
        **draw(BODIES),
    )


def _with_allowed_partition_key(
    draw: st.DrawFn, annotations: dict[Any, Any] | None, session: str | bytes | None
) -> dict[Any, Any] | None:
    """A namespace wants a short text, and that of the session if there is one."""
    allowed = draw(SHORT_TEXT) if session is None else session if isinstance(session, str) else session.decode()
    names = ("x-opt-partition-key", b"x-opt-partition-key")
    return annotations and {key: allowed if key in names else value for key, value in annotations.items()}


def typed(kind: str, value: Any) -> dict[str, Any]:
    """A value of an exact AMQP type, as the SDK takes it."""
    return {"TYPE": kind, "VALUE": value}
