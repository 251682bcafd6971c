"""Validation of the properties of queues, topics and subscriptions."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from tests.emulator.entity_strategies import DESCRIPTIONS

from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.durations import MAX_TICKS, TICKS_PER_DAY, TICKS_PER_MINUTE, TICKS_PER_SECOND
from twinbus.servicebus.entity_descriptions import (
    AnyDescription,
    AuthorizationRule,
    InvalidDescriptionError,
    QueueDescription,
    SubscriptionDescription,
    Tier,
    TopicDescription,
    check_change,
    with_rule_times,
    with_size_of_partitions,
)

RULE = AuthorizationRule("key", "first", "second", frozenset({Right.SEND}))


def refused(description: AnyDescription, tier: Tier = Tier.STANDARD) -> InvalidDescriptionError:
    with pytest.raises(InvalidDescriptionError) as caught:
        description.validate(tier)
    return caught.value


@given(DESCRIPTIONS)
def test_valid_description_round_trips_through_json(description: AnyDescription) -> None:
    description.validate()
    kept = json.loads(json.dumps(description.to_json()))
    assert type(description).from_json(kept) == description


def test_defaults_match_the_service() -> None:
    queue = QueueDescription("q")
    assert queue.lock_duration == TICKS_PER_MINUTE
    assert queue.max_size_in_megabytes == 1024
    assert queue.max_delivery_count == 10
    assert queue.default_message_time_to_live == queue.auto_delete_on_idle == MAX_TICKS
    assert queue.duplicate_detection_history_time_window == 10 * TICKS_PER_MINUTE
    assert queue.enable_batched_operations
    assert queue.status == "Active"
    for description in (queue, TopicDescription("t"), SubscriptionDescription("t", "s")):
        description.validate(Tier.STANDARD)
        description.validate(Tier.PREMIUM)


def test_the_backlog_queue_of_a_pairing_is_valid() -> None:
    QueueDescription(
        "contoso/x-servicebus-transfer/0",
        max_size_in_megabytes=5120,
        max_delivery_count=2147483647,
        default_message_time_to_live=MAX_TICKS,
        auto_delete_on_idle=MAX_TICKS,
        lock_duration=TICKS_PER_MINUTE,
        dead_lettering_on_message_expiration=True,
    ).validate()


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/q",
        "q/",
        "a//b",
        "a b",
        "q?",
        "q#",
        "ü",
        "$q",
        "a/..",
        ".",
        "a\n",
        "a" * 261,
        "t/subscriptions/s",
    ],
)
def test_a_path_the_service_does_not_allow_is_refused(path: str) -> None:
    assert refused(QueueDescription(path)).field == "path"
    assert refused(TopicDescription(path)).field == "path"
    assert refused(SubscriptionDescription(path, "s")).field == "topic"
    assert refused(QueueDescription("q", forward_to=path)).field == "forward_to"


@pytest.mark.parametrize("path", ["q", "txt/.-_123", "a" * 260, "A/b/C", "subscriptions"])
def test_a_path_the_service_allows_is_valid(path: str) -> None:
    QueueDescription(path).validate()


@pytest.mark.parametrize("name", ["", "a" * 51, "a/b", "a b", "..", "$Default"])
def test_a_subscription_s_name_is_one_short_segment(name: str) -> None:
    assert refused(SubscriptionDescription("t", name)).field == "name"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lock_duration", 5 * TICKS_PER_MINUTE + 1),
        ("lock_duration", 5 * TICKS_PER_SECOND - 1),
        ("lock_duration", -1),
        ("max_size_in_megabytes", 0),
        ("max_size_in_megabytes", 1000),
        ("max_size_in_megabytes", 16 * 1024),
        ("default_message_time_to_live", TICKS_PER_SECOND - 1),
        ("default_message_time_to_live", MAX_TICKS + 1),
        ("duplicate_detection_history_time_window", 20 * TICKS_PER_SECOND - 1),
        ("duplicate_detection_history_time_window", 7 * TICKS_PER_DAY + 1),
        ("max_delivery_count", 0),
        ("max_delivery_count", 2**31),
        ("auto_delete_on_idle", 5 * TICKS_PER_MINUTE - 1),
        ("status", "Deleting"),
        ("user_metadata", "x" * 1025),
        ("user_metadata", "\x00"),
        ("max_message_size_in_kilobytes", 1024),
        ("authorization_rules", (RULE, RULE)),
        ("authorization_rules", tuple(replace(RULE, key_name=str(number)) for number in range(13))),
    ],
)
def test_out_of_bounds_property_is_refused_by_name(field: str, value: Any) -> None:
    assert refused(replace(QueueDescription("q"), **{field: value})).field == field


@pytest.mark.parametrize(
    ("field", "value", "may_be"),
    [
        ("path", 3, "text"),
        ("lock_duration", "PT30S", "ticks, 10,000,000 to the second"),
        ("lock_duration", timedelta(seconds=30), "ticks, 10,000,000 to the second"),
        ("default_message_time_to_live", 60.0 * TICKS_PER_SECOND, "ticks, 10,000,000 to the second"),
        ("auto_delete_on_idle", None, "ticks, 10,000,000 to the second"),
        ("max_delivery_count", "10", "a whole number"),
        ("max_delivery_count", True, "a whole number"),
        ("max_size_in_megabytes", 1024.0, "a whole number"),
        ("requires_session", "no", "True or False"),
        ("enable_express", 0, "True or False"),
        ("status", None, "text"),
        ("forward_to", 3, "text or None"),
        ("user_metadata", b"x", "text or None"),
        ("max_message_size_in_kilobytes", "1024", "a whole number or None"),
        ("authorization_rules", [RULE], "a tuple of AuthorizationRule"),
        ("authorization_rules", (RULE.to_json(),), "a tuple of AuthorizationRule"),
    ],
)
def test_wrong_type_is_refused_naming_the_expected_one(field: str, value: Any, may_be: str) -> None:
    error = refused(replace(QueueDescription("q"), **{field: value}))
    assert (error.field, error.message) == (field, f"must be {may_be}, not {type(value).__name__}")


@pytest.mark.parametrize(
    ("description", "field"),
    [
        (TopicDescription("t", enable_partitioning="yes"), "enable_partitioning"),  # type: ignore[arg-type]
        (SubscriptionDescription("t", 3), "name"),  # type: ignore[arg-type]
        (SubscriptionDescription("t", "s", rules=("priority > 5",)), "rules"),  # type: ignore[arg-type]
        (QueueDescription("q", authorization_rules=(replace(RULE, rights=frozenset({"Send"})),)), "rights"),  # type: ignore[arg-type]
    ],
)
def test_every_description_checks_its_types(description: AnyDescription, field: str) -> None:
    assert refused(description).field == field


def test_lock_over_five_minutes_is_refused_with_the_service_error() -> None:
    error = refused(QueueDescription("q", lock_duration=25 * TICKS_PER_DAY))
    assert error.message == (
        "The supplied lock time exceeds the allowed maximum of '5' minutes. "
        "Parameter name: LockDuration. Actual value was P25D."
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("key_name", ""), ("primary_key", ""), ("secondary_key", "s" * 257), ("rights", frozenset())],
)
def test_an_authorization_rule_out_of_bounds_is_refused_without_its_keys(field: str, value: Any) -> None:
    error = refused(QueueDescription("q", authorization_rules=(replace(RULE, **{field: value}),)))
    assert error.field == field
    assert "first" not in str(error)
    assert "ssss" not in str(error)


def test_repr_does_not_show_keys() -> None:
    assert "first" not in repr(QueueDescription("q", authorization_rules=(RULE,)))


def test_express_and_duplicate_detection_exclude_each_other() -> None:
    assert (
        "cannot be enabled together"
        in refused(QueueDescription("q", enable_express=True, requires_duplicate_detection=True)).message
    )


def test_the_premium_tier_has_its_own_bounds() -> None:
    QueueDescription("q", max_message_size_in_kilobytes=102400, max_size_in_megabytes=81920).validate(Tier.PREMIUM)
    assert refused(QueueDescription("q", max_message_size_in_kilobytes=1023), Tier.PREMIUM)
    assert refused(QueueDescription("q", enable_partitioning=True), Tier.PREMIUM).field == "enable_partitioning"
    assert refused(TopicDescription("t", enable_express=True), Tier.PREMIUM).field == "enable_express"


def test_each_partition_gets_the_requested_size() -> None:
    queue = with_size_of_partitions(
        QueueDescription("q", enable_partitioning=True, max_size_in_megabytes=4096), Tier.STANDARD
    )
    assert queue.max_size_in_megabytes == 16 * 4096
    queue.validate()
    assert with_size_of_partitions(queue, Tier.STANDARD) == queue
    assert with_size_of_partitions(QueueDescription("q"), Tier.STANDARD) == QueueDescription("q")


@pytest.mark.parametrize(
    ("before", "field", "message"),
    [
        (
            QueueDescription("q"),
            "requires_session",
            "The value for the RequiresSession property of an existing Queue",
        ),
        (
            QueueDescription("q"),
            "requires_duplicate_detection",
            "RequiresDuplicateDetection property of an existing",
        ),
        (QueueDescription("q"), "enable_partitioning", "Partitioning cannot be changed for Queue"),
        (
            TopicDescription("t"),
            "requires_duplicate_detection",
            "property of an existing Topic cannot be changed",
        ),
        (TopicDescription("t"), "enable_partitioning", "Partitioning cannot be changed for Topic"),
        (
            SubscriptionDescription("t", "s"),
            "requires_session",
            "of an existing Subscription cannot be changed",
        ),
    ],
)
def test_properties_fixed_at_creation_cannot_change(before: AnyDescription, field: str, message: str) -> None:
    with pytest.raises(InvalidDescriptionError, match=message):
        check_change(before, replace(before, **{field: True}))
    check_change(before, replace(before, status="Disabled"))


def test_authorization_rules_keep_created_and_modified_times() -> None:
    created = with_rule_times(QueueDescription("q", authorization_rules=(RULE,)), None, 100.0)
    asked = QueueDescription("q", authorization_rules=(RULE, replace(RULE, key_name="new")))
    same, new = with_rule_times(asked, created, 200.0).authorization_rules
    assert (same.created_at, same.modified_at) == (100.0, 100.0)
    assert (new.created_at, new.modified_at) == (200.0, 200.0)
    changed = replace(RULE, rights=frozenset({Right.LISTEN}))
    (rule,) = with_rule_times(replace(asked, authorization_rules=(changed,)), created, 300.0).authorization_rules
    assert (rule.created_at, rule.modified_at) == (100.0, 300.0)


@pytest.mark.parametrize(
    ("kept", "field"),
    [
        ({}, "QueueDescription"),
        ({"path": "q", "colour": "red"}, "colour"),
        ({"path": 1}, "path"),
        ({"path": "q", "lock_duration": "PT1M"}, "lock_duration"),
        ({"path": "q", "max_delivery_count": True}, "max_delivery_count"),
        ({"path": "q", "requires_session": 1}, "requires_session"),
        ({"path": "q", "authorization_rules": [1]}, "AuthorizationRule"),
        (
            {"path": "q", "authorization_rules": [{**RULE.to_json(), "rights": ["Own"]}]},
            "rights",
        ),
    ],
)
def test_json_that_is_not_a_description_is_refused_by_name(kept: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidDescriptionError) as caught:
        QueueDescription.from_json(kept)
    assert caught.value.field == field


def test_a_subscription_has_a_path() -> None:
    assert SubscriptionDescription("orders/eu", "audit").path == "orders/eu/Subscriptions/audit"
