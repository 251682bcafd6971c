"""Converts entity properties to and from XML elements, in the service's names, order and notation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from xml.etree import ElementTree as ET

from twinbus.emulator.admin.address import Address
from twinbus.emulator.auth.security import generate_key
from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.durations import format_duration, parse_duration
from twinbus.servicebus.entity_descriptions import (
    AnyDescription,
    AuthorizationRule,
    InvalidDescriptionError,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.servicebus.property_bounds import service_name

SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
SCHEMA_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
_SB = f"{{{SERVICE_BUS}}}"
_XSI = f"{{{SCHEMA_INSTANCE}}}"

# Older clients require this order; elements that an entity does not have are left out.
ORDER = {
    QueueDescription: (
        "LockDuration",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DuplicateDetectionHistoryTimeWindow",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "SizeInBytes",
        "MessageCount",
        "IsAnonymousAccessible",
        "AuthorizationRules",
        "Status",
        "ForwardTo",
        "UserMetadata",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "SupportOrdering",
        "CountDetails",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EntityAvailabilityStatus",
        "ForwardDeadLetteredMessagesTo",
        "EnableExpress",
        "MaxMessageSizeInKilobytes",
    ),
    TopicDescription: (
        "DefaultMessageTimeToLive",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow",
        "EnableBatchedOperations",
        "SizeInBytes",
        "FilteringMessagesBeforePublishing",
        "IsAnonymousAccessible",
        "AuthorizationRules",
        "Status",
        "UserMetadata",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "SupportOrdering",
        "CountDetails",
        "SubscriptionCount",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EntityAvailabilityStatus",
        "EnableSubscriptionPartitioning",
        "EnableExpress",
        "MaxMessageSizeInKilobytes",
        "SqlFilterCount",
        "CorrelationFilterCount",
    ),
    SubscriptionDescription: (
        "LockDuration",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions",
        "MessageCount",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "Status",
        "ForwardTo",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "CountDetails",
        "UserMetadata",
        "ForwardDeadLetteredMessagesTo",
        "AutoDeleteOnIdle",
        "EntityAvailabilityStatus",
    ),
}

# Not elements of a description: part of the entity's URL, or (rules) resources of their own.
_NOT_ELEMENTS = frozenset({"path", "topic", "name", "rules"})
# Set by the namespace, ignored in requests.
_READ_ONLY = frozenset({"availability_status"})
_FORWARDS = frozenset({"forward_to", "forward_dead_lettered_messages_to"})
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Description = TypeVar("_Description", bound=AnyDescription)


def element(name: str, text: str | None = None, **attributes: str) -> ET.Element:
    """A new element without a namespace prefix: some clients do not understand prefixes."""
    node = ET.Element(name, attributes)
    node.text = text
    return node


def format_time(seconds: float) -> str:
    """A time as the service writes it; 0 (never) is the beginning of the year 1."""
    if seconds <= 0:
        return "0001-01-01T00:00:00Z"
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f0Z")


def write_properties(description: AnyDescription, address: Address) -> dict[str, ET.Element]:
    """The elements of all set properties, by name."""
    elements = {}
    for name in _names(description):
        value = getattr(description, name)
        if name == "authorization_rules":
            elements["AuthorizationRules"] = _write_rules(value)
        elif value is not None:
            text = address.entity(value) if name in _FORWARDS else _NOTATIONS[name].write(value)
            elements[_element_name(name)] = element(_element_name(name), text)
    return elements


def read_properties(parent: ET.Element, base: _Description, address: Address) -> _Description:
    """The description `base` with every property that has an element in `parent`.

    Unknown elements are ignored, as on the service.

    Raises:
        InvalidDescriptionError: the text of an element is not valid for its property.
    """
    changes: dict[str, Any] = {}
    for name in _names(base):
        child = parent.find(_SB + _element_name(name))
        if child is None or name in _READ_ONLY or child.get(f"{_XSI}nil") == "true":
            continue
        if name == "authorization_rules":
            changes[name] = tuple(_read_rule(rule) for rule in child.findall(f"{_SB}AuthorizationRule"))
            continue
        try:
            changes[name] = (
                (address.path_of(_text(child)) or None) if name in _FORWARDS else _NOTATIONS[name].read(_text(child))
            )
        except ValueError as error:
            raise InvalidDescriptionError(name, f"The property '{_element_name(name)}' is invalid: {error}") from error
    return replace(base, **changes)


def _write_rules(rules: tuple[AuthorizationRule, ...]) -> ET.Element:
    parent = element("AuthorizationRules")
    for rule in rules:
        child = ET.SubElement(parent, "AuthorizationRule", {"i:type": "SharedAccessAuthorizationRule"})
        rights = element("Rights")
        rights.extend(element("AccessRights", right.value) for right in Right if right in rule.rights)
        child.extend(
            [
                element("ClaimType", "SharedAccessKey"),
                element("ClaimValue", "None"),
                rights,
                element("CreatedTime", format_time(rule.created_at or 0)),
                element("ModifiedTime", format_time(rule.modified_at or 0)),
                element("KeyName", rule.key_name),
                element("PrimaryKey", rule.primary_key),
                element("SecondaryKey", rule.secondary_key),
            ]
        )
    return parent


def _read_rule(node: ET.Element) -> AuthorizationRule:
    kind = node.get(f"{_XSI}type", "SharedAccessAuthorizationRule").rpartition(":")[2]
    if kind != "SharedAccessAuthorizationRule":
        message = f"Authorization rules of type '{kind}' are not supported, only SharedAccessAuthorizationRule."
        raise InvalidDescriptionError("authorization_rules", message)
    rights = [_text(right) for right in node.findall(f"{_SB}Rights/{_SB}AccessRights")]
    try:
        granted = frozenset(Right(right) for right in rights)
    except ValueError as error:
        message = f"An authorization rule's rights must be Send, Listen or Manage: {error}."
        raise InvalidDescriptionError("authorization_rules", message) from error
    key_name, primary, secondary = (_text(node.find(_SB + name)) for name in ("KeyName", "PrimaryKey", "SecondaryKey"))
    if node.find(f"{_SB}PrimaryKey") is None:
        primary, secondary = generate_key(), secondary or generate_key()
    return AuthorizationRule(key_name, primary, secondary, granted)


def _text(node: ET.Element | None) -> str:
    return "" if node is None else node.text or ""


def _names(description: AnyDescription) -> list[str]:
    """The names of the properties that have an element."""
    return [each.name for each in fields(description) if each.name not in _NOT_ELEMENTS]


def _element_name(name: str) -> str:
    return "EntityAvailabilityStatus" if name == "availability_status" else service_name(name)


def _read_number(text: str) -> int:
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"'{text[:32]}' is not a whole number.")
    return int(text)


def _read_flag(text: str) -> bool:
    flag = _FLAGS.get(text.strip().lower())
    if flag is None:
        raise ValueError(f"'{text[:32]}' is neither true nor false.")
    return flag


class _Notation(NamedTuple):
    read: Callable[[str], Any]
    write: Callable[[Any], str]


_DURATION = _Notation(lambda text: parse_duration(text.strip()), format_duration)
_INTEGER = _Notation(_read_number, str)
_FLAG = _Notation(_read_flag, lambda flag: "true" if flag else "false")
_WORD = _Notation(str.strip, str)
_TEXT = _Notation(lambda text: text or None, str)

_NOTATIONS = {
    "lock_duration": _DURATION,
    "max_size_in_megabytes": _INTEGER,
    "requires_duplicate_detection": _FLAG,
    "requires_session": _FLAG,
    "default_message_time_to_live": _DURATION,
    "dead_lettering_on_message_expiration": _FLAG,
    "dead_lettering_on_filter_evaluation_exceptions": _FLAG,
    "duplicate_detection_history_time_window": _DURATION,
    "max_delivery_count": _INTEGER,
    "enable_batched_operations": _FLAG,
    "filtering_messages_before_publishing": _FLAG,
    "is_anonymous_accessible": _FLAG,
    "status": _WORD,
    "support_ordering": _FLAG,
    "auto_delete_on_idle": _DURATION,
    "enable_partitioning": _FLAG,
    "availability_status": _WORD,
    "enable_subscription_partitioning": _FLAG,
    "enable_express": _FLAG,
    "user_metadata": _TEXT,
    "max_message_size_in_kilobytes": _INTEGER,
}
