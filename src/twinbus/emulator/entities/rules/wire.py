"""Converts rules from and to the maps of `$management` requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from twinbus.amqp.codec.types import Described, Timestamp, ULong
from twinbus.servicebus.rule_descriptions import MAX_PROPERTIES, Correlation, FilterKind, RuleDescription, Sql, Value

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
_TEXTS = tuple(each.name for each in fields(Correlation) if each.name != "properties")
_FIXED = {"1=1": FilterKind.TRUE, "1=0": FilterKind.FALSE}


def read_rule(name: str, description: Any, now: float) -> RuleDescription:
    """The rule that a request describes. Raises `ValueError` naming the field that is wrong."""
    body = _map(description, "rule-description")
    kind: FilterKind
    rule_filter: Sql | Correlation
    if "correlation-filter" in body:
        kind = FilterKind.CORRELATION
        rule_filter = _read_correlation(_map(body["correlation-filter"], "correlation-filter"))
    elif "sql-filter" in body:
        kind, rule_filter = FilterKind.SQL, Sql(_expression(body["sql-filter"], "sql-filter"))
    else:
        constant = next((name for name in ("true-filter", "false-filter") if name in body), None)
        if constant is None:
            raise ValueError("'rule-description' must have an 'sql-filter' or a 'correlation-filter'")
        text = "1=1" if constant == "true-filter" else "1=0"
        kind, rule_filter = _FIXED[text], Sql(text)
    action = body.get("sql-rule-action")
    rule = RuleDescription(
        name, rule_filter, kind, None if action is None else Sql(_expression(action, "sql-rule-action")), now
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


def correlation_from(values: Any) -> Correlation:
    """The correlation filter that a map describes, in AMQP or Python spelling. Raises `ValueError`."""
    body = {name.replace("_", "-"): value for name, value in _map(values, "correlation").items()}
    unknown = body.keys() - {"properties", *(name.replace("_", "-") for name in _TEXTS)}
    if unknown:
        raise ValueError(f"'{min(unknown)}' is not a property that a correlation filter can compare")
    return _read_correlation(body)


def _read_correlation(body: Mapping[str, Any]) -> Correlation:
    texts: dict[str, Any] = {}
    for name in _TEXTS:
        value = body.get(name.replace("_", "-"))
        if value is not None:
            if not isinstance(value, str):
                raise ValueError(f"'{name.replace('_', '-')}' of a correlation filter must be a string")
            texts[name] = str(value)
    properties = body.get("properties")
    pairs = {} if properties is None else _map(properties, "properties")
    if len(pairs) > MAX_PROPERTIES:
        raise ValueError(f"'properties' of a correlation filter may have at most {MAX_PROPERTIES} entries")
    return Correlation(**texts, properties=tuple((name, _value(name, value)) for name, value in pairs.items()))


def _value(name: str, value: Any) -> Value:
    plain_value = plain(value)
    if isinstance(plain_value, bool):
        return Value("boolean", str(plain_value).lower())
    if isinstance(plain_value, int):
        return Value("int" if -(1 << 31) <= plain_value < 1 << 31 else "long", str(plain_value))
    if isinstance(plain_value, float):
        return Value("double", repr(plain_value))
    if isinstance(plain_value, datetime):
        return Value("dateTime", plain_value.isoformat())
    if isinstance(plain_value, str):
        return Value("string", plain_value)
    raise ValueError(f"the property {name!r} of a correlation filter cannot be a {type(value).__name__}")


def write_rule(rule: RuleDescription) -> Described:
    """The described value of a rule in an answer."""
    if isinstance(rule.filter, Correlation):
        properties = {name: _encodable(value.plain()) for name, value in rule.filter.properties}
        filter_fields = [*(getattr(rule.filter, name) for name in _TEXTS), properties]
    else:
        filter_fields = [rule.filter.expression, _SQL_VERSION] if rule.kind is FilterKind.SQL else []
    action = (
        Described(_EMPTY_ACTION, [])
        if rule.action is None
        else Described(_SQL_ACTION, [rule.action.expression, _SQL_VERSION])
    )
    created = Timestamp(round(rule.created_at * 1000))
    return Described(_RULE, [Described(_FILTERS[rule.kind], filter_fields), action, rule.name, created])


def _encodable(value: Any) -> Any:
    return Timestamp(milliseconds_of(value)) if isinstance(value, datetime) else value
