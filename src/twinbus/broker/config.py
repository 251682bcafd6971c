"""The file of `twinbus serve --config FILE`: namespaces, what is in them, and who may use them.

    data = "twinbus-data"               # relative to this file
    durability = "normal"               # what is said here holds for every namespace that says nothing else

    [namespaces.contoso]
    port = 5672
    queues = ["orders", "invoices"]     # names alone, where the defaults will do
    policies.sender = ["Send"]

    [namespaces.contoso.topics.events.subscriptions.billing]
    requires_session = true

    [namespaces.contoso-standby]
    port = 5673
    profile = "azure"
    link_idle = "30s"                   # shorter than the profile's; also idle_timeout, connection_idle
    throttle = 100                      # messages a second

    [namespaces.contoso-standby.queues."contoso/x-servicebus-transfer/0"]
    max_size_in_megabytes = 5120
    lock_duration = "1m"                # or 60, or "PT1M"; "unlimited" is the service's maximum
    policies.syphon = { rights = ["Listen"], primary_key = "…" }

    [[namespaces.contoso.bearer_tokens]]
    token = "…"
    rights = ["Send"]
    path = "orders"

Named tables may also be written `[[namespaces]]` with a `name` in each. A mistake is a `ConfigError` that
says where it is and what is allowed. Keys and tokens never show in it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from twinbus.broker.certificate import subject_names
from twinbus.broker.descriptions import (
    AuthorizationRule,
    InvalidDescription,
    QueueDescription,
    SubscriptionDescription,
    Tier,
    TopicDescription,
)
from twinbus.broker.durations import TICKS_PER_SECOND
from twinbus.broker.profile import UNCHANGED, ProfileChanges, ProfileName
from twinbus.broker.rules.descriptions import Correlation, FilterKind, RuleDescription, Sql
from twinbus.broker.rules.tokens import MAX_LENGTH
from twinbus.broker.rules.wire import correlation_from
from twinbus.broker.security import (
    ALL_RIGHTS,
    MAX_KEY_LENGTH,
    MAX_POLICY_NAME_LENGTH,
    MAX_TOKEN_LENGTH,
    ROOT_POLICY,
    AccessPolicy,
    BearerToken,
    Right,
    generate_key,
)
from twinbus.broker.store import Durability
from twinbus.broker.toml_table import (
    BadValue,
    ConfigError,
    Reader,
    Table,
    boolean,
    choice,
    duration,
    integer,
    moment,
    rights,
    size,
    text,
    text_for_connection_string,
    texts,
)

__all__ = [
    "Config",
    "ConfigError",
    "Durability",
    "NamespaceConfig",
    "PolicyConfig",
    "ProfileName",
    "QueueConfig",
    "TopicConfig",
    "load_config",
    "parse_config",
]

DEFAULT_PORT = 5672
DEFAULT_MAX_MESSAGE_SIZE = 256 * 1024
# 100 MB is what the service takes at most; less than 1 KB could not hold a message's properties.
MESSAGE_SIZES = (1024, 100 * 1024 * 1024)
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_NAMESPACES = 100
MAX_HOSTS = 100
MAX_THROTTLE = 1_000_000
MIN_TIME, MAX_TIME = 0.1, 86_400.0

_DURATIONS = frozenset(
    {
        "lock_duration",
        "default_message_time_to_live",
        "duplicate_detection_history_time_window",
        "auto_delete_on_idle",
    }
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


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """A namespace to serve. Port 0 picks a free one.

    `audience_hosts` are the only hosts the audience of a token may name, any if empty. `deliver_pings` shows
    pings to receivers.
    """

    name: str
    port: int = DEFAULT_PORT
    queues: tuple[QueueConfig, ...] = ()
    topics: tuple[TopicConfig, ...] = ()
    policies: tuple[PolicyConfig, ...] = ()
    bearer_tokens: tuple[BearerToken, ...] = ()
    audience_hosts: tuple[str, ...] = ()
    tier: Tier = Tier.STANDARD
    profile: ProfileName = ProfileName.DEFAULT
    profile_changes: ProfileChanges = UNCHANGED
    durability: Durability = Durability.FULL
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE
    deliver_pings: bool = False

    def access_policies(self, kept: Iterable[AccessPolicy] = ()) -> tuple[AccessPolicy, ...]:
        """The namespace's own policies with all keys, RootManageSharedAccessKey always among them.

        Keys that are not fixed come from the policies `kept` from an earlier start, else are made.
        """
        by_name = {policy.name: policy for policy in kept}
        policies = self.policies
        if all(policy.name != ROOT_POLICY for policy in policies):
            policies = (PolicyConfig(ROOT_POLICY, ALL_RIGHTS), *policies)
        return tuple(policy.complete(by_name.get(policy.name)) for policy in policies)


@dataclass(frozen=True, slots=True)
class Config:
    """What a configuration file says. `data` and `host` are None where it says nothing.

    `certificate_names` are host names and addresses, besides the loopback ones, that the TLS certificate is
    good for.
    """

    namespaces: tuple[NamespaceConfig, ...]
    data: Path | None = None
    host: str | None = None
    certificate_names: tuple[str, ...] = ()


def load_config(file: Path) -> Config:
    """Reads a configuration file.

    Raises:
        ConfigError: it cannot be read, or something in it is wrong.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(file), "", "", f"cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(str(file), "", "", f"must have at most {MAX_FILE_BYTES} bytes")
    try:
        return parse_config(content.decode("utf-8"), file)
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), "", "", f"must be UTF-8, which byte {error.start} is not") from None


def parse_config(content: str, file: Path) -> Config:
    """Reads the text of a configuration file; `file` is named in errors, and relative paths start beside it.

    Raises:
        ConfigError: something in it is wrong.
    """
    try:
        values = tomllib.loads(content)
    except RecursionError:
        raise ConfigError(str(file), "", "", "is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(str(file), "", "", f"is not TOML: {error}") from None
    table = Table(str(file), "", values)
    data = table.take("data", text(1, 4096), None)
    host = table.take("host", text(1, 253), None)
    certificate_names = _read_certificate_names(table)
    defaults = _read_options(table, NamespaceConfig(""))
    namespaces = tuple(_read_namespace(name, each, defaults) for name, each in table.tables("namespaces"))
    table.finish()
    if not 1 <= len(namespaces) <= MAX_NAMESPACES:
        raise table.error("namespaces", f"must have 1 to {MAX_NAMESPACES} entries, such as [namespaces.contoso]")
    _check_ports(table, namespaces)
    folder = None if data is None else file.parent / Path(data).expanduser()
    return Config(namespaces, folder, host, certificate_names)


def parse_namespace(text: str) -> NamespaceConfig:
    """A namespace as the command line names it: `contoso=5672`.

    Raises:
        ConfigError: the name or the port is wrong.
    """
    name, separator, port = text.partition("=")
    table = Table("--namespace", "", {"port": int(port) if port.isdecimal() and len(port) < 6 else port})
    if not separator:
        raise table.error("", f"must be NAME=PORT, such as contoso=5672, not {text!r}")
    return _read_namespace(name, table, NamespaceConfig(""))


def _read_certificate_names(table: Table) -> tuple[str, ...]:
    none: tuple[str, ...] = ()
    names = table.take("certificate_names", texts(MAX_HOSTS), none)
    try:
        subject_names(names)
    except ValueError as error:
        raise table.error("certificate_names", str(error)) from None
    return names


def _read_options(table: Table, defaults: NamespaceConfig) -> NamespaceConfig:
    """The options that may stand at the top of the file, for all namespaces, or in one of them."""
    return replace(
        defaults,
        tier=table.take("tier", choice(Tier), defaults.tier),
        profile=table.take("profile", choice(ProfileName), defaults.profile),
        profile_changes=_read_profile_changes(table, defaults.profile_changes),
        durability=table.take("durability", choice(Durability), defaults.durability),
        max_message_size=table.take("max_message_size", size(*MESSAGE_SIZES), defaults.max_message_size),
        deliver_pings=table.take("deliver_pings", boolean, defaults.deliver_pings),
    )


def _read_profile_changes(table: Table, defaults: ProfileChanges) -> ProfileChanges:
    return ProfileChanges(
        idle_timeout=table.take("idle_timeout", _seconds, defaults.idle_timeout),
        link_idle=table.take("link_idle", _seconds, defaults.link_idle),
        connection_idle=table.take("connection_idle", _seconds, defaults.connection_idle),
        throttle=table.take("throttle", integer(1, MAX_THROTTLE), defaults.throttle),
    )


def _seconds(value: Any) -> float:
    ticks = duration(value)
    if not MIN_TIME * TICKS_PER_SECOND <= ticks <= MAX_TIME * TICKS_PER_SECOND:
        raise BadValue(f"must be {MIN_TIME:g} seconds to {MAX_TIME:g} seconds")
    return ticks / TICKS_PER_SECOND


def _read_namespace(name: str, table: Table, defaults: NamespaceConfig) -> NamespaceConfig:
    if not 1 <= len(name) <= 50 or not name[0].isalpha() or not _is_label(name):
        raise table.error("", "must be named with 1 to 50 letters, digits and hyphens, a letter first")
    config = _read_options(table, replace(defaults, name=name))
    config = replace(
        config,
        port=table.take("port", integer(0, 65535), DEFAULT_PORT),
        audience_hosts=table.take("audience_hosts", texts(MAX_HOSTS), config.audience_hosts),
        policies=_read_policies(table),
        bearer_tokens=tuple(_read_bearer_token(each) for each in table.items("bearer_tokens")),
        queues=tuple(_read_queue(path, each, config.tier) for path, each in table.tables("queues")),
        topics=tuple(_read_topic(path, each, config.tier) for path, each in table.tables("topics")),
    )
    table.finish()
    queues = {queue.description.path.lower() for queue in config.queues}
    for topic in config.topics:
        if topic.description.path.lower() in queues:
            raise table.error("topics", f"has {topic.description.path!r}, which is a queue already")
    return config


def _read_queue(path: str, table: Table, tier: Tier) -> QueueConfig:
    description = QueueDescription(path, **_read_properties(QueueDescription, table))
    queue = QueueConfig(description, _read_policies(table))
    table.finish()
    _check(queue.describe(), table, tier)
    return queue


def _read_topic(path: str, table: Table, tier: Tier) -> TopicConfig:
    description = TopicDescription(path, **_read_properties(TopicDescription, table))
    subscriptions = tuple(_read_subscription(path, name, each, tier) for name, each in table.tables("subscriptions"))
    topic = TopicConfig(description, subscriptions, _read_policies(table))
    table.finish()
    _check(topic.describe(), table, tier)
    return topic


def _read_subscription(topic: str, name: str, table: Table, tier: Tier) -> SubscriptionDescription:
    properties = _read_properties(SubscriptionDescription, table)
    rules = tuple(_read_rule(name, each) for name, each in table.tables("rules", shorthand="sql"))
    if rules:
        properties["rules"] = rules
    description = SubscriptionDescription(topic, name, **properties)
    table.finish()
    _check(description, table, tier)
    return description


def _read_rule(name: str, table: Table) -> RuleDescription:
    """A rule: its SQL alone, or a table with `sql` or `correlation`, and perhaps an `action`."""
    expression: Reader[str | None] = text(1, MAX_LENGTH)
    sql, action = table.take("sql", expression, None), table.take("action", expression, None)
    correlation = table.take("correlation", _read_correlation, None)
    table.finish()
    if (sql is None) == (correlation is None):
        raise table.error("", "must have either sql or correlation")
    rule = RuleDescription(
        name,
        Sql(sql) if sql is not None else correlation or Correlation(),
        FilterKind.CORRELATION if sql is None else FilterKind.SQL,
        None if action is None else Sql(action),
    )
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


def _read_properties(
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
    if name in _DURATIONS:
        return duration
    if kind.startswith("bool"):
        return boolean
    if kind.startswith("int"):
        return integer(0, 2**31 - 1)
    # Longer than the bound of any, so that it is the description that names the bound.
    return text(0, 10_000)


def _check(
    description: QueueDescription | TopicDescription | SubscriptionDescription, table: Table, tier: Tier
) -> None:
    try:
        description.validate(tier)
    except InvalidDescription as error:
        own = error.field if error.field not in _NOT_FOR_FILES else ""
        where = "policies" if error.field == "authorization_rules" else own
        raise table.error(where, error.message) from None


def _read_policies(table: Table) -> tuple[PolicyConfig, ...]:
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


def _read_bearer_token(table: Table) -> BearerToken:
    bearer = BearerToken(
        token=table.require("token", text(1, MAX_TOKEN_LENGTH)),
        rights=table.require("rights", rights),
        path=table.take("path", text(0, 260), ""),
        expires_at=table.take("expires_at", moment, math.inf),
    )
    table.finish()
    return bearer


def _with_rules(description: _Described, policies: tuple[PolicyConfig, ...], kept: _Described | None) -> _Described:
    by_name = {rule.key_name: rule for rule in kept.authorization_rules} if kept else {}
    rules = []
    for policy in policies:
        rule = by_name.get(policy.name)
        before = AccessPolicy(rule.key_name, rule.primary_key, rule.secondary_key, rule.rights) if rule else None
        made = policy.complete(before)
        rules.append(AuthorizationRule(made.name, made.primary_key, made.secondary_key, made.rights))
    return replace(description, authorization_rules=tuple(rules))


def _check_ports(table: Table, namespaces: tuple[NamespaceConfig, ...]) -> None:
    taken: dict[int, str] = {}
    for namespace in namespaces:
        if namespace.port and namespace.port in taken:
            raise table.error(
                "namespaces",
                f"{taken[namespace.port]} and {namespace.name} have the same port {namespace.port}; "
                f"{DEFAULT_PORT} is the default, 0 picks a free one",
            )
        taken[namespace.port] = namespace.name


def _is_label(name: str) -> bool:
    return name.isascii() and name.replace("-", "").isalnum() and not name.endswith("-")
