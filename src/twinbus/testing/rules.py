"""Rules of subscriptions as a test writes them: the way the file of `twinbus serve` has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twinbus.broker.bounds import InvalidDescription
from twinbus.broker.config_entities import read_rules
from twinbus.broker.rules.descriptions import RuleDescription
from twinbus.broker.toml_table import ConfigError, Table

#: By their names: SQL, or a mapping with `sql` or `correlation`, and perhaps an `action`.
Rules = Mapping[str, str | Mapping[str, Any]]


def made_rules(rules: Rules | None, now: float) -> tuple[RuleDescription, ...]:
    """The rules as descriptions, made `now`; for None the one that lets everything pass.

    Raises:
        InvalidDescription: a rule is written in another way, or cannot be.
    """
    if rules is None:
        return (RuleDescription(created_at=now),)
    if not isinstance(rules, Mapping) or not all(isinstance(name, str) for name in rules):
        raise InvalidDescription("rules", "must be a mapping of names to rules")
    tables = {name: dict(rule) if isinstance(rule, Mapping) else rule for name, rule in rules.items()}
    try:
        read = read_rules(Table("", "", {"rules": tables}))
    except ConfigError as error:
        raise InvalidDescription(".".join(filter(None, (error.table, error.field))), error.message) from None
    return tuple(replace(one, created_at=now) for one in read)
