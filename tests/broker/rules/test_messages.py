"""What rules make of real messages: values of every AMQP type, facts of the namespace, and copies that are changed."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.amqp.amqp_values import SIMPLE_VALUES, TEXT

from twinbus.amqp import sections
from twinbus.amqp.encoding import encode
from twinbus.amqp.types import Decimal128, Described, Symbol, Timestamp, ULong
from twinbus.broker.decimals import rewritten, value_of
from twinbus.broker.rules.descriptions import FilterKind, RuleDescription, Sql, Value
from twinbus.broker.rules.ruleset import RuleSet, Verdict
from twinbus.broker.rules.subject import MessageSubject, facts_of
from twinbus.broker.rules.values import MAX_TEXT

NOW = 1_700_000_000_000
MINUTE = 60_000
YEAR_146_MILLION = Timestamp(1 << 62)
# Each asks something of `a` and `b` that some values do not suit.
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


def bare(own: dict[str, Any] | None = None, *fields: Any) -> bytes:
    entries = [sections.entry(name, value) for name, value in (own or {}).items()]
    properties = sections.list_section(sections.PROPERTIES, [encode(field) for field in fields])
    return properties + sections.map_section(sections.APPLICATION_PROPERTIES, entries) + b"\x00\x53\x75\xa0\x01x"


def judge(
    own: dict[str, Any],
    text: str,
    action: str | None = None,
    parameters: dict[str, Value] | None = None,
    expires_at: int | None = None,
) -> Verdict:
    wanted = Sql(text, tuple((parameters or {}).items()))
    rule = RuleDescription("rule", wanted, FilterKind.SQL, None if action is None else Sql(action))
    message = bare(own, "m")
    return RuleSet([rule]).judge(MessageSubject(message, facts_of(None, NOW, expires_at, len(message))))


def passes(own: dict[str, Any], text: str, **options: Any) -> bool:
    verdict = judge(own, text, **options)
    assert verdict.failures == []
    return bool(verdict.copies)


def own_of(copy: bytes) -> dict[str, Any]:
    entries = sections.map_entries(sections.split_sections(copy).application_properties)
    return {str(key): sections.entry_value(raw) for key, raw in entries}


# ---- whatever a message holds ----


ANYTHING = SIMPLE_VALUES | st.lists(SIMPLE_VALUES, max_size=2) | st.dictionaries(TEXT, SIMPLE_VALUES, max_size=2)


@given(a=ANYTHING, b=ANYTHING, text=st.sampled_from(DEMANDING), action=st.sampled_from([None, *CHANGING]))
def test_a_rule_has_an_answer_for_every_message(a: Any, b: Any, text: str, action: str | None) -> None:
    verdict = judge({"a": a, "b": b}, text, action)
    assert len(verdict.copies) + len(verdict.failures) <= 1
    # A failure that nobody has thought of carries the name of a class, and is in the log.
    assert not any(failure.why.endswith(("Error", "Exception")) for failure in verdict.failures)


@given(a=ANYTHING, text=st.sampled_from(CHANGING))
def test_every_value_can_be_set(a: Any, text: str) -> None:
    verdict = judge({"a": a, "b": "b"}, "1 = 1", text)
    assert not any(failure.why.endswith(("Error", "Exception")) for failure in verdict.failures)


def test_a_time_that_no_calendar_has_is_a_failure_of_the_rules_that_ask_for_it_alone() -> None:
    own = {"far": YEAR_146_MILLION, "color": "red"}
    assert passes(own, "color = 'red'")
    (failure,) = judge(own, "far > 1").failures
    assert "after the year 9999" in failure.why


def test_the_largest_numbers_stay_what_they_are_when_they_are_set() -> None:
    (copy,) = judge({"a": ULong((1 << 64) - 1)}, "1 = 1", "SET x = a").copies
    assert own_of(copy)["x"] == (1 << 64) - 1


def test_a_text_cannot_grow_without_end() -> None:
    (failure,) = judge({"a": "x" * 100}, "1 = 1", "SET a = a + a;" * 20).failures
    assert failure.why == f"a text has become longer than {MAX_TEXT} characters"


@pytest.mark.parametrize("name", ["SessionId", "MessageId", "ReplyToSessionId"])
def test_an_id_that_is_set_is_no_longer_than_one_that_is_sent(name: str) -> None:
    assert judge({"a": "x" * 128}, "1 = 1", f"SET sys.{name} = a").copies
    (failure,) = judge({"a": "x" * 129}, "1 = 1", f"SET sys.{name} = a").failures
    assert failure.why == f"sys.{name.lower()} would have 129 characters; the limit is 128"


# ---- what values stand for ----


def decimal128(text: str) -> Decimal128:
    """As the proper form has it."""
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits)))
    return Decimal128((sign << 127 | (exponent + 6176) << 113 | number).to_bytes(16))


@pytest.mark.parametrize("text", ["9.5", "-9.5", "0", "-0.0001", "1E+3", "7922816251426433759354395033.5", "1E-40"])
def test_a_decimal_is_the_same_number_in_the_proper_form_and_in_the_services(text: str) -> None:
    proper = decimal128(text)
    assert value_of(proper) == float(text)
    assert value_of(rewritten(proper)) == float(text)


def test_decimals_are_compared_as_numbers() -> None:
    own = {"price": Decimal128(rewritten(decimal128("9.95")))}
    assert passes(own, "price > 5 AND price = 9.95 AND price < 10")
    assert passes(own, "price * 2 = 19.9")


def test_a_span_of_time_is_compared_in_seconds() -> None:
    own = {"wait": Described(Symbol("com.microsoft:timespan"), 15_000_000)}
    assert passes(own, "wait = 1.5 AND wait < @most", parameters={"@most": Value("duration", "PT2S")})


def test_a_time_without_a_zone_is_one_of_utc() -> None:
    own = {"at": Timestamp(NOW)}
    assert passes(own, "at > @then", parameters={"@then": Value("dateTime", "2020-01-01T00:00:00")})


# ---- what the namespace knows ----


def test_the_time_to_live_and_its_end_can_be_asked_for() -> None:
    soon = {"@soon": Value("dateTime", datetime.fromtimestamp((NOW + 2 * MINUTE) / 1000, UTC).isoformat())}
    assert passes({}, "sys.TimeToLive = 60 AND sys.ExpiresAtUtc < @soon", expires_at=NOW + MINUTE, parameters=soon)
    assert not passes({}, "sys.ExpiresAtUtc < @soon", expires_at=NOW + 5 * MINUTE, parameters=soon)


@pytest.mark.parametrize("expires_at", [None, (1 << 63) - 1])
def test_what_never_expires_lives_longer_than_anything(expires_at: int | None) -> None:
    far = {"@far": Value("dateTime", "9000-01-01T00:00:00Z")}
    text = "sys.TimeToLive > 100000000000 AND sys.ExpiresAtUtc > @far"
    assert passes({}, text, expires_at=expires_at, parameters=far)
