"""Hypothesis strategies for valid descriptions of entities."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.durations import MAX_TICKS, TICKS_PER_DAY, TICKS_PER_MINUTE, TICKS_PER_SECOND
from twinbus.servicebus.entity_descriptions import (
    AuthorizationRule,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.servicebus.property_bounds import STANDARD_SIZES, EntityStatus

_SEGMENTS = st.from_regex(r"[A-Za-z0-9._-]*[A-Za-z0-9][A-Za-z0-9._-]*", fullmatch=True).map(lambda s: s[:40])
SEGMENTS = _SEGMENTS.filter(lambda s: bool(s.strip(".")) and s.lower() != "subscriptions")
PATHS = st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join)
# Characters that XML can hold.
TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"), max_size=50)
METADATA = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"),
        st.sampled_from("\t\n\r"),
    ),
    min_size=1,
    max_size=100,
)
_KEYS = TEXTS.filter(bool)
RULES = st.lists(
    st.builds(AuthorizationRule, _KEYS, _KEYS, TEXTS, st.frozensets(st.sampled_from(Right), min_size=1)),
    max_size=3,
    unique_by=lambda rule: rule.key_name,
).map(tuple)

_ANY: dict[str, Any] = {
    "default_message_time_to_live": st.integers(TICKS_PER_SECOND, MAX_TICKS),
    "enable_batched_operations": st.booleans(),
    "status": st.sampled_from([status.value for status in EntityStatus]),
    "auto_delete_on_idle": st.integers(5 * TICKS_PER_MINUTE, MAX_TICKS),
    "user_metadata": st.none() | METADATA,
}
_STORED: dict[str, Any] = {
    "path": PATHS,
    "max_size_in_megabytes": st.sampled_from(STANDARD_SIZES),
    "duplicate_detection_history_time_window": st.integers(20 * TICKS_PER_SECOND, 7 * TICKS_PER_DAY),
    "requires_duplicate_detection": st.booleans(),
    "is_anonymous_accessible": st.booleans(),
    "authorization_rules": RULES,
    "support_ordering": st.booleans(),
    "enable_partitioning": st.booleans(),
}
_RECEIVED: dict[str, Any] = {
    "lock_duration": st.integers(5 * TICKS_PER_SECOND, 5 * TICKS_PER_MINUTE),
    "requires_session": st.booleans(),
    "dead_lettering_on_message_expiration": st.booleans(),
    "max_delivery_count": st.integers(1, 2**31 - 1),
    "forward_to": st.none() | PATHS,
    "forward_dead_lettered_messages_to": st.none() | PATHS,
}

QUEUES = st.builds(QueueDescription, **_ANY, **_STORED, **_RECEIVED)
TOPICS = st.builds(
    TopicDescription,
    **_ANY,
    **_STORED,
    filtering_messages_before_publishing=st.booleans(),
    enable_subscription_partitioning=st.booleans(),
)
SUBSCRIPTIONS = st.builds(
    SubscriptionDescription,
    **_ANY,
    **_RECEIVED,
    topic=PATHS,
    name=SEGMENTS,
    dead_lettering_on_filter_evaluation_exceptions=st.booleans(),
)
DESCRIPTIONS = st.one_of(QUEUES, TOPICS, SUBSCRIPTIONS)
