"""The configuration file of Microsoft's emulator, so that what was made for it runs here unchanged.

Its entities are those of `twinbus serve --config`, with the same checks, in the file's own spelling. What the file
leaves out is what the emulator's schema says, where that is not what the service does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from .bounds import MAX_PATH_LENGTH, service_name
from .config import Config, NamespaceConfig, PolicyConfig, QueueConfig, TopicConfig, check_name, check_paths, text_of
from .config_entities import check_description, checked_rule, read_properties
from .descriptions import QueueDescription, SubscriptionDescription, Tier, TopicDescription
from .durations import TICKS_PER_DAY, TICKS_PER_SECOND, format_duration
from .rules.descriptions import Correlation, RuleDescription, Sql
from .rules.wire import correlation_from
from .security import ALL_RIGHTS, ROOT_POLICY
from .toml_table import MAX_ITEMS, BadValue, ConfigError, Table, choice, kind_of, text

AMQP_PORT = 5672
ADMINISTRATION_PORT = 5300
NAMESPACE = "sbemulatorns"
#: The key in the connection string that the emulator's documents tell everybody to use. It is no secret.
WELL_KNOWN_KEY = "SAS_KEY_VALUE"

_WINDOW = "duplicate_detection_history_time_window"
# The emulator's least, the service's least, and the service's most.
_WINDOWS = (5 * TICKS_PER_SECOND, 20 * TICKS_PER_SECOND, 7 * TICKS_PER_DAY)
_TOPIC_DEFAULTS = {"DefaultMessageTimeToLive": "PT1H", "DuplicateDetectionHistoryTimeWindow": "PT20S"}
_SUBSCRIPTION_DEFAULTS = {"DefaultMessageTimeToLive": "PT1H", "MaxDeliveryCount": 3}
_QUEUE_DEFAULTS = _TOPIC_DEFAULTS | _SUBSCRIPTION_DEFAULTS

# A text, which may hold slashes, or a comment. Either may lack its end, so that looking for it takes one pass.
_TEXT_OR_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)

_name = text(1, MAX_PATH_LENGTH)
# Longer than the bound of any, so that it is the rule that names the bound.
_any_text = text(0, 10_000)
_Stored = TypeVar("_Stored", QueueDescription, TopicDescription)


class _FilterType(StrEnum):
    CORRELATION = "Correlation"
    SQL = "Sql"


def emulator_config(file: Path | None = None) -> Config:
    """What a `Config.json` describes; without one, a namespace that is empty.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong.
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
    """The only namespace of the file."""
    try:
        content = json.loads(_without_comments(text_of(file)))
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(file), "", "", f"is not JSON: {error}") from None
    try:
        top = Table(str(file), "", _an_object(content), service_name)
    except BadValue as error:
        raise ConfigError(str(file), "", "", str(error)) from None
    top.take("$schema", _passed_over, None)  # for editors
    user = _inner(top, "user_config")
    user.take("logging", _passed_over, None)  # ours goes where `--log-format` and `--log-level` say
    found = _objects_in(user, "namespaces")
    top.finish()
    user.finish()
    if len(found) != 1:
        raise user.error("namespaces", f"must have 1 entry, not {len(found)}")
    return Table(str(file), "UserConfig.Namespaces[0]", found[0], service_name)


def _without_comments(text: str) -> str:
    """The text with blanks for comments, which the emulator's own sample has; errors keep their line and column."""
    return _TEXT_OR_COMMENT.sub(lambda found: found[1] or re.sub(r"\S", " ", found[0]), text)


def _read_namespace(table: Table) -> NamespaceConfig:
    name = table.require("name", _name)
    check_name(name, table)
    places: dict[str, Table] = {}
    # There is but one namespace: what is in it is found without it.
    whole = Table(table.file, "", {}, service_name)
    queues = tuple(_read_queue(path, one, places) for path, one in _named(table, "queues", whole))
    topics = tuple(_read_topic(path, one, places) for path, one in _named(table, "topics", whole))
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
    each = _named(table, "subscriptions", table)
    subscriptions = tuple(_read_subscription(path, name, one, places) for name, one in each)
    table.finish()
    topic = _checked(TopicDescription(path, **read_properties(TopicDescription, properties)), properties)
    return TopicConfig(topic, subscriptions)


def _read_subscription(topic: str, name: str, table: Table, places: dict[str, Table]) -> SubscriptionDescription:
    properties = _properties(table, SubscriptionDescription, _SUBSCRIPTION_DEFAULTS)
    rules = tuple(_read_rule(rule, one) for rule, one in _named(table, "rules", table))
    table.finish()
    found = read_properties(SubscriptionDescription, properties) | ({"rules": rules} if rules else {})
    properties.finish()
    description = SubscriptionDescription(topic, name, **found)
    check_description(description, properties, Tier.STANDARD)
    places[description.path] = properties
    return description


def _checked(description: _Stored, properties: Table) -> _Stored:
    """The description; raises `ConfigError`. Duplicates may be looked for for less time than the service allows."""
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
    filters = {one: _inner(properties, one) for one in ("correlation_filter", "sql_filter", "action")}
    properties.finish()
    sql, action = _expression(filters["sql_filter"]), _expression(filters["action"])
    if kind is _FilterType.CORRELATION:
        return checked_rule(name, properties, _read_correlation(filters["correlation_filter"]), action)
    if sql is None:
        raise filters["sql_filter"].error("sql_expression", "is missing")
    return checked_rule(name, properties, Sql(sql), action)


def _expression(table: Table) -> str | None:
    """The SQL in an object; an empty one means that there is none."""
    found = table.take("sql_expression", _text_or_nothing, "")
    table.finish()
    return found or None


def _read_correlation(table: Table) -> Correlation:
    wanted: dict[str, Any] = {}
    for each in fields(Correlation):
        if each.name == "properties":
            wanted[each.name] = _object_in(table, each.name)
        elif found := table.take(each.name, _text_or_nothing, ""):
            wanted[each.name] = found
    table.finish()
    try:
        return correlation_from(wanted)
    except ValueError as error:
        raise table.error("", str(error)) from None


def _properties(table: Table, kind: type[Any], defaults: dict[str, Any]) -> Table:
    """The properties of an entity; an empty text means that there is none."""
    known = {service_name(each.name) for each in fields(kind)}
    found = _object_in(table, "properties")
    given = {key: value for key, value in found.items() if value not in ("", None) or key not in known}
    return table.inner(defaults | given, service_name("properties"))


def _inner(table: Table, name: str) -> Table:
    return table.inner(_object_in(table, name), service_name(name))


def _named(table: Table, name: str, whole: Table) -> Iterator[tuple[str, Table]]:
    """The objects of a list by their names, which are all different; their places are told from `whole` on."""
    seen: set[str] = set()
    spelled = service_name(name)
    for index, values in enumerate(_objects_in(table, name)):
        place = ".".join(filter(None, (whole.path, f"{spelled}[{index}]")))
        key = Table(table.file, place, values, service_name).require("name", _name)
        one = whole.inner(values, spelled, key)
        one.require("name", _name)
        if key.lower() in seen:
            raise one.error("", "is there twice (case does not count)")
        seen.add(key.lower())
        yield key, one


def _object_in(table: Table, name: str) -> dict[str, Any]:
    nothing: dict[str, Any] = {}
    return table.take(name, _an_object, nothing)


def _objects_in(table: Table, name: str) -> list[dict[str, Any]]:
    none: list[dict[str, Any]] = []
    return table.take(name, _objects, none)


def _an_object(value: Any) -> dict[str, Any]:
    """An object; null stands for one with nothing in it."""
    if value is not None and not isinstance(value, dict):
        raise BadValue(f"must be an object, not {kind_of(value)}")
    return value or {}


def _objects(value: Any) -> list[dict[str, Any]]:
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadValue("must be a list of objects")
    if len(found) > MAX_ITEMS:
        raise BadValue(f"must have at most {MAX_ITEMS} entries, not {len(found)}")
    return found


def _text_or_nothing(value: Any) -> str:
    return "" if value is None else _any_text(value)


def _passed_over(value: Any) -> None:
    """What is not for us."""
