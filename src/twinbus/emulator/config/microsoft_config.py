"""Reads the configuration file of Microsoft's emulator, so that projects made for it run here unchanged.

Its entities get the same checks as those of `twinbus serve --config`, with errors in the file's spelling. Missing
properties get the defaults of the emulator's schema where these differ from the service's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from twinbus.servicebus.access_rights import ALL_RIGHTS
from twinbus.servicebus.durations import TICKS_PER_DAY, TICKS_PER_SECOND, format_duration
from twinbus.servicebus.entity_descriptions import QueueDescription, SubscriptionDescription, Tier, TopicDescription
from twinbus.servicebus.property_bounds import MAX_PATH_LENGTH, service_name
from twinbus.servicebus.rule_descriptions import Correlation, RuleDescription, Sql

from ..auth.security import ROOT_POLICY
from ..entities.rules.wire import correlation_from
from .entity_tables import check_description, checked_rule, read_properties
from .namespace_file import (
    Config,
    NamespaceConfig,
    PolicyConfig,
    QueueConfig,
    TopicConfig,
    check_name,
    check_paths,
    text_of,
)
from .toml_table import MAX_ITEMS, ConfigError, InvalidValueError, Table, choice, kind_of, text

AMQP_PORT = 5672
ADMINISTRATION_PORT = 5300
NAMESPACE = "sbemulatorns"
#: The public key in the emulator's documented connection string. Not a secret.
WELL_KNOWN_KEY = "SAS_KEY_VALUE"

_WINDOW = "duplicate_detection_history_time_window"
# The emulator's minimum, the service's minimum, and the service's maximum.
_WINDOWS = (5 * TICKS_PER_SECOND, 20 * TICKS_PER_SECOND, 7 * TICKS_PER_DAY)
_TOPIC_DEFAULTS = {"DefaultMessageTimeToLive": "PT1H", "DuplicateDetectionHistoryTimeWindow": "PT20S"}
_SUBSCRIPTION_DEFAULTS = {"DefaultMessageTimeToLive": "PT1H", "MaxDeliveryCount": 3}
_QUEUE_DEFAULTS = _TOPIC_DEFAULTS | _SUBSCRIPTION_DEFAULTS

# A string (it may contain slashes) or a comment. Either may be unterminated, so that one pass finds them all.
_TEXT_OR_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)

_name = text(1, MAX_PATH_LENGTH)
# Longer than any bound, so that the rule's own check names the bound.
_any_text = text(0, 10_000)
_Stored = TypeVar("_Stored", QueueDescription, TopicDescription)


class _FilterType(StrEnum):
    CORRELATION = "Correlation"
    SQL = "Sql"


def emulator_config(file: Path | None = None) -> Config:
    """The configuration in a `Config.json`; without a file, an empty namespace.

    Raises:
        ConfigError: the file cannot be read or is not valid.
    """
    namespace = NamespaceConfig(NAMESPACE) if file is None else _read_namespace(_namespace_of(file))
    namespace = replace(
        namespace,
        port=AMQP_PORT,
        administration_port=ADMINISTRATION_PORT,
        policies=(PolicyConfig(ROOT_POLICY, ALL_RIGHTS, WELL_KNOWN_KEY),),
    )
    return Config((namespace,))


def _namespace_of(file: Path) -> Table:
    """The table of the file's only namespace."""
    try:
        content = json.loads(_without_comments(text_of(file)))
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(file), "", "", f"is not JSON: {error}") from None
    try:
        top = Table(str(file), "", _an_object(content), service_name)
    except InvalidValueError as error:
        raise ConfigError(str(file), "", "", str(error)) from None
    top.take("$schema", _ignore, None)  # for editors
    user = _inner(top, "user_config")
    user.take("logging", _ignore, None)  # `--log-format` and `--log-level` control logging here
    namespaces = _objects_in(user, "namespaces")
    top.finish()
    user.finish()
    if len(namespaces) != 1:
        raise user.error("namespaces", f"must have 1 entry, not {len(namespaces)}")
    return Table(str(file), "UserConfig.Namespaces[0]", namespaces[0], service_name)


def _without_comments(text: str) -> str:
    """The text with comments (the emulator's sample has some) as blanks, so that errors keep line and column."""
    return _TEXT_OR_COMMENT.sub(lambda match: match[1] or re.sub(r"\S", " ", match[0]), text)


def _read_namespace(table: Table) -> NamespaceConfig:
    name = table.require("name", _name)
    check_name(name, table)
    places: dict[str, Table] = {}
    # With a single namespace, paths in errors leave it out.
    whole = Table(table.file, "", {}, service_name)
    queues = tuple(_read_queue(path, each, places) for path, each in _named(table, "queues", whole))
    topics = tuple(_read_topic(path, each, places) for path, each in _named(table, "topics", whole))
    table.finish()
    config = NamespaceConfig(name, queues=queues, topics=topics, places=places)
    check_paths(config, whole)
    return config


def _read_queue(path: str, table: Table, places: dict[str, Table]) -> QueueConfig:
    properties = places[path] = _properties(table, QueueDescription, _QUEUE_DEFAULTS)
    table.finish()
    return QueueConfig(_checked(QueueDescription(path, **read_properties(QueueDescription, properties)), properties))


def _read_topic(path: str, table: Table, places: dict[str, Table]) -> TopicConfig:
    properties = places[path] = _properties(table, TopicDescription, _TOPIC_DEFAULTS)
    tables = _named(table, "subscriptions", table)
    subscriptions = tuple(_read_subscription(path, name, each, places) for name, each in tables)
    table.finish()
    topic = _checked(TopicDescription(path, **read_properties(TopicDescription, properties)), properties)
    return TopicConfig(topic, subscriptions)


def _read_subscription(topic: str, name: str, table: Table, places: dict[str, Table]) -> SubscriptionDescription:
    properties = _properties(table, SubscriptionDescription, _SUBSCRIPTION_DEFAULTS)
    rules = tuple(_read_rule(rule, each) for rule, each in _named(table, "rules", table))
    table.finish()
    values = read_properties(SubscriptionDescription, properties) | ({"rules": rules} if rules else {})
    properties.finish()
    description = SubscriptionDescription(topic, name, **values)
    check_description(description, properties, Tier.STANDARD)
    places[description.path] = properties
    return description


def _checked(description: _Stored, properties: Table) -> _Stored:
    """The description; raises `ConfigError`. Allows a shorter duplicate detection window than the service."""
    properties.finish()
    window, (least, usual, most) = description.duplicate_detection_history_time_window, _WINDOWS
    if not least <= window <= most:
        bounds = f"{format_duration(least)} to {format_duration(most)}"
        raise properties.error(_WINDOW, f"must be {bounds}, not {format_duration(window)}")
    longer = replace(description, duplicate_detection_history_time_window=max(window, usual))
    check_description(longer, properties, Tier.STANDARD)
    return description


def _read_rule(name: str, table: Table) -> RuleDescription:
    properties = _inner(table, "properties")
    table.finish()
    kind = properties.require("filter_type", choice(_FilterType))
    filters = {part: _inner(properties, part) for part in ("correlation_filter", "sql_filter", "action")}
    properties.finish()
    sql, action = _expression(filters["sql_filter"]), _expression(filters["action"])
    if kind is _FilterType.CORRELATION:
        return checked_rule(name, properties, _read_correlation(filters["correlation_filter"]), action)
    if sql is None:
        raise filters["sql_filter"].error("sql_expression", "is missing")
    return checked_rule(name, properties, Sql(sql), action)


def _expression(table: Table) -> str | None:
    """The SQL in an object; None if it is empty or missing."""
    expression = table.take("sql_expression", _optional_text, "")
    table.finish()
    return expression or None


def _read_correlation(table: Table) -> Correlation:
    values: dict[str, Any] = {}
    for each in fields(Correlation):
        if each.name == "properties":
            values[each.name] = _object_in(table, each.name)
        elif text := table.take(each.name, _optional_text, ""):
            values[each.name] = text
    table.finish()
    try:
        return correlation_from(values)
    except ValueError as error:
        raise table.error("", str(error)) from None


def _properties(table: Table, kind: type[Any], defaults: dict[str, Any]) -> Table:
    """The properties of an entity with defaults; an empty text counts as not set."""
    known = {service_name(each.name) for each in fields(kind)}
    values = _object_in(table, "properties")
    values = {key: value for key, value in values.items() if value not in ("", None) or key not in known}
    return table.inner(defaults | values, service_name("properties"))


def _inner(table: Table, name: str) -> Table:
    return table.inner(_object_in(table, name), service_name(name))


def _named(table: Table, name: str, whole: Table) -> Iterator[tuple[str, Table]]:
    """Yield the objects of a list with their names, which must differ; error paths start at the table `whole`."""
    seen: set[str] = set()
    spelled = service_name(name)
    for index, values in enumerate(_objects_in(table, name)):
        place = ".".join(filter(None, (whole.path, f"{spelled}[{index}]")))
        key = Table(table.file, place, values, service_name).require("name", _name)
        named = whole.inner(values, spelled, key)
        named.require("name", _name)
        if key.lower() in seen:
            raise named.error("", "is listed twice (names are case-insensitive)")
        seen.add(key.lower())
        yield key, named


def _object_in(table: Table, name: str) -> dict[str, Any]:
    nothing: dict[str, Any] = {}
    return table.take(name, _an_object, nothing)


def _objects_in(table: Table, name: str) -> list[dict[str, Any]]:
    none: list[dict[str, Any]] = []
    return table.take(name, _objects, none)


def _an_object(value: Any) -> dict[str, Any]:
    """A JSON object; null counts as empty."""
    if value is not None and not isinstance(value, dict):
        raise InvalidValueError(f"must be an object, not {kind_of(value)}")
    return value or {}


def _objects(value: Any) -> list[dict[str, Any]]:
    items = [] if value is None else value
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidValueError("must be a list of objects")
    if len(items) > MAX_ITEMS:
        raise InvalidValueError(f"must have at most {MAX_ITEMS} entries, not {len(items)}")
    return items


def _optional_text(value: Any) -> str:
    return "" if value is None else _any_text(value)


def _ignore(value: Any) -> None:
    """Reads a setting that has no meaning here."""
