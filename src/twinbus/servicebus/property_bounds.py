"""Checks entity properties against the service's bounds, with the service's error texts.

Every check raises `InvalidDescriptionError` with the name of the property as descriptions spell it.
"""

from __future__ import annotations

import re
from enum import StrEnum

from twinbus.servicebus.durations import MAX_TICKS, TICKS_PER_DAY, TICKS_PER_MINUTE, TICKS_PER_SECOND, format_duration

MAX_ID_LENGTH = 128
MAX_PATH_LENGTH = 260
MAX_SUBSCRIPTION_NAME_LENGTH = 50
MAX_USER_METADATA_LENGTH = 1024
MAX_DELIVERY_COUNT = 2**31 - 1
#: The segment between a topic's path and a subscription's name in an AMQP address.
SUBSCRIPTIONS_SEGMENT = "Subscriptions"
#: Partitions of a partitioned entity in the Standard tier, each of the requested size.
PARTITIONS = 16
STANDARD_SIZES = (1024, 2048, 3072, 4096, 5120)
PREMIUM_SIZES = (*STANDARD_SIZES, 10240, 20480, 40960, 81920)

_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_ALLOWED_CHARACTERS = "letters, numbers, periods (.), hyphens (-), and underscores (_)"
#: Characters that XML 1.0 cannot represent: they could be stored but never returned.
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Tier(StrEnum):
    """The price tier that sets a namespace's limits."""

    STANDARD = "Standard"
    PREMIUM = "Premium"


class EntityStatus(StrEnum):
    """Whether clients may send to and receive from an entity."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


class InvalidDescriptionError(ValueError):
    """A property value that the service would refuse: the property's name in the description, and why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def service_name(name: str) -> str:
    """The service's spelling of a property: `lock_duration` is `LockDuration`."""
    return "".join(word.capitalize() for word in name.split("_"))


def check_path(name: str, path: str) -> None:
    """Check the path of a queue or topic: segments of allowed characters, joined by slashes."""
    if not 1 <= len(path) <= MAX_PATH_LENGTH:
        message = f"The entity path must have 1 to {MAX_PATH_LENGTH} characters, not {len(path)}."
        raise InvalidDescriptionError(name, message)
    segments = path.split("/")
    # A URL would resolve a segment of only dots.
    if not all(_SEGMENT.fullmatch(segment) and segment.strip(".") for segment in segments):
        message = (
            f"'{path}' contains character(s) that is not allowed by Service Bus. "
            f"Entity segments can contain only {_ALLOWED_CHARACTERS}, and must not be empty."
        )
        raise InvalidDescriptionError(name, message)
    if any(segment.lower() == SUBSCRIPTIONS_SEGMENT.lower() for segment in segments[1:]):
        raise InvalidDescriptionError(name, f"'{path}' must not contain the segment '{SUBSCRIPTIONS_SEGMENT}'.")


def check_subscription_name(name: str, value: str) -> None:
    """Check the name of a subscription: one segment."""
    if not 1 <= len(value) <= MAX_SUBSCRIPTION_NAME_LENGTH:
        bounds = f"1 to {MAX_SUBSCRIPTION_NAME_LENGTH} characters, not {len(value)}"
        raise InvalidDescriptionError(name, f"The subscription name must have {bounds}.")
    if not _SEGMENT.fullmatch(value) or not value.strip("."):
        message = (
            f"'{value}' contains character(s) that is not allowed by Service Bus. "
            f"Subscription names can contain only {_ALLOWED_CHARACTERS}."
        )
        raise InvalidDescriptionError(name, message)


def check_lock_duration(ticks: int) -> None:
    if ticks > 5 * TICKS_PER_MINUTE:
        message = (
            "The supplied lock time exceeds the allowed maximum of '5' minutes. "
            f"Parameter name: LockDuration. Actual value was {_shown(ticks)}."
        )
        raise InvalidDescriptionError("lock_duration", message)
    _check_duration("lock_duration", ticks, 5 * TICKS_PER_SECOND)


def check_time_to_live(ticks: int) -> None:
    _check_duration("default_message_time_to_live", ticks, TICKS_PER_SECOND)


def check_auto_delete_on_idle(ticks: int) -> None:
    _check_duration("auto_delete_on_idle", ticks, 5 * TICKS_PER_MINUTE)


def check_duplicate_window(ticks: int) -> None:
    name = "duplicate_detection_history_time_window"
    _check_duration(name, ticks, 20 * TICKS_PER_SECOND, 7 * TICKS_PER_DAY)


def check_delivery_count(count: int) -> None:
    _check_number("max_delivery_count", count, 1, MAX_DELIVERY_COUNT)


def check_size(megabytes: int, *, partitioned: bool, tier: Tier) -> None:
    """Check the size of a queue or topic; for a partitioned one the sum of its partitions is allowed too."""
    sizes = PREMIUM_SIZES if tier is Tier.PREMIUM else STANDARD_SIZES
    whole = partitioned and tier is Tier.STANDARD and megabytes in [PARTITIONS * size for size in sizes]
    if megabytes not in sizes and not whole:
        message = (
            f"The specified value {megabytes} is invalid. The property 'MaxSizeInMegabytes', "
            f"must be one of the following values: {';'.join(map(str, sizes))}."
        )
        raise InvalidDescriptionError("max_size_in_megabytes", message)


def check_message_size(kilobytes: int | None, tier: Tier) -> None:
    name = "max_message_size_in_kilobytes"
    if kilobytes is None:
        return
    if tier is not Tier.PREMIUM:
        message = (
            f"The property '{service_name(name)}' cannot be set because the namespace is using "
            f"the '{tier.value}' Tier. This operation is only supported in 'Premium' tier."
        )
        raise InvalidDescriptionError(name, message)
    _check_number(name, kilobytes, 1024, 102400)


def check_storage(*, express: bool, partitioned: bool, duplicate_detection: bool, tier: Tier) -> None:
    """Check for storage options that exclude each other, or that the Premium tier does not have."""
    if express and duplicate_detection:
        both = "Both DelayedPersistence property and RequiresDuplicateDetection property"
        raise InvalidDescriptionError("enable_express", f"{both} cannot be enabled together.")
    for name, enabled in (("enable_express", express), ("enable_partitioning", partitioned)):
        if enabled and tier is Tier.PREMIUM:
            message = f"The property '{service_name(name)}' cannot be set in 'Premium' tier."
            raise InvalidDescriptionError(name, message)


def check_status(status: str) -> None:
    allowed = [status.value for status in EntityStatus]
    if status not in allowed:
        raise InvalidDescriptionError("status", f"The property 'Status' must be one of {', '.join(allowed)}.")


def check_text(name: str, value: str, least: int, most: int) -> None:
    """Check a string's length and characters. The message does not show the value: it may be a key."""
    if not least <= len(value) <= most:
        message = f"The property '{service_name(name)}' must have {least} to {most} characters, not {len(value)}."
        raise InvalidDescriptionError(name, message)
    if NOT_XML.search(value):
        message = f"The property '{service_name(name)}' must not contain control characters."
        raise InvalidDescriptionError(name, message)


def _check_duration(name: str, ticks: int, least: int, most: int = MAX_TICKS) -> None:
    if not least <= ticks <= most:
        bounds = f"between {format_duration(least)} and {format_duration(most)}"
        message = f"The property '{service_name(name)}' must be {bounds}. Actual value was {_shown(ticks)}."
        raise InvalidDescriptionError(name, message)


def _check_number(name: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        bounds = f"between {least} and {most}"
        message = f"The property '{service_name(name)}' must be {bounds}. Actual value was {number}."
        raise InvalidDescriptionError(name, message)


def _shown(ticks: int) -> str:
    return format_duration(ticks) if 0 <= ticks <= MAX_TICKS else f"{ticks} ticks"
