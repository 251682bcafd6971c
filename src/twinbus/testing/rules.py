"""Rules of subscriptions as a test writes them: the way the file of `twinbus serve` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinbus.broker.bounds import InvalidDescription
from twinbus.broker.rules.descriptions import Correlation, FilterKind, RuleDescription, Sql
from twinbus.broker.rules.wire import correlation_from

_PARTS = ("sql", "correlation", "action")


#: By their names: SQL, or a mapping with `sql` or `correlation`, and perhaps an `action`.
Rules = Mapping[str, str | Mapping[str, Any]]


def read_rules(rules: Rules | None, now: float) -> tuple[RuleDescription, ...]:
    """The rules as descriptions, made `now`; for None the one that lets everything pass.

    Raises:
        InvalidDescription: a rule is written in another way. Whether it can be is for `validate`.
    """
    if rules is None:
        return (RuleDescription(created_at=now),)
    if not isinstance(rules, Mapping):
        raise InvalidDescription("rules", f"must be a mapping of names to rules, not {type(rules).__name__}")
    return tuple(
        _read_rule(name, {"sql": rule} if isinstance(rule, str) else rule, now) for name, rule in rules.items()
    )


def _read_rule(name: str, rule: Mapping[str, Any], now: float) -> RuleDescription:
    if not isinstance(name, str):
        raise InvalidDescription("rules", f"the name of a rule must be text, not {type(name).__name__}")
    if not isinstance(rule, Mapping) or not rule.keys() <= set(_PARTS):
        raise InvalidDescription("rules", f"{name!r} must be SQL, or a mapping with some of {', '.join(_PARTS)}")
    if ("sql" in rule) == ("correlation" in rule):
        raise InvalidDescription("rules", f"{name!r} must have either sql or correlation")
    for part in ("sql", "action"):
        if not isinstance(rule.get(part, ""), str):
            raise InvalidDescription("rules", f"{part} of {name!r} must be text, not {type(rule[part]).__name__}")
    wanted: Sql | Correlation
    if "sql" in rule:
        kind, wanted = FilterKind.SQL, Sql(rule["sql"])
    else:
        kind, wanted = FilterKind.CORRELATION, _read_correlation(name, rule["correlation"])
    return RuleDescription(name, wanted, kind, Sql(rule["action"]) if "action" in rule else None, now)


def _read_correlation(name: str, correlation: Any) -> Correlation:
    try:
        return correlation_from(correlation)
    except ValueError as error:
        raise InvalidDescription("rules", f"{name!r}: {error}") from None
