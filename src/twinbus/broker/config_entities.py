"""Queues, topics and subscriptions as the tables of a configuration file describe them, with their policies."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from twinbus.broker.descriptions import (
    DURATIONS,
    AuthorizationRule,
    InvalidDescription,
    QueueDescription,
    SubscriptionDescription,
    Tier,
    TopicDescription,
)
from twinbus.broker.rules.descriptions import Correlation, FilterKind, RuleDescription, Sql
from twinbus.broker.rules.tokens import MAX_LENGTH
from twinbus.broker.rules.wire import correlation_from
from twinbus.broker.security import MAX_KEY_LENGTH, MAX_POLICY_NAME_LENGTH, AccessPolicy, Right, generate_key
from twinbus.broker.toml_table import (
    BadValue,
    Reader,
    Table,
    boolean,
    duration,
    integer,
    rights,
    text,
    text_for_connection_string,
)

# The name is the table's own; policies have a table of their own; the service alone says what is available.
_NOT_FOR_FILES = frozenset({"path", "topic", "name", "authorization_rules", "availability_status", "rules"})

_Described = TypeVar("_Described", QueueDescription, TopicDescription)


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """An access policy as it is written down. A key that is not fixed there is None and has to be made."""

    name: str
    rights: frozenset[Right]
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)

    def complete(self, kept: AccessPolicy | None = None) -> AccessPolicy:
        """The policy with both keys: the fixed ones, else those of an earlier start, else fresh ones."""
        primary = self.primary_key or (kept.primary_key if kept else generate_key())
        secondary = self.secondary_key or (kept.secondary_key if kept else generate_key())
        return AccessPolicy(self.name, primary, secondary, self.rights)


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """A queue to create at start."""

    description: QueueDescription
    policies: tuple[PolicyConfig, ...] = ()

    def describe(self, kept: QueueDescription | None = None) -> QueueDescription:
        """The full description. Keys that are not fixed are those of the `kept` queue, else fresh ones."""
        return _with_rules(self.description, self.policies, kept)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic to create at start, with its subscriptions."""

    description: TopicDescription
    subscriptions: tuple[SubscriptionDescription, ...] = ()
    policies: tuple[PolicyConfig, ...] = ()

    def describe(self, kept: TopicDescription | None = None) -> TopicDescription:
        """The full description. Keys that are not fixed are those of the `kept` topic, else fresh ones."""
        return _with_rules(self.description, self.policies, kept)


def read_queue(path: str, table: Table, tier: Tier) -> QueueConfig:
    description = QueueDescription(path, **read_properties(QueueDescription, table))
    queue = QueueConfig(description, read_policies(table))
    table.finish()
    check_description(queue.describe(), table, tier)
    return queue


def read_topic(path: str, table: Table, tier: Tier) -> TopicConfig:
    description = TopicDescription(path, **read_properties(TopicDescription, table))
    subscriptions = tuple(_read_subscription(path, name, each, tier) for name, each in table.tables("subscriptions"))
    topic = TopicConfig(description, subscriptions, read_policies(table))
    table.finish()
    check_description(topic.describe(), table, tier)
    return topic


def _read_subscription(topic: str, name: str, table: Table, tier: Tier) -> SubscriptionDescription:
    properties = read_properties(SubscriptionDescription, table)
    rules = read_rules(table)
    if rules:
        properties["rules"] = rules
    description = SubscriptionDescription(topic, name, **properties)
    table.finish()
    check_description(description, table, tier)
    return description


def read_rules(table: Table) -> tuple[RuleDescription, ...]:
    """The `rules` of a subscription's table."""
    return tuple(_read_rule(name, each) for name, each in table.tables("rules", shorthand="sql"))


def _read_rule(name: str, table: Table) -> RuleDescription:
    """A rule: its SQL alone, or a table with `sql` or `correlation`, and perhaps an `action`."""
    expression: Reader[str | None] = text(1, MAX_LENGTH)
    sql, action = table.take("sql", expression, None), table.take("action", expression, None)
    correlation = table.take("correlation", _read_correlation, None)
    table.finish()
    if (sql is None) == (correlation is None):
        raise table.error("", "must have either sql or correlation")
    return checked_rule(name, table, Sql(sql) if sql is not None else correlation or Correlation(), action)


def checked_rule(name: str, table: Table, wanted: Sql | Correlation, action: str | None) -> RuleDescription:
    """The rule; raises `ConfigError` for one that cannot be."""
    kind = FilterKind.SQL if isinstance(wanted, Sql) else FilterKind.CORRELATION
    rule = RuleDescription(name, wanted, kind, None if action is None else Sql(action))
    try:
        rule.validate()
    except InvalidDescription as error:
        raise table.error("", error.message) from None
    return rule


def _read_correlation(value: Any) -> Correlation:
    try:
        return correlation_from(value)
    except ValueError as error:
        raise BadValue(str(error)) from None


def read_properties(
    kind: type[QueueDescription] | type[TopicDescription] | type[SubscriptionDescription], table: Table
) -> dict[str, Any]:
    """The properties of a description that the table sets."""
    found: dict[str, Any] = {}
    for each in fields(kind):
        if each.name not in _NOT_FOR_FILES:
            value = table.take(each.name, _property_reader(each.name, str(each.type)), None)
            if value is not None:
                found[each.name] = value
    return found


def _property_reader(name: str, kind: str) -> Reader[Any]:
    """How a property is read, from its annotation (`int`, `str | None`, …)."""
    if name in DURATIONS:
        return duration
    if kind.startswith("bool"):
        return boolean
    if kind.startswith("int"):
        return integer(0, 2**31 - 1)
    # Longer than the bound of any, so that it is the description that names the bound.
    return text(0, 10_000)


def check_description(
    description: QueueDescription | TopicDescription | SubscriptionDescription, table: Table, tier: Tier
) -> None:
    """Raises `ConfigError` for a property that the service would refuse."""
    try:
        description.validate(tier)
    except InvalidDescription as error:
        own = error.field if error.field not in _NOT_FOR_FILES else ""
        where = "policies" if error.field == "authorization_rules" else own
        raise table.error(where, error.message) from None


def read_policies(table: Table) -> tuple[PolicyConfig, ...]:
    return tuple(_read_policy(name, each) for name, each in table.tables("policies", shorthand="rights"))


def _read_policy(name: str, table: Table) -> PolicyConfig:
    key: Reader[str | None] = text_for_connection_string(MAX_KEY_LENGTH)
    try:
        text_for_connection_string(MAX_POLICY_NAME_LENGTH)(name)
    except ValueError as error:
        raise table.error("", f"the name of a policy {error}") from None
    policy = PolicyConfig(
        name,
        table.require("rights", rights),
        table.take("primary_key", key, None),
        table.take("secondary_key", key, None),
    )
    table.finish()
    return policy


def _with_rules(description: _Described, policies: tuple[PolicyConfig, ...], kept: _Described | None) -> _Described:
    by_name = {rule.key_name: rule for rule in kept.authorization_rules} if kept else {}
    rules = []
    for policy in policies:
        rule = by_name.get(policy.name)
        before = AccessPolicy(rule.key_name, rule.primary_key, rule.secondary_key, rule.rights) if rule else None
        made = policy.complete(before)
        rules.append(AuthorizationRule(made.name, made.primary_key, made.secondary_key, made.rights))
    return replace(description, authorization_rules=tuple(rules))
