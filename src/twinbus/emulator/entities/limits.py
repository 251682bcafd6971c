"""Derives a queue's limits from its description."""

from __future__ import annotations

from dataclasses import dataclass, replace

from twinbus.servicebus.durations import MAX_TICKS
from twinbus.servicebus.entity_descriptions import AnyDescription

TICKS_PER_MS = 10_000
MEGABYTE = 1024 * 1024
UNLIMITED = 1 << 62


@dataclass(slots=True)
class Limits:
    """Limits that a queue applies to each message."""

    lock_ms: int
    default_ttl_ms: int | None
    max_bytes: int
    max_message_bytes: int
    max_delivery_count: int
    dead_letter_expired: bool
    duplicate_window_ms: int | None
    #: Subscriptions only: dead-letter messages on which a rule fails to evaluate.
    dead_letter_failures: bool = False


def limits_of(description: AnyDescription, max_message_bytes: int) -> Limits:
    """The limits of an entity with this description."""
    size_mb = getattr(description, "max_size_in_megabytes", None)
    size_kb = getattr(description, "max_message_size_in_kilobytes", None)
    window = None
    if getattr(description, "requires_duplicate_detection", False):
        window = description.duplicate_detection_history_time_window // TICKS_PER_MS  # type: ignore[union-attr]
    return Limits(
        lock_ms=getattr(description, "lock_duration", MAX_TICKS) // TICKS_PER_MS,
        default_ttl_ms=ttl_ms(description.default_message_time_to_live),
        max_bytes=size_mb * MEGABYTE if size_mb else UNLIMITED,
        max_message_bytes=size_kb * 1024 if size_kb else max_message_bytes,
        max_delivery_count=getattr(description, "max_delivery_count", 10),
        dead_letter_expired=getattr(description, "dead_lettering_on_message_expiration", False),
        duplicate_window_ms=window,
        dead_letter_failures=getattr(description, "dead_lettering_on_filter_evaluation_exceptions", False),
    )


def dead_letter_limits(limits: Limits) -> Limits:
    """The limits of a queue's dead-letter queue: no expiry, no size limit, no delivery limit."""
    return replace(
        limits,
        default_ttl_ms=None,
        max_bytes=UNLIMITED,
        max_delivery_count=UNLIMITED,
        dead_letter_expired=False,
        duplicate_window_ms=None,
    )


def ttl_ms(ticks: int) -> int | None:
    """A time to live in milliseconds; None (no expiry) for the service's maximum."""
    return None if ticks >= MAX_TICKS else ticks // TICKS_PER_MS
