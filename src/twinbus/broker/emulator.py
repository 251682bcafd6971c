"""The configuration file of Microsoft's emulator, so that what was made for it runs here unchanged.

Its names are translated to those of `twinbus serve --config`, which then reads and checks them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .config import Config, read_config, text_of
from .security import ALL_RIGHTS, ROOT_POLICY
from .toml_table import ConfigError

AMQP_PORT = 5672
ADMINISTRATION_PORT = 5300
NAMESPACE = "sbemulatorns"
#: The key in the connection string that the emulator's documents tell everybody to use. It is no secret.
WELL_KNOWN_KEY = "SAS_KEY_VALUE"


def emulator_config(file: Path | None = None) -> Config:
    """What a `Config.json` describes; without one, a namespace that is empty.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong.
    """
    name, source = NAMESPACE, file or Path("--emulator")
    values: dict[str, Any] = {}
    if file is not None:
        try:
            content = json.loads(text_of(file))
        except (ValueError, RecursionError) as error:
            raise ConfigError(str(file), "", "", f"is not JSON: {error}") from None
        user = _mapping(source, content, "UserConfig", "")
        found = _items(source, user, "Namespaces", "UserConfig")
        if len(found) != 1:
            raise ConfigError(str(file), "UserConfig", "Namespaces", f"must have 1 entry, not {len(found)}")
        name = _name(source, found[0], "Namespaces")
        values = _namespace(source, found[0])
    values |= {
        "port": AMQP_PORT,
        "administration_port": ADMINISTRATION_PORT,
        "policies": {ROOT_POLICY: {"rights": sorted(ALL_RIGHTS), "primary_key": WELL_KNOWN_KEY}},
    }
    return read_config({"namespaces": {name: values}}, source)


def _namespace(file: Path, found: dict[str, Any]) -> dict[str, Any]:
    queues = {_name(file, one, "Queues"): _properties(file, one) for one in _items(file, found, "Queues")}
    topics = {}
    for topic in _items(file, found, "Topics"):
        subscriptions = {
            _name(file, one, "Subscriptions"): _properties(file, one) | _rules(file, one)
            for one in _items(file, topic, "Subscriptions")
        }
        topics[_name(file, topic, "Topics")] = _properties(file, topic) | {"subscriptions": subscriptions}
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


def _properties(file: Path, found: dict[str, Any]) -> dict[str, Any]:
    """The properties of an entity; an empty text means that there is none."""
    properties = _mapping(file, found, "Properties", str(found.get("Name")))
    return {_snake(key): value for key, value in properties.items() if value not in ("", None)}


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


def _name(file: Path, found: dict[str, Any], where: str) -> str:
    name = found.get("Name")
    if not isinstance(name, str) or not name:
        raise ConfigError(str(file), where, "Name", "must be a text that is not empty")
    return name


def _snake(name: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
