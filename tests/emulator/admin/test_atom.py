"""Conversion of descriptions to and from Atom XML, and invalid XML."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.emulator.admin.memory_registry import MemoryQueue, MemorySubscription, MemoryTopic
from tests.emulator.entity_strategies import DESCRIPTIONS

from twinbus.emulator.admin import atom, markup
from twinbus.emulator.admin.address import Address
from twinbus.emulator.admin.properties import format_time, read_properties
from twinbus.emulator.admin.rules import read_rule, write_rule
from twinbus.servicebus.entity_descriptions import (
    AnyDescription,
    Counts,
    InvalidDescriptionError,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.servicebus.rule_descriptions import Correlation, FilterKind, RuleDescription, Sql, Value

ADDRESS = Address("https", "127.0.0.1:5672", "2024-05")
DOCUMENT = atom.Document(ADDRESS, "contoso", 1_800_000_000.0, 256)
SB = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"


def view_of(description: AnyDescription) -> MemoryQueue | MemoryTopic | MemorySubscription:
    if isinstance(description, QueueDescription):
        return MemoryQueue(1.0, 2.0, description=description)
    if isinstance(description, TopicDescription):
        return MemoryTopic(1.0, 2.0, description=description)
    return MemorySubscription(1.0, 2.0, description=description)


def bare(description: AnyDescription) -> AnyDescription:
    """The description before its properties are read: only its path is set."""
    if isinstance(description, SubscriptionDescription):
        return SubscriptionDescription(description.topic, description.name)
    return type(description)(description.path)


def entry_of(description: str) -> bytes:
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
        f'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{description}</QueueDescription></content></entry>'
    ).encode()


def read(description: str) -> QueueDescription:
    return read_properties(atom.description_in(entry_of(description)), QueueDescription("q"), ADDRESS)


@given(DESCRIPTIONS)
def test_description_survives_a_round_trip(description: AnyDescription) -> None:
    element = atom.description_in(DOCUMENT.entity(view_of(description)))
    assert atom.kind_of(element) == f"{description.KIND}Description"
    again = read_properties(element, bare(description), ADDRESS)
    if not isinstance(again, SubscriptionDescription):
        assert again.max_message_size_in_kilobytes == 256
        again = replace(again, max_message_size_in_kilobytes=None)
    assert again == description


def test_entry_has_the_format_of_official_clients() -> None:
    queue = QueueDescription("eu/orders", forward_to="audit")
    view = MemoryQueue(1.0, 2.0, description=queue, counts=Counts(1, 2, 3, 4, 5))
    text = DOCUMENT.entity(view).decode()
    assert text.startswith('<entry xmlns="http://www.w3.org/2005/Atom">')
    assert "<id>https://127.0.0.1:5672/eu/orders?api-version=2024-05</id>" in text
    assert '<title type="text">eu/orders</title>' in text
    assert '<content type="application/xml"><QueueDescription xmlns="http://schemas.microsoft.com/' in text
    assert "<ForwardTo>sb://127.0.0.1:5672/audit</ForwardTo>" in text
    assert "<MessageCount>15</MessageCount>" in text
    details = (
        '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
        "<d2p1:ActiveMessageCount>1</d2p1:ActiveMessageCount>"
        "<d2p1:DeadLetterMessageCount>2</d2p1:DeadLetterMessageCount>"
        "<d2p1:ScheduledMessageCount>3</d2p1:ScheduledMessageCount>"
        "<d2p1:TransferMessageCount>5</d2p1:TransferMessageCount>"
        "<d2p1:TransferDeadLetterMessageCount>4</d2p1:TransferDeadLetterMessageCount></CountDetails>"
    )
    assert details in text
    assert "ns0:" not in text


def test_topic_shows_its_subscription_count() -> None:
    topic = MemoryTopic(1.0, 2.0, description=TopicDescription("t"))
    topic.subscriptions["s"] = MemorySubscription(1.0, 2.0, description=SubscriptionDescription("t", "s"))
    text = DOCUMENT.entity(topic).decode()
    assert "<SubscriptionCount>1</SubscriptionCount>" in text
    assert "<SqlFilterCount>1</SqlFilterCount><CorrelationFilterCount>0</CorrelationFilterCount>" in text


def test_older_api_version_omits_newer_elements() -> None:
    topic = MemoryTopic(1.0, 2.0, description=TopicDescription("t"))
    older = replace(DOCUMENT, address=replace(ADDRESS, api_version="2017-04")).entity(topic)
    assert b"MaxMessageSizeInKilobytes" not in older
    assert b"SqlFilterCount" not in older
    assert b"MaxMessageSizeInKilobytes" in DOCUMENT.entity(topic)


def test_time_zero_is_the_year_one() -> None:
    assert format_time(0) == "0001-01-01T00:00:00Z"
    assert format_time(1_800_000_000.25) == "2027-01-15T08:00:00.2500000Z"


def test_missing_or_nil_properties_get_defaults() -> None:
    assert read("") == QueueDescription("q")
    assert read('<LockDuration i:nil="true"/><ForwardTo/><UserMetadata></UserMetadata>') == QueueDescription("q")


def test_unknown_and_read_only_properties_are_ignored() -> None:
    described = read(
        "<Colour>red</Colour><SizeInBytes>7</SizeInBytes><CreatedAt>never</CreatedAt>"
        "<EntityAvailabilityStatus>Limited</EntityAvailabilityStatus>"
    )
    assert described == QueueDescription("q")


@pytest.mark.parametrize(
    ("description", "field"),
    [
        ("<LockDuration>soon</LockDuration>", "lock_duration"),
        ("<LockDuration/>", "lock_duration"),
        ("<MaxDeliveryCount>1.5</MaxDeliveryCount>", "max_delivery_count"),
        ("<MaxDeliveryCount>99999999999999999999</MaxDeliveryCount>", "max_delivery_count"),
        ("<RequiresSession>maybe</RequiresSession>", "requires_session"),
        ("<ForwardTo>sb://elsewhere.example/q</ForwardTo>", "forward_to"),
        ("<ForwardTo>sb://127.0.0.1:5673/q</ForwardTo>", "forward_to"),
        ("<ForwardTo>sb://127.0.0.1:nine/q</ForwardTo>", "forward_to"),
        (
            '<AuthorizationRules><AuthorizationRule i:type="AllowRule"/></AuthorizationRules>',
            "authorization_rules",
        ),
        (
            "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Own</AccessRights></Rights>"
            "</AuthorizationRule></AuthorizationRules>",
            "authorization_rules",
        ),
    ],
)
def test_invalid_property_is_refused_by_name(description: str, field: str) -> None:
    with pytest.raises(InvalidDescriptionError) as caught:
        read(description)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "target",
    ["audit", "/audit", "sb://127.0.0.1:5672/audit", "SB://localhost/audit", "https://[::1]:5672/audit/"],
)
def test_forward_target_may_be_a_path_or_url(target: str) -> None:
    assert ADDRESS.path_of(target) == "audit"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"<entry",
        b"<a><b></a>",
        b'<?xml version="1.0" encoding="no-such-thing"?><a/>',
        b"\xff\xfe<\x00",
        b"<!DOCTYPE a><a/>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
        '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a><a/>'.encode("utf-16"),
        b"<a>" * 33 + b"</a>" * 33,
        b"<a/>",
        b'<entry xmlns="http://www.w3.org/2005/Atom"/>',
        b'<entry xmlns="http://www.w3.org/2005/Atom"><content/></entry>',
        b'<entry xmlns="http://www.w3.org/2005/Atom"><content><QueueDescription/></content></entry>',
    ],
)
def test_body_without_a_description_entry_is_refused(body: bytes) -> None:
    with pytest.raises(markup.InvalidMarkupError):
        atom.description_in(body)


@given(st.binary(max_size=300))
@example(b"<?xml version='1.0' encoding='utf-7'?><a/>")
@example(b"<?xml version='1.0' encoding='rot13'?><a/>")
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    try:
        atom.description_in(body)
    except markup.InvalidMarkupError:
        return


@given(st.text(max_size=200))
def test_error_document_may_quote_any_text(detail: str) -> None:
    root = ET.fromstring(atom.error(400, detail))
    assert root.findtext("Code") == "400"
    assert len(root.findtext("Detail") or "") == len(detail)


def subscription(rule: str) -> ET.Element:
    return ET.fromstring(
        f'<S xmlns="{SB[1:-1]}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
        f' xmlns:x="http://www.w3.org/2001/XMLSchema">{rule}</S>'
    )


def test_subscription_request_may_include_a_default_rule() -> None:
    assert atom.default_rule_in(subscription("")) is None
    element = atom.default_rule_in(subscription("<DefaultRuleDescription/>"))
    assert element is not None
    assert read_rule(element, None, 5.0) == RuleDescription(created_at=5.0)


VALUE = st.one_of(
    st.builds(Value, st.just("string"), st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1)),
    st.builds(lambda number: Value("int", str(number)), st.integers(-(1 << 31), (1 << 31) - 1)),
    st.builds(lambda truth: Value("boolean", str(truth).lower()), st.booleans()),
    st.builds(lambda number: Value("double", repr(number)), st.floats(allow_nan=False)),
)
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp"]), min_size=1, max_size=20)
VALUES = st.dictionaries(TEXT, VALUE, max_size=4).map(lambda element: tuple(element.items()))
FILTERS = st.one_of(
    st.builds(lambda values: (FilterKind.SQL, Sql("a = 1", values)), VALUES),
    st.builds(
        lambda label, values: (FilterKind.CORRELATION, Correlation(label=label, properties=values)), TEXT, VALUES
    ),
    st.just((FilterKind.TRUE, Sql("1=1"))),
    st.just((FilterKind.FALSE, Sql("1=0"))),
)


@given(FILTERS, st.none() | st.builds(lambda values: Sql("SET a = 1", values), VALUES))
def test_rule_survives_a_round_trip(kind: tuple[FilterKind, Sql | Correlation], action: Sql | None) -> None:
    rule = RuleDescription("mine", kind[1], kind[0], action, 7.0)
    read = read_rule(ET.fromstring(ET.tostring(write_rule(rule))), "mine", 7.0)
    assert read == rule
    assert RuleDescription.from_json(json.loads(json.dumps(rule.to_json()))) == rule


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ('<Filter i:type="ExoticFilter"/>', "A filter must be one of"),
        ("<Filter/>", "A filter must be one of"),
        ('<Filter i:type="SqlFilter"/>', "must have an SqlExpression"),
        ('<Filter i:type="SqlFilter"><SqlExpression>a =</SqlExpression></Filter>', "At position 4"),
        ('<Filter i:type="CorrelationFilter"/>', "at least one property"),
        ('<Action i:type="SqlRuleAction"/>', "An action must be"),
        ('<Action i:type="SqlRuleAction"><SqlExpression>DROP x</SqlExpression></Action>', "expected SET"),
        ("<Name>other</Name>", "in the address"),
        (
            '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>a</Key>'
            '<Value i:type="x:int">many</Value></KeyValueOfstringanyType></Properties></Filter>',
            "has an invalid parameter or property",
        ),
        (
            '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>a</Key>'
            "</KeyValueOfstringanyType></Properties></Filter>",
            "must have a value",
        ),
    ],
)
def test_invalid_rule_is_refused(rule: str, says: str) -> None:
    with pytest.raises(InvalidDescriptionError, match=says):
        read_rule(subscription(rule), "mine", 0.0)
