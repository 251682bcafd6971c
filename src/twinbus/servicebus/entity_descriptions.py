"""Describes queues, topics and subscriptions: their properties, defaults and validation.

Descriptions are immutable; `dataclasses.replace` makes a changed one. Durations are ticks (see `durations`). Properties
that name another entity (`forward_to`) hold its path within the namespace. `validate` refuses what the service refuses
(see `property_bounds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import NoneType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from twinbus.servicebus import property_bounds as bounds
from twinbus.servicebus.access_rights import MAX_KEY_LENGTH, MAX_POLICY_NAME_LENGTH, Right
from twinbus.servicebus.durations import MAX_TICKS, TICKS_PER_MINUTE, TICKS_PER_SECOND
from twinbus.servicebus.property_bounds import SUBSCRIPTIONS_SEGMENT, EntityStatus, InvalidDescriptionError, Tier
from twinbus.servicebus.rule_descriptions import MAX_RULES, RuleDescription

__all__ = [
    "DURATIONS",
    "AnyDescription",
    "AuthorizationRule",
    "Counts",
    "EntityStatus",
    "InvalidDescriptionError",
    "QueueDescription",
    "SubscriptionDescription",
    "Tier",
    "TopicDescription",
    "check_change",
    "with_rule_times",
    "with_size_of_partitions",
]

MAX_AUTHORIZATION_RULES = 12
#: The names of the properties that are durations.
DURATIONS = frozenset(
    {
        "lock_duration",
        "default_message_time_to_live",
        "duplicate_detection_history_time_window",
        "auto_delete_on_idle",
    }
)


class Counts(NamedTuple):
    """How many messages an entity holds, by state."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer_dead_letter: int = 0
    transfer: int = 0

    @property
    def total(self) -> int:
        return sum(self)


# The JSON types of a field, by its annotation.
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
    "int | None": (int, NoneType),
    "str | None": (str, NoneType),
    "float | None": (int, float, NoneType),
    "frozenset[Right]": (list,),
    "tuple[AuthorizationRule, ...]": (list,),
    "tuple[RuleDescription, ...]": (list,),
}
# What a field may be, for error messages.
_EXPECTED = {
    "int": "a whole number",
    "bool": "True or False",
    "str": "text",
    "int | None": "a whole number or None",
    "str | None": "text or None",
    "float | None": "a number or None",
    "frozenset[Right]": "a frozenset of Right",
    "tuple[AuthorizationRule, ...]": "a tuple of AuthorizationRule",
    "tuple[RuleDescription, ...]": "a tuple of RuleDescription",
}


class _JsonMixin:
    """Converts descriptions from and to plain JSON types, for the store."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return {name: _to_json(getattr(self, name)) for name in _types(type(self))}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The description that `to_json` wrote; missing properties get their defaults.

        Raises:
            InvalidDescriptionError: a property is unknown or has the wrong type, or a required one is missing.
        """
        if not isinstance(values, Mapping):
            raise InvalidDescriptionError(cls.__name__, f"must be a mapping, not {type(values).__name__}")
        types = _types(cls)
        for name, value in values.items():
            if name not in types:
                raise InvalidDescriptionError(name, f"is not a property of a {cls.__name__}")
            if not _is_one_of(value, _JSON_TYPES[types[name]]):
                raise InvalidDescriptionError(name, f"must be of type {types[name]}, not {type(value).__name__}")
        try:
            return cls(**{name: _from_json(name, value) for name, value in values.items()})
        except TypeError as error:
            raise InvalidDescriptionError(cls.__name__, f"is incomplete: {error}") from error


@dataclass(frozen=True, slots=True)
class AuthorizationRule(_JsonMixin):
    """An access policy of one entity. Times are seconds since the epoch.

    An empty `secondary_key` means none.
    """

    key_name: str
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    rights: frozenset[Right]
    created_at: float | None = None
    modified_at: float | None = None

    def validate(self) -> None:
        """Raise `InvalidDescriptionError` if a field has the wrong type or is out of bounds."""
        _check_types(self)
        bounds.check_text("key_name", self.key_name, 1, MAX_POLICY_NAME_LENGTH)
        bounds.check_text("primary_key", self.primary_key, 1, MAX_KEY_LENGTH)
        bounds.check_text("secondary_key", self.secondary_key, 0, MAX_KEY_LENGTH)
        if not self.rights:
            message = f"Rule '{self.key_name}' must have at least one of the rights Send, Listen and Manage."
            raise InvalidDescriptionError("rights", message)


@dataclass(frozen=True, slots=True)
class QueueDescription(_JsonMixin):
    """A queue. Without `max_message_size_in_kilobytes` the namespace's limit applies."""

    path: str
    lock_duration: int = TICKS_PER_MINUTE
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live: int = MAX_TICKS
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window: int = 10 * TICKS_PER_MINUTE
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    is_anonymous_accessible: bool = False
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    status: str = EntityStatus.ACTIVE.value
    support_ordering: bool = True
    auto_delete_on_idle: int = MAX_TICKS
    enable_partitioning: bool = False
    availability_status: str = "Available"
    enable_express: bool = False
    forward_to: str | None = None
    user_metadata: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    max_message_size_in_kilobytes: int | None = None

    KIND: ClassVar[str] = "Queue"
    #: Cannot be changed after the queue is created.
    FIXED: ClassVar[tuple[str, ...]] = (
        "requires_session",
        "requires_duplicate_detection",
        "enable_partitioning",
    )

    def validate(self, tier: Tier = Tier.STANDARD) -> None:
        """Raises InvalidDescriptionError if a property has the wrong type or is out of the bounds of the tier."""
        _check_types(self)
        bounds.check_path("path", self.path)
        _check_stored(self, tier)
        _check_received(self)
        _check_any(self)


@dataclass(frozen=True, slots=True)
class TopicDescription(_JsonMixin):
    """A topic. Without `max_message_size_in_kilobytes` the namespace's limit applies."""

    path: str
    default_message_time_to_live: int = MAX_TICKS
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window: int = 10 * TICKS_PER_MINUTE
    enable_batched_operations: bool = True
    filtering_messages_before_publishing: bool = False
    is_anonymous_accessible: bool = False
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    status: str = EntityStatus.ACTIVE.value
    support_ordering: bool = True
    auto_delete_on_idle: int = MAX_TICKS
    enable_partitioning: bool = False
    availability_status: str = "Available"
    enable_subscription_partitioning: bool = False
    enable_express: bool = False
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int | None = None

    KIND: ClassVar[str] = "Topic"
    #: Cannot be changed after the topic is created.
    FIXED: ClassVar[tuple[str, ...]] = (
        "requires_duplicate_detection",
        "enable_partitioning",
        "enable_subscription_partitioning",
    )

    def validate(self, tier: Tier = Tier.STANDARD) -> None:
        """Raises InvalidDescriptionError if a property has the wrong type or is out of the bounds of the tier."""
        _check_types(self)
        bounds.check_path("path", self.path)
        _check_stored(self, tier)
        _check_any(self)


@dataclass(frozen=True, slots=True)
class SubscriptionDescription(_JsonMixin):
    """A subscription of the topic at the path `topic`."""

    topic: str
    name: str
    lock_duration: int = TICKS_PER_MINUTE
    requires_session: bool = False
    default_message_time_to_live: int = MAX_TICKS
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = EntityStatus.ACTIVE.value
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle: int = MAX_TICKS
    availability_status: str = "Available"
    user_metadata: str | None = None
    rules: tuple[RuleDescription, ...] = (RuleDescription(),)

    KIND: ClassVar[str] = "Subscription"
    #: Cannot be changed after the subscription is created.
    FIXED: ClassVar[tuple[str, ...]] = ("requires_session",)

    @property
    def path(self) -> str:
        """The address of the subscription within the namespace."""
        return f"{self.topic}/{SUBSCRIPTIONS_SEGMENT}/{self.name}"

    def validate(self, tier: Tier = Tier.STANDARD) -> None:
        """Raise `InvalidDescriptionError` if a property has the wrong type or is out of bounds, alike in all tiers."""
        _check_types(self)
        bounds.check_path("topic", self.topic)
        bounds.check_subscription_name("name", self.name)
        _check_received(self)
        _check_any(self)
        if len(self.rules) > MAX_RULES:
            raise InvalidDescriptionError("rules", f"A subscription can have at most {MAX_RULES} rules.")
        if len({rule.name.lower() for rule in self.rules}) < len(self.rules):
            raise InvalidDescriptionError("rules", "Rule names must be unique (they are case-insensitive).")
        for rule in self.rules:
            rule.validate()


AnyDescription = QueueDescription | TopicDescription | SubscriptionDescription
# The item type of a collection field, by its annotation.
_ITEM_TYPES: dict[str, type] = {
    "frozenset[Right]": Right,
    "tuple[AuthorizationRule, ...]": AuthorizationRule,
    "tuple[RuleDescription, ...]": RuleDescription,
}
_Stored = TypeVar("_Stored", bound=QueueDescription | TopicDescription)


def check_change(before: AnyDescription, after: AnyDescription) -> None:
    """Raise `InvalidDescriptionError` if a property changed that is fixed at creation."""
    for name in before.FIXED:
        if getattr(before, name) != getattr(after, name):
            message = (
                f"Partitioning cannot be changed for {before.KIND}."
                if name.endswith("partitioning")
                else f"The value for the {bounds.service_name(name)} property "
                f"of an existing {before.KIND} cannot be changed."
            )
            raise InvalidDescriptionError(name, message)


def with_size_of_partitions(description: _Stored, tier: Tier) -> _Stored:
    """The description with the size that the service reports: every partition gets the requested size."""
    size = description.max_size_in_megabytes
    if description.enable_partitioning and tier is Tier.STANDARD and size in bounds.STANDARD_SIZES:
        return replace(description, max_size_in_megabytes=bounds.PARTITIONS * size)
    return description


def with_rule_times(description: _Stored, before: _Stored | None, now: float) -> _Stored:
    """The description with the times of its authorization rules; an unchanged rule keeps its times."""
    known = {rule.key_name: rule for rule in before.authorization_rules} if before else {}
    rules = [_with_times(rule, known.get(rule.key_name), now) for rule in description.authorization_rules]
    return replace(description, authorization_rules=tuple(rules))


def _with_times(rule: AuthorizationRule, known: AuthorizationRule | None, now: float) -> AuthorizationRule:
    if known is None:
        return replace(rule, created_at=now, modified_at=now)
    unchanged = replace(rule, created_at=known.created_at, modified_at=known.modified_at)
    return unchanged if unchanged == known else replace(unchanged, modified_at=now)


def _check_types(description: AnyDescription | AuthorizationRule) -> None:
    for name, kind in _types(description).items():
        value = getattr(description, name)
        if not _fits(value, kind):
            expected = f"ticks, {TICKS_PER_SECOND:,} to the second" if name in DURATIONS else _EXPECTED[kind]
            raise InvalidDescriptionError(name, f"must be {expected}, not {type(value).__name__}")


def _fits(value: Any, kind: str) -> bool:
    """Whether a value matches the annotation of its field."""
    if kind.startswith(("tuple", "frozenset")):
        whole = tuple if kind.startswith("tuple") else frozenset
        return isinstance(value, whole) and all(isinstance(item, _ITEM_TYPES[kind]) for item in value)
    return _is_one_of(value, _JSON_TYPES[kind])


def _is_one_of(value: Any, types: tuple[type, ...]) -> bool:
    # In Python, a bool is an int.
    return isinstance(value, types) and (not isinstance(value, bool) or bool in types)


def _check_stored(description: QueueDescription | TopicDescription, tier: Tier) -> None:
    """Check the properties that queues and topics have and subscriptions do not."""
    partitioned = description.enable_partitioning
    bounds.check_size(description.max_size_in_megabytes, partitioned=partitioned, tier=tier)
    bounds.check_duplicate_window(description.duplicate_detection_history_time_window)
    bounds.check_storage(
        express=description.enable_express,
        partitioned=partitioned,
        duplicate_detection=description.requires_duplicate_detection,
        tier=tier,
    )
    bounds.check_message_size(description.max_message_size_in_kilobytes, tier)
    rules = description.authorization_rules
    if len(rules) > MAX_AUTHORIZATION_RULES:
        message = f"An entity can have at most {MAX_AUTHORIZATION_RULES} authorization rules."
        raise InvalidDescriptionError("authorization_rules", message)
    if len({rule.key_name for rule in rules}) < len(rules):
        message = "The KeyName of each authorization rule must be unique."
        raise InvalidDescriptionError("authorization_rules", message)
    for rule in rules:
        rule.validate()


def _check_received(description: QueueDescription | SubscriptionDescription) -> None:
    """Check the properties that queues and subscriptions have and topics do not."""
    bounds.check_lock_duration(description.lock_duration)
    bounds.check_delivery_count(description.max_delivery_count)
    for name in ("forward_to", "forward_dead_lettered_messages_to"):
        target = getattr(description, name)
        if target is not None:
            bounds.check_path(name, target)


def _check_any(description: AnyDescription) -> None:
    bounds.check_time_to_live(description.default_message_time_to_live)
    bounds.check_auto_delete_on_idle(description.auto_delete_on_idle)
    bounds.check_status(description.status)
    bounds.check_text("user_metadata", description.user_metadata or "", 0, bounds.MAX_USER_METADATA_LENGTH)


def _types(description: Any) -> dict[str, str]:
    """The names of a description's fields and their annotations."""
    return {each.name: str(each.type) for each in fields(description)}


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [rule.to_json() for rule in value]
    if isinstance(value, frozenset):
        return sorted(right.value for right in value)
    return value


def _from_json(name: str, value: Any) -> Any:
    if name == "authorization_rules":
        return tuple(AuthorizationRule.from_json(rule) for rule in value)
    if name == "rules":
        return tuple(RuleDescription.from_json(rule) for rule in value)
    if name == "rights":
        try:
            return frozenset(Right(right) for right in value)
        except ValueError as error:
            raise InvalidDescriptionError(name, f"must be Send, Listen or Manage: {error}") from error
    return value
