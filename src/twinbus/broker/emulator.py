"""The configuration file of Microsoft's emulator, so that what was made for it runs here unchanged.

Its names are translated to those of `twinbus serve --config`, which then reads and checks them. What the file leaves
out is what the emulator's schema says, where that is not what the service does.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from .config import Config, QueueConfig, TopicConfig, read_config, text_of
from .durations import TICKS_PER_DAY, TICKS_PER_SECOND, format_duration
from .security import ALL_RIGHTS, ROOT_POLICY
from .toml_table import BadValue, ConfigError, duration

AMQP_PORT = 5672
ADMINISTRATION_PORT = 5300
NAMESPACE = "sbemulatorns"
#: The key in the connection string that the emulator's documents tell everybody to use. It is no secret.
WELL_KNOWN_KEY = "SAS_KEY_VALUE"

_WINDOW = "DuplicateDetectionHistoryTimeWindow"
# The emulator's least, where the service's is 20 seconds, and the service's most.
_WINDOWS = (5 * TICKS_PER_SECOND, 7 * TICKS_PER_DAY)
_TOPIC_DEFAULTS = {"DefaultMessageTimeToLive": "PT1H", _WINDOW: "PT20S"}
_SUBSCRIPTION_DEFAULTS = {"DefaultMessageTimeToLive": "PT1H", "MaxDeliveryCount": 3}
_QUEUE_DEFAULTS = _TOPIC_DEFAULTS | _SUBSCRIPTION_DEFAULTS

# A text, which may hold slashes, or a comment. Either may lack its end, so that looking for it takes one pass.
_TEXT_OR_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)

_Stored = TypeVar("_Stored", QueueConfig, TopicConfig)


def emulator_config(file: Path | None = None) -> Config:
    """What a `Config.json` describes; without one, a namespace that is empty.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong.
    """
    name, source = NAMESPACE, file or Path("--emulator")
    values: dict[str, Any] = {"queues": {}, "topics": {}}
    if file is not None:
        try:
            content = json.loads(_without_comments(text_of(file)))
        except (ValueError, RecursionError) as error:
            raise ConfigError(str(file), "", "", f"is not JSON: {error}") from None
        user = _mapping(source, content, "UserConfig", "")
        found = _items(source, user, "Namespaces", "UserConfig")
        if len(found) != 1:
            raise ConfigError(str(file), "UserConfig", "Namespaces", f"must have 1 entry, not {len(found)}")
        name = _name(source, found[0], "Namespaces")
        values = _namespace(source, found[0])
    windows = _take_windows(source, values)
    values |= {
        "port": AMQP_PORT,
        "administration_port": ADMINISTRATION_PORT,
        "policies": {ROOT_POLICY: {"rights": sorted(ALL_RIGHTS), "primary_key": WELL_KNOWN_KEY}},
    }
    config = read_config({"namespaces": {name: values}}, source)
    [namespace] = config.namespaces
    queues = tuple(_with_window(one, windows) for one in namespace.queues)
    topics = tuple(_with_window(one, windows) for one in namespace.topics)
    return replace(config, namespaces=(replace(namespace, queues=queues, topics=topics),))


def _without_comments(text: str) -> str:
    """The text with blanks for comments, which the emulator's own sample has; errors keep their line and column."""
    return _TEXT_OR_COMMENT.sub(lambda found: found[1] or re.sub(r"\S", " ", found[0]), text)


def _take_windows(file: Path, values: dict[str, Any]) -> dict[str, int]:
    """Take out how long queues and topics look for duplicates: some are too short for a configuration of ours."""
    windows, (least, most) = {}, _WINDOWS
    for path, properties in [*values["queues"].items(), *values["topics"].items()]:
        try:
            ticks = duration(properties.pop(_snake(_WINDOW)))
        except BadValue as error:
            raise ConfigError(str(file), path, _WINDOW, str(error)) from None
        if not least <= ticks <= most:
            bounds = f"{format_duration(least)} to {format_duration(most)}"
            raise ConfigError(str(file), path, _WINDOW, f"must be {bounds}, not {format_duration(ticks)}")
        windows[path] = ticks
    return windows


def _with_window(one: _Stored, windows: dict[str, int]) -> _Stored:
    window = windows[one.description.path]
    return replace(one, description=replace(one.description, duplicate_detection_history_time_window=window))


def _namespace(file: Path, found: dict[str, Any]) -> dict[str, Any]:
    queues = {name: _properties(file, one, _QUEUE_DEFAULTS) for name, one in _named(file, found, "Queues").items()}
    topics = {}
    for name, topic in _named(file, found, "Topics").items():
        subscriptions = {
            name: _properties(file, one, _SUBSCRIPTION_DEFAULTS) | _rules(file, one)
            for name, one in _named(file, topic, "Subscriptions").items()
        }
        topics[name] = _properties(file, topic, _TOPIC_DEFAULTS) | {"subscriptions": subscriptions}
    return {"queues": queues, "topics": topics}


def _rules(file: Path, subscription: dict[str, Any]) -> dict[str, Any]:
    rules: dict[str, Any] = {}
    for one in _items(file, subscription, "Rules"):
        name = _name(file, one, "Rules")
        found = _mapping(file, one, "Properties", name)
        kind = found.get("FilterType")
        if kind == "Correlation":
            wanted = _mapping(file, found, "CorrelationFilter", name)
            own = wanted.get("Properties") or {}
            texts = {_snake(key): value for key, value in wanted.items() if key != "Properties" and value}
            rule: dict[str, Any] = {"correlation": {**texts, "properties": own}}
        elif kind == "Sql":
            rule = {"sql": _mapping(file, found, "SqlFilter", name).get("SqlExpression")}
        else:
            raise ConfigError(str(file), name, "FilterType", f"must be Correlation or Sql, not {kind!r}")
        action = _mapping(file, found, "Action", name).get("SqlExpression")
        rules[name] = rule | ({"action": action} if action else {})
    return {"rules": rules} if rules else {}


def _properties(file: Path, found: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The properties of an entity; an empty text means that there is none."""
    properties = _mapping(file, found, "Properties", str(found.get("Name")))
    given = {key: value for key, value in properties.items() if value not in ("", None)}
    return {_snake(key): value for key, value in (defaults | given).items()}


def _mapping(file: Path, parent: Any, key: str, where: str) -> dict[str, Any]:
    found = parent.get(key) if isinstance(parent, dict) else None
    if found is not None and not isinstance(found, dict):
        raise ConfigError(str(file), where, key, "must be an object")
    return found or {}


def _items(file: Path, parent: dict[str, Any], key: str, where: str = "") -> list[dict[str, Any]]:
    found = parent.get(key) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ConfigError(str(file), where or str(parent.get("Name", "")), key, "must be a list of objects")
    return found


def _named(file: Path, parent: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """The objects of a list by their names, which are all different."""
    found: dict[str, dict[str, Any]] = {}
    for one in _items(file, parent, key):
        name = _name(file, one, key)
        if name in found:
            raise ConfigError(str(file), key, name, "is there twice")
        found[name] = one
    return found


def _name(file: Path, found: dict[str, Any], where: str) -> str:
    name = found.get("Name")
    if not isinstance(name, str) or not name:
        raise ConfigError(str(file), where, "Name", "must be a text that is not empty")
    return name


def _snake(name: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
