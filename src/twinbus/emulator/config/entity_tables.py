"""Reads queues, topics, subscriptions and policies from the tables of a configuration file."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from twinbus.emulator.auth.security import AccessPolicy, generate_key
from twinbus.emulator.config.toml_table import (
    InvalidValueError,
    Reader,
    Table,
    boolean,
    duration,
    integer,
    rights,
    text,
    text_for_connection_string,
)
from twinbus.emulator.entities.rules.wire import correlation_from
from twinbus.servicebus.access_rights import MAX_KEY_LENGTH, MAX_POLICY_NAME_LENGTH, Right
from twinbus.servicebus.entity_descriptions import (
    DURATIONS,
    AuthorizationRule,
    InvalidDescriptionError,
    QueueDescription,
    SubscriptionDescription,
    Tier,
    TopicDescription,
)
from twinbus.servicebus.rule_descriptions import Correlation, FilterKind, RuleDescription, Sql
from twinbus.servicebus.sql_filter.tokens import MAX_LENGTH

# Not keys of a table: the name is the table's, policies and rules have tables, and the service sets the availability.
_NOT_FOR_FILES = frozenset({"path", "topic", "name", "authorization_rules", "availability_status", "rules"})

_Described = TypeVar("_Described", QueueDescription, TopicDescription)


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """An access policy of a configuration. A key that is not configured is None and is generated."""

    name: str
    rights: frozenset[Right]
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)

    def complete(self, existing: AccessPolicy | None = None) -> AccessPolicy:
        """The policy with both keys: configured, else from the `existing` policy, else generated."""
        primary = self.primary_key or (existing.primary_key if existing else generate_key())
        secondary = self.secondary_key or (existing.secondary_key if existing else generate_key())
        return AccessPolicy(self.name, primary, secondary, self.rights)


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """A queue to create at start."""

    description: QueueDescription
    policies: tuple[PolicyConfig, ...] = ()

    def describe(self, existing: QueueDescription | None = None) -> QueueDescription:
        """The full description. Keys that are not configured come from the `existing` queue, else are generated."""
        return _with_policies(self.description, self.policies, existing)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic to create at start, with its subscriptions."""

    description: TopicDescription
    subscriptions: tuple[SubscriptionDescription, ...] = ()
    policies: tuple[PolicyConfig, ...] = ()

    def describe(self, existing: TopicDescription | None = None) -> TopicDescription:
        """The full description. Keys that are not configured come from the `existing` topic, else are generated."""
        return _with_policies(self.description, self.policies, existing)


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
    """Read the `rules` of a subscription's table."""
    return tuple(_read_rule(name, each) for name, each in table.tables("rules", shorthand="sql"))


def _read_rule(name: str, table: Table) -> RuleDescription:
    """Read a rule: SQL alone, or a table with `sql` or `correlation` and optionally an `action`."""
    expression: Reader[str | None] = text(1, MAX_LENGTH)
    sql, action = table.take("sql", expression, None), table.take("action", expression, None)
    correlation = table.take("correlation", _read_correlation, None)
    table.finish()
    if (sql is None) == (correlation is None):
        raise table.error("", "must have either sql or correlation")
    return checked_rule(name, table, Sql(sql) if sql is not None else correlation or Correlation(), action)


def checked_rule(name: str, table: Table, rule_filter: Sql | Correlation, action: str | None) -> RuleDescription:
    """The rule; raises `ConfigError` if it is not valid."""
    kind = FilterKind.SQL if isinstance(rule_filter, Sql) else FilterKind.CORRELATION
    rule = RuleDescription(name, rule_filter, kind, None if action is None else Sql(action))
    try:
        rule.validate()
    except InvalidDescriptionError as error:
        raise table.error("", error.message) from None
    return rule


def _read_correlation(value: Any) -> Correlation:
    try:
        return correlation_from(value)
    except ValueError as error:
        raise InvalidValueError(str(error)) from None


def read_properties(
    kind: type[QueueDescription] | type[TopicDescription] | type[SubscriptionDescription], table: Table
) -> dict[str, Any]:
    """The properties of a description that are set in the table."""
    properties: dict[str, Any] = {}
    for each in fields(kind):
        if each.name not in _NOT_FOR_FILES:
            value = table.take(each.name, _property_reader(each.name, str(each.type)), None)
            if value is not None:
                properties[each.name] = value
    return properties


def _property_reader(name: str, kind: str) -> Reader[Any]:
    """The reader for a property, by its annotation (`int`, `str | None`, …)."""
    if name in DURATIONS:
        return duration
    if kind.startswith("bool"):
        return boolean
    if kind.startswith("int"):
        return integer(0, 2**31 - 1)
    # Longer than any bound, so that the description's own check names the bound.
    return text(0, 10_000)


def check_description(
    description: QueueDescription | TopicDescription | SubscriptionDescription, table: Table, tier: Tier
) -> None:
    """Raise `ConfigError` if the service would refuse a property."""
    try:
        description.validate(tier)
    except InvalidDescriptionError as error:
        key = error.field if error.field not in _NOT_FOR_FILES else ""
        raise table.error("policies" if error.field == "authorization_rules" else key, error.message) from None


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


def _with_policies(
    description: _Described, policies: tuple[PolicyConfig, ...], existing: _Described | None
) -> _Described:
    by_name = {rule.key_name: rule for rule in existing.authorization_rules} if existing else {}
    rules = []
    for policy in policies:
        rule = by_name.get(policy.name)
        before = AccessPolicy(rule.key_name, rule.primary_key, rule.secondary_key, rule.rights) if rule else None
        complete = policy.complete(before)
        rules.append(AuthorizationRule(complete.name, complete.primary_key, complete.secondary_key, complete.rights))
    return replace(description, authorization_rules=tuple(rules))
