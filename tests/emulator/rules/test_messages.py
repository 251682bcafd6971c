"""Rules on real messages: values of every AMQP type, broker properties, and copies changed by actions."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.amqp.amqp_values import SIMPLE_VALUES, TEXT

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import Decimal128, Described, Symbol, Timestamp, ULong
from twinbus.emulator.entities.decimals import decimal_value, to_service_form
from twinbus.emulator.entities.rules.ruleset import RuleOutcome, RuleSet
from twinbus.emulator.entities.rules.subject import MessageSubject, broker_properties
from twinbus.servicebus.rule_descriptions import FilterKind, RuleDescription, Sql, Value
from twinbus.servicebus.sql_filter.values import MAX_TEXT

NOW = 1_700_000_000_000
MINUTE = 60_000
YEAR_146_MILLION = Timestamp(1 << 62)
# Filters on `a` and `b` that fail to evaluate for some values.
DEMANDING = [
    *(f"a {sign} b" for sign in ("=", "<>", "<", "<=", ">", ">=")),
    *(f"a {sign} b = 1" for sign in "+-*/%"),
    "-a > 1 OR +b > 1",
    "a LIKE b",
    "a IN (b, 1, 'x')",
    "NOT a OR b",
    "EXISTS(a) AND b IS NOT NULL",
    "p(a) = b",
    "sys.MessageId = a OR sys.PartitionKey = a OR sys.ScheduledEnqueueTimeUtc < b",
]
CHANGING = ["SET x = a + b", "SET x = a; SET a = b; REMOVE b", "SET sys.SessionId = a; SET sys.Label = b"]


def bare(application_properties: dict[str, Any] | None = None, *fields: Any) -> bytes:
    entries = [sections.entry(name, value) for name, value in (application_properties or {}).items()]
    properties = sections.list_section(sections.PROPERTIES, [encode(field) for field in fields])
    return properties + sections.map_section(sections.APPLICATION_PROPERTIES, entries) + b"\x00\x53\x75\xa0\x01x"


def evaluate(
    application_properties: dict[str, Any],
    text: str,
    action: str | None = None,
    parameters: dict[str, Value] | None = None,
    expires_at: int | None = None,
) -> RuleOutcome:
    sql = Sql(text, tuple((parameters or {}).items()))
    rule = RuleDescription("rule", sql, FilterKind.SQL, None if action is None else Sql(action))
    message = bare(application_properties, "m")
    return RuleSet([rule]).evaluate(MessageSubject(message, broker_properties(None, NOW, expires_at, len(message))))


def passes(application_properties: dict[str, Any], text: str, **options: Any) -> bool:
    outcome = evaluate(application_properties, text, **options)
    assert outcome.failures == []
    return bool(outcome.copies)


def properties_of(copy: bytes) -> dict[str, Any]:
    entries = sections.map_entries(sections.split_sections(copy).application_properties)
    return {str(key): sections.entry_value(raw) for key, raw in entries}


# ---- arbitrary values ----


ANYTHING = SIMPLE_VALUES | st.lists(SIMPLE_VALUES, max_size=2) | st.dictionaries(TEXT, SIMPLE_VALUES, max_size=2)


@given(a=ANYTHING, b=ANYTHING, text=st.sampled_from(DEMANDING), action=st.sampled_from([None, *CHANGING]))
def test_rule_evaluates_every_message(a: Any, b: Any, text: str, action: str | None) -> None:
    outcome = evaluate({"a": a, "b": b}, text, action)
    assert len(outcome.copies) + len(outcome.failures) <= 1
    # An unexpected error would show as the name of its class.
    assert not any(failure.why.endswith(("Error", "Exception")) for failure in outcome.failures)


@given(a=ANYTHING, text=st.sampled_from(CHANGING))
def test_action_can_set_every_value(a: Any, text: str) -> None:
    outcome = evaluate({"a": a, "b": "b"}, "1 = 1", text)
    assert not any(failure.why.endswith(("Error", "Exception")) for failure in outcome.failures)


def test_time_after_year_9999_fails_only_rules_that_read_it() -> None:
    properties = {"far": YEAR_146_MILLION, "color": "red"}
    assert passes(properties, "color = 'red'")
    (failure,) = evaluate(properties, "far > 1").failures
    assert "after the year 9999" in failure.why


def test_action_keeps_the_largest_ulong() -> None:
    (copy,) = evaluate({"a": ULong((1 << 64) - 1)}, "1 = 1", "SET x = a").copies
    assert properties_of(copy)["x"] == (1 << 64) - 1


def test_concatenated_text_is_bounded() -> None:
    (failure,) = evaluate({"a": "x" * 100}, "1 = 1", "SET a = a + a;" * 20).failures
    assert failure.why == f"a concatenated text must have at most {MAX_TEXT} characters"


@pytest.mark.parametrize("name", ["SessionId", "MessageId", "ReplyToSessionId"])
def test_action_cannot_set_an_id_longer_than_the_limit(name: str) -> None:
    assert evaluate({"a": "x" * 128}, "1 = 1", f"SET sys.{name} = a").copies
    (failure,) = evaluate({"a": "x" * 129}, "1 = 1", f"SET sys.{name} = a").failures
    assert failure.why == f"sys.{name.lower()} would have 129 characters; the limit is 128"


# ---- value conversion ----


def decimal128(text: str) -> Decimal128:
    """The number in IEEE decimal128."""
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits)))
    return Decimal128((sign << 127 | (exponent + 6176) << 113 | number).to_bytes(16))


@pytest.mark.parametrize("text", ["9.5", "-9.5", "0", "-0.0001", "1E+3", "7922816251426433759354395033.5", "1E-40"])
def test_decimal_has_the_same_value_in_ieee_and_service_form(text: str) -> None:
    ieee = decimal128(text)
    assert decimal_value(ieee) == float(text)
    assert decimal_value(to_service_form(ieee)) == float(text)


def test_decimals_are_compared_as_numbers() -> None:
    properties = {"price": Decimal128(to_service_form(decimal128("9.95")))}
    assert passes(properties, "price > 5 AND price = 9.95 AND price < 10")
    assert passes(properties, "price * 2 = 19.9")


def test_timespan_is_compared_in_seconds() -> None:
    properties = {"wait": Described(Symbol("com.microsoft:timespan"), 15_000_000)}
    assert passes(properties, "wait = 1.5 AND wait < @most", parameters={"@most": Value("duration", "PT2S")})


def test_time_without_a_zone_is_utc() -> None:
    properties = {"at": Timestamp(NOW)}
    assert passes(properties, "at > @then", parameters={"@then": Value("dateTime", "2020-01-01T00:00:00")})


# ---- broker properties ----


def test_filter_can_read_time_to_live_and_expiry() -> None:
    soon = {"@soon": Value("dateTime", datetime.fromtimestamp((NOW + 2 * MINUTE) / 1000, UTC).isoformat())}
    assert passes({}, "sys.TimeToLive = 60 AND sys.ExpiresAtUtc < @soon", expires_at=NOW + MINUTE, parameters=soon)
    assert not passes({}, "sys.ExpiresAtUtc < @soon", expires_at=NOW + 5 * MINUTE, parameters=soon)


@pytest.mark.parametrize("expires_at", [None, (1 << 63) - 1])
def test_message_without_expiry_has_the_maximum_time_to_live(expires_at: int | None) -> None:
    far = {"@far": Value("dateTime", "9000-01-01T00:00:00Z")}
    text = "sys.TimeToLive > 100000000000 AND sys.ExpiresAtUtc > @far"
    assert passes({}, text, expires_at=expires_at, parameters=far)
