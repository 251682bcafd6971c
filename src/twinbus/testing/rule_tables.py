"""Reads subscription rules that tests write in the format of the `twinbus serve` file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twinbus.emulator.config.entity_tables import read_rules
from twinbus.emulator.config.toml_table import ConfigError, Table
from twinbus.servicebus.property_bounds import InvalidDescriptionError
from twinbus.servicebus.rule_descriptions import RuleDescription

#: By name: SQL, or a mapping with `sql` or `correlation` and optionally an `action`.
Rules = Mapping[str, str | Mapping[str, Any]]


def rule_descriptions(rules: Rules | None, now: float) -> tuple[RuleDescription, ...]:
    """The rules as descriptions, created at `now`; for None the default rule, which passes every message.

    Raises:
        InvalidDescriptionError: a rule has another format, or is not valid.
    """
    if rules is None:
        return (RuleDescription(created_at=now),)
    if not isinstance(rules, Mapping) or not all(isinstance(name, str) for name in rules):
        raise InvalidDescriptionError("rules", "must be a mapping of names to rules")
    tables = {name: dict(rule) if isinstance(rule, Mapping) else rule for name, rule in rules.items()}
    try:
        descriptions = read_rules(Table("", "", {"rules": tables}))
    except ConfigError as error:
        raise InvalidDescriptionError(".".join(filter(None, (error.table, error.field))), error.message) from None
    return tuple(replace(description, created_at=now) for description in descriptions)
