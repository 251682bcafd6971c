"""Rules as `$management` requests and answers carry them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from twinbus.amqp.types import Described, Timestamp, ULong

from .descriptions import MAX_PROPERTIES, Correlation, FilterKind, RuleDescription, Sql, Value
from .subject import milliseconds_of, plain

_RULE = ULong(0x13700000004)
_EMPTY_ACTION, _SQL_ACTION = ULong(0x13700000005), ULong(0x13700000006)
_FILTERS = {
    FilterKind.SQL: ULong(0x1370000006),
    FilterKind.TRUE: ULong(0x1370000007),
    FilterKind.FALSE: ULong(0x1370000008),
    FilterKind.CORRELATION: ULong(0x1370000009),
}
_SQL_VERSION = 20
_TEXTS = tuple(one.name for one in fields(Correlation) if one.name != "properties")
_FIXED = {"1=1": FilterKind.TRUE, "1=0": FilterKind.FALSE}


def read_rule(name: str, description: Any, now: float) -> RuleDescription:
    """The rule that a request describes. Raises `ValueError` that says what is wrong."""
    body = _map(description, "rule-description")
    kind: FilterKind
    wanted: Sql | Correlation
    if "correlation-filter" in body:
        kind, wanted = FilterKind.CORRELATION, _read_correlation(_map(body["correlation-filter"], "correlation-filter"))
    elif "sql-filter" in body:
        kind, wanted = FilterKind.SQL, Sql(_expression(body["sql-filter"], "sql-filter"))
    else:
        found = next((one for one in ("true-filter", "false-filter") if one in body), None)
        if found is None:
            raise ValueError("'rule-description' must have an 'sql-filter' or a 'correlation-filter'")
        text = "1=1" if found == "true-filter" else "1=0"
        kind, wanted = _FIXED[text], Sql(text)
    action = body.get("sql-rule-action")
    rule = RuleDescription(
        name, wanted, kind, None if action is None else Sql(_expression(action, "sql-rule-action")), now
    )
    rule.validate()
    return rule


def _map(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"'{name}' must be a map")
    return {str(key): item for key, item in value.items()}


def _expression(value: Any, name: str) -> str:
    expression = _map(value, name).get("expression")
    if not isinstance(expression, str) or not expression:
        raise ValueError(f"'{name}' must have an 'expression'")
    return str(expression)


def correlation_from(found: Any) -> Correlation:
    """The correlation filter that a map describes, with the names of the wire or of Python. Raises `ValueError`."""
    body = {name.replace("_", "-"): value for name, value in _map(found, "correlation").items()}
    unknown = body.keys() - {"properties", *(name.replace("_", "-") for name in _TEXTS)}
    if unknown:
        raise ValueError(f"'{min(unknown)}' is not a property that a correlation filter can ask for")
    return _read_correlation(body)


def _read_correlation(body: Mapping[str, Any]) -> Correlation:
    texts: dict[str, Any] = {}
    for name in _TEXTS:
        value = body.get(name.replace("_", "-"))
        if value is not None:
            if not isinstance(value, str):
                raise ValueError(f"'{name.replace('_', '-')}' of a correlation filter must be a string")
            texts[name] = str(value)
    own = body.get("properties")
    pairs = {} if own is None else _map(own, "properties")
    if len(pairs) > MAX_PROPERTIES:
        raise ValueError(f"'properties' of a correlation filter may have at most {MAX_PROPERTIES} entries")
    return Correlation(**texts, properties=tuple((name, _value(name, value)) for name, value in pairs.items()))


def _value(name: str, value: Any) -> Value:
    found = plain(value)
    if isinstance(found, bool):
        return Value("boolean", str(found).lower())
    if isinstance(found, int):
        return Value("int" if -(1 << 31) <= found < 1 << 31 else "long", str(found))
    if isinstance(found, float):
        return Value("double", repr(found))
    if isinstance(found, datetime):
        return Value("dateTime", found.isoformat())
    if isinstance(found, str):
        return Value("string", found)
    raise ValueError(f"the property {name!r} of a correlation filter cannot be a {type(value).__name__}")


def write_rule(rule: RuleDescription) -> Described:
    """A rule in an answer."""
    if isinstance(rule.filter, Correlation):
        own = {name: _encodable(value.plain()) for name, value in rule.filter.properties}
        made = [*(getattr(rule.filter, name) for name in _TEXTS), own]
    else:
        made = [rule.filter.expression, _SQL_VERSION] if rule.kind is FilterKind.SQL else []
    action = (
        Described(_EMPTY_ACTION, [])
        if rule.action is None
        else Described(_SQL_ACTION, [rule.action.expression, _SQL_VERSION])
    )
    created = Timestamp(round(rule.created_at * 1000))
    return Described(_RULE, [Described(_FILTERS[rule.kind], made), action, rule.name, created])


def _encodable(value: Any) -> Any:
    return Timestamp(milliseconds_of(value)) if isinstance(value, datetime) else value
