"""A rule as it is written down: by an administrator, in the store, and in answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from twinbus.broker.bounds import InvalidDescription, check_text
from twinbus.broker.durations import TICKS_PER_SECOND, parse_duration

from .parser import parse_action, parse_filter
from .tokens import BadSql

DEFAULT_RULE = "$Default"
MAX_NAME_LENGTH = 50
MAX_RULES = 2000
MAX_PROPERTIES = 100
_WHOLE = frozenset({"int", "long", "short", "byte", "unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"})
_BROKEN = frozenset({"double", "float", "decimal"})
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Value(NamedTuple):
    """A value as the service's XML writes it: the name of its type in XML Schema, and its text."""

    kind: str
    text: str

    def plain(self) -> Any:
        """What it stands for. Raises `ValueError`."""
        kind, text = self.kind, self.text
        if kind in _WHOLE:
            return int(text)
        if kind in _BROKEN:
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
    """What a filter is made of."""

    TRUE = "TrueFilter"
    FALSE = "FalseFilter"
    SQL = "SqlFilter"
    CORRELATION = "CorrelationFilter"


@dataclass(frozen=True, slots=True)
class Sql:
    """An expression, with values for the parameters in it."""

    expression: str
    parameters: Values = ()

    def plain_parameters(self) -> dict[str, Any]:
        return {name: value.plain() for name, value in self.parameters}


@dataclass(frozen=True, slots=True)
class Correlation:
    """What the properties of a message must be; None for what does not matter."""

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
        """What is asked of the message's own properties, by their names in SQL."""
        names = [one.name for one in fields(self) if one.name != "properties"]
        found = {name.replace("_", ""): getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RuleDescription:
    """Which messages pass, and what is changed in them. Times are seconds since the epoch."""

    name: str = DEFAULT_RULE
    filter: Sql | Correlation = Sql("1=1")
    kind: FilterKind = FilterKind.TRUE
    action: Sql | None = None
    created_at: float = 0.0

    def validate(self) -> None:
        """Raises InvalidDescription if it cannot be a rule."""
        check_text("name", self.name, 1, MAX_NAME_LENGTH)
        if any(letter in self.name for letter in "/\\?#@"):
            raise InvalidDescription("name", "The name of a rule must not hold any of / \\ ? # @.")
        try:
            if isinstance(self.filter, Sql):
                parse_filter(self.filter.expression, self.filter.plain_parameters())
            else:
                self._validate_correlation(self.filter)
            if self.action is not None:
                parse_action(self.action.expression, self.action.plain_parameters())
        except BadSql as error:
            raise InvalidDescription("rule", f"The rule '{self.name}' is not valid. {error}.") from error
        except ValueError as error:
            raise InvalidDescription("rule", f"The rule '{self.name}' has a parameter that is not: {error}.") from error

    def _validate_correlation(self, wanted: Correlation) -> None:
        if not wanted.system() and not wanted.properties:
            raise InvalidDescription("filter", "A correlation filter must name at least one property.")
        if len(wanted.properties) > MAX_PROPERTIES:
            raise InvalidDescription("filter", f"A correlation filter may name at most {MAX_PROPERTIES} properties.")
        for _, value in wanted.properties:
            value.plain()

    def to_json(self) -> dict[str, Any]:
        """As the store keeps it."""
        if isinstance(self.filter, Sql):
            wanted = _sql_to_json(self.filter)
        else:
            names = [one.name for one in fields(self.filter) if one.name != "properties"]
            wanted = {name: getattr(self.filter, name) for name in names if getattr(self.filter, name) is not None}
            wanted["properties"] = _values_to_json(self.filter.properties)
        return {
            "name": self.name,
            "kind": self.kind.value,
            "filter": wanted,
            "action": None if self.action is None else _sql_to_json(self.action),
            "created_at": self.created_at,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> RuleDescription:
        kind, wanted = FilterKind(found["kind"]), dict(found["filter"])
        if kind is FilterKind.CORRELATION:
            properties = _values_from_json(wanted.pop("properties"))
            made: Sql | Correlation = Correlation(properties=properties, **wanted)
        else:
            made = _sql_from_json(wanted)
        action = found["action"]
        return cls(
            found["name"], made, kind, None if action is None else _sql_from_json(action), float(found["created_at"])
        )


def with_times(
    wanted: tuple[RuleDescription, ...], known: tuple[RuleDescription, ...], now: float
) -> tuple[RuleDescription, ...]:
    """The rules that a file asks for, with times: one that did not change keeps its own.

    A file that says nothing about rules leaves those that are known as they are.
    """
    if wanted == (RuleDescription(),) and known:
        return known
    before = {(rule.name.lower(), rule.filter, rule.action): rule.created_at for rule in known}
    return tuple(
        replace(rule, created_at=before.get((rule.name.lower(), rule.filter, rule.action), now)) for rule in wanted
    )


def _sql_to_json(sql: Sql) -> dict[str, Any]:
    return {"expression": sql.expression, "parameters": _values_to_json(sql.parameters)}


def _sql_from_json(found: Mapping[str, Any]) -> Sql:
    return Sql(found["expression"], _values_from_json(found["parameters"]))


def _values_to_json(found: Values) -> list[list[str]]:
    return [[name, value.kind, value.text] for name, value in found]


def _values_from_json(found: list[list[str]]) -> Values:
    return tuple((name, Value(kind, text)) for name, kind, text in found)
