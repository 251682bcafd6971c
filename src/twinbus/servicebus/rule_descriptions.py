"""Describes subscription rules, validates them, and converts them to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from twinbus.servicebus.durations import TICKS_PER_SECOND, parse_duration
from twinbus.servicebus.property_bounds import InvalidDescriptionError, check_text

from .sql_filter.parser import parse_action, parse_filter
from .sql_filter.tokens import InvalidSqlError

DEFAULT_RULE = "$Default"
MAX_NAME_LENGTH = 50
MAX_RULES = 2000
MAX_PROPERTIES = 100
_INTEGERS = frozenset({"int", "long", "short", "byte", "unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"})
_FLOATS = frozenset({"double", "float", "decimal"})
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Value(NamedTuple):
    """A value in the service's XML notation: its XML Schema type name and its text."""

    kind: str
    text: str

    def plain(self) -> Any:
        """The Python value. Raises `ValueError` if the text does not match the type."""
        kind, text = self.kind, self.text
        if kind in _INTEGERS:
            return int(text)
        if kind in _FLOATS:
            return float(text)
        if kind == "boolean":
            if text.strip().lower() not in _FLAGS:
                raise ValueError(f"{text!r} is neither true nor false")
            return _FLAGS[text.strip().lower()]
        if kind == "dateTime":
            time = datetime.fromisoformat(text.replace("Z", "+00:00"))
            return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        if kind == "duration":
            return parse_duration(text) / TICKS_PER_SECOND
        return text


Values = tuple[tuple[str, Value], ...]


class FilterKind(StrEnum):
    """The kind of a rule's filter."""

    TRUE = "TrueFilter"
    FALSE = "FalseFilter"
    SQL = "SqlFilter"
    CORRELATION = "CorrelationFilter"


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL expression and the values of its parameters."""

    expression: str
    parameters: Values = ()

    def plain_parameters(self) -> dict[str, Any]:
        return {name: value.plain() for name, value in self.parameters}


@dataclass(frozen=True, slots=True)
class Correlation:
    """A correlation filter: the required values of message properties; None matches any value."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Values = ()

    def system(self) -> dict[str, str]:
        """The required values of system properties, by their names in SQL."""
        names = [each.name for each in fields(self) if each.name != "properties"]
        values = {name.replace("_", ""): getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RuleDescription:
    """A rule: a filter that selects messages, and an action that changes them. Times are seconds since the epoch."""

    name: str = DEFAULT_RULE
    filter: Sql | Correlation = Sql("1=1")
    kind: FilterKind = FilterKind.TRUE
    action: Sql | None = None
    created_at: float = 0.0

    def validate(self) -> None:
        """Raise `InvalidDescriptionError` if the name, the filter or the action is not valid."""
        check_text("name", self.name, 1, MAX_NAME_LENGTH)
        if any(letter in self.name for letter in "/\\?#@"):
            raise InvalidDescriptionError("name", "The name of a rule must not hold any of / \\ ? # @.")
        try:
            if isinstance(self.filter, Sql):
                parse_filter(self.filter.expression, self.filter.plain_parameters())
            else:
                self._validate_correlation(self.filter)
            if self.action is not None:
                parse_action(self.action.expression, self.action.plain_parameters())
        except InvalidSqlError as error:
            raise InvalidDescriptionError("rule", f"The rule '{self.name}' is not valid. {error}.") from error
        except ValueError as error:
            raise InvalidDescriptionError(
                "rule", f"The rule '{self.name}' has an invalid parameter or property: {error}."
            ) from error

    def _validate_correlation(self, correlation: Correlation) -> None:
        if not correlation.system() and not correlation.properties:
            raise InvalidDescriptionError("filter", "A correlation filter must name at least one property.")
        if len(correlation.properties) > MAX_PROPERTIES:
            raise InvalidDescriptionError(
                "filter", f"A correlation filter may name at most {MAX_PROPERTIES} properties."
            )
        for _, value in correlation.properties:
            value.plain()

    def to_json(self) -> dict[str, Any]:
        """The rule as plain JSON types, for the store."""
        if isinstance(self.filter, Sql):
            filter_json = _sql_to_json(self.filter)
        else:
            names = [each.name for each in fields(self.filter) if each.name != "properties"]
            filter_json = {name: getattr(self.filter, name) for name in names if getattr(self.filter, name) is not None}
            filter_json["properties"] = _values_to_json(self.filter.properties)
        return {
            "name": self.name,
            "kind": self.kind.value,
            "filter": filter_json,
            "action": None if self.action is None else _sql_to_json(self.action),
            "created_at": self.created_at,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RuleDescription:
        """The rule that `to_json` wrote."""
        kind, filter_json = FilterKind(values["kind"]), dict(values["filter"])
        if kind is FilterKind.CORRELATION:
            properties = _values_from_json(filter_json.pop("properties"))
            rule_filter: Sql | Correlation = Correlation(properties=properties, **filter_json)
        else:
            rule_filter = _sql_from_json(filter_json)
        action = values["action"]
        return cls(
            values["name"],
            rule_filter,
            kind,
            None if action is None else _sql_from_json(action),
            float(values["created_at"]),
        )


def with_times(
    configured: tuple[RuleDescription, ...], existing: tuple[RuleDescription, ...], now: float
) -> tuple[RuleDescription, ...]:
    """The configured rules with creation times; an unchanged rule keeps its time.

    If the file configures no rules, the existing ones stay as they are.
    """
    if configured == (RuleDescription(),) and existing:
        return existing
    before = {(rule.name.lower(), rule.filter, rule.action): rule.created_at for rule in existing}
    return tuple(
        replace(rule, created_at=before.get((rule.name.lower(), rule.filter, rule.action), now)) for rule in configured
    )


def _sql_to_json(sql: Sql) -> dict[str, Any]:
    return {"expression": sql.expression, "parameters": _values_to_json(sql.parameters)}


def _sql_from_json(sql: Mapping[str, Any]) -> Sql:
    return Sql(sql["expression"], _values_from_json(sql["parameters"]))


def _values_to_json(values: Values) -> list[list[str]]:
    return [[name, value.kind, value.text] for name, value in values]


def _values_from_json(values: list[list[str]]) -> Values:
    return tuple((name, Value(kind, text)) for name, kind, text in values)
