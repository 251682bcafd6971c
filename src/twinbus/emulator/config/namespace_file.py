"""Reads the file of `twinbus serve --config FILE`: namespaces, their entities and their access policies.

    data = "twinbus-data"               # relative to this file
    durability = "normal"               # options up here are defaults for all namespaces
    certificate = "bus.pem"             # for TLS, with `key` if in another file; without it one is generated

    [namespaces.contoso]
    port = 5672
    administration_port = 5300          # a second port with the same services
    queues = ["orders", "invoices"]     # names alone, for queues with default properties
    policies.sender = ["Send"]

    [namespaces.contoso.topics.events.subscriptions.billing]
    requires_session = true

    [namespaces.contoso-standby]
    port = 5673
    profile = "azure"
    link_idle = "30s"                   # overrides the profile; also idle_timeout, connection_idle
    throttle = 100                      # messages per second

    [namespaces.contoso-standby.queues."contoso/x-servicebus-transfer/0"]
    max_size_in_megabytes = 5120
    lock_duration = "1m"                # or 60, or "PT1M"; "unlimited" is the service's maximum
    policies.syphon = { rights = ["Listen"], primary_key = "…" }

    [[namespaces.contoso.bearer_tokens]]
    token = "…"
    rights = ["Send"]
    path = "orders"

Named tables may also be written `[[namespaces]]` with a `name` in each. A mistake raises a `ConfigError` that names its
place and the allowed values, and never shows keys and tokens.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from twinbus.emulator.auth.certificate import subject_names
from twinbus.emulator.auth.security import MAX_TOKEN_LENGTH, ROOT_POLICY, AccessPolicy, BearerToken
from twinbus.emulator.config.entity_tables import (
    PolicyConfig,
    QueueConfig,
    TopicConfig,
    read_policies,
    read_queue,
    read_topic,
)
from twinbus.emulator.config.profile import UNCHANGED, ProfileChanges, ProfileName
from twinbus.emulator.config.toml_table import (
    ConfigError,
    InvalidValueError,
    Table,
    boolean,
    choice,
    duration,
    integer,
    moment,
    rights,
    size,
    text,
    texts,
)
from twinbus.emulator.storage.store import Durability
from twinbus.servicebus.access_rights import ALL_RIGHTS
from twinbus.servicebus.durations import TICKS_PER_SECOND
from twinbus.servicebus.entity_descriptions import SubscriptionDescription, Tier

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
PORTS = (0, 65535)
DEFAULT_MAX_MESSAGE_SIZE = 256 * 1024
# The service takes at most 100 MB; less than 1 KB could not hold a message's properties.
MESSAGE_SIZES = (1024, 100 * 1024 * 1024)
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_NAMESPACES = 100
MAX_HOSTS = 100
MAX_THROTTLE = 1_000_000
MIN_TIME, MAX_TIME = 0.1, 86_400.0


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """A namespace to serve. Port 0 picks a free one. `administration_port` is a second port with the same services.

    `audience_hosts` are the hosts that the audience of a token may name; empty allows any. `deliver_pings` delivers
    pings to receivers. `places` maps entity paths to their tables in the file, for errors.
    """

    name: str
    port: int = DEFAULT_PORT
    administration_port: int | None = None
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
    places: Mapping[str, Table] = field(default_factory=dict, compare=False, repr=False)

    def access_policies(self, existing: Iterable[AccessPolicy] = ()) -> tuple[AccessPolicy, ...]:
        """The namespace's policies with all keys, always including RootManageSharedAccessKey.

        Keys that are not configured come from the `existing` policies, else are generated.
        """
        by_name = {policy.name: policy for policy in existing}
        policies = self.policies
        if all(policy.name != ROOT_POLICY for policy in policies):
            policies = (PolicyConfig(ROOT_POLICY, ALL_RIGHTS), *policies)
        return tuple(policy.complete(by_name.get(policy.name)) for policy in policies)


@dataclass(frozen=True, slots=True)
class Config:
    """The contents of a configuration file. `data` and `host` are None if not set.

    `certificate_names` are host names and addresses for the generated TLS certificate, besides the loopback ones.
    `certificate` names the user's own certificate instead; its `key` may be in the same file.
    """

    namespaces: tuple[NamespaceConfig, ...]
    data: Path | None = None
    host: str | None = None
    certificate_names: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None


def load_config(file: Path) -> Config:
    """Read a configuration file.

    Raises:
        ConfigError: it cannot be read or is not valid.
    """
    return parse_config(text_of(file), file)


def text_of(file: Path) -> str:
    """Read the text of a configuration file; raises `ConfigError` if it cannot be read."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(file), "", "", f"cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(str(file), "", "", f"must have at most {MAX_FILE_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), "", "", f"must be UTF-8, which byte {error.start} is not") from None


def parse_config(content: str, file: Path) -> Config:
    """Parse the text of a configuration file; `file` is for errors, and relative paths start in its folder.

    Raises:
        ConfigError: it is not valid.
    """
    try:
        values = tomllib.loads(content)
    except RecursionError:
        raise ConfigError(str(file), "", "", "is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(str(file), "", "", f"is not TOML: {error}") from None
    return read_config(values, file)


def read_config(values: dict[str, Any], file: Path) -> Config:
    """Read the parsed TOML of a configuration file; arguments and errors as for `parse_config`."""
    table = Table(str(file), "", values)
    data, certificate, key = (_read_path(table, name, file) for name in ("data", "certificate", "key"))
    host = table.take("host", text(1, 253), None)
    certificate_names = _read_certificate_names(table)
    defaults = _read_options(table, NamespaceConfig(""))
    namespaces = tuple(_read_namespace(name, each, defaults) for name, each in table.tables("namespaces"))
    table.finish()
    if not 1 <= len(namespaces) <= MAX_NAMESPACES:
        raise table.error("namespaces", f"must have 1 to {MAX_NAMESPACES} entries, such as [namespaces.contoso]")
    _check_ports(table, namespaces)
    if key is not None and certificate is None:
        raise table.error("key", "must come with a certificate")
    return Config(namespaces, data, host, certificate_names, certificate, key)


def _read_path(table: Table, name: str, file: Path) -> Path | None:
    path: str | None = table.take(name, text(1, 4096), None)
    return None if path is None else file.parent / Path(path).expanduser()


def parse_namespace(text: str) -> NamespaceConfig:
    """Parse a namespace on the command line, such as `contoso=5672`.

    Raises:
        ConfigError: the name or the port is not valid.
    """
    name, separator, port = text.partition("=")
    is_number = port.isdecimal() and len(port) < 6
    table = Table("--namespace", "", {"port": int(port)} if is_number else {})
    if not separator:
        raise table.error("", f"must be NAME=PORT, such as contoso=5672, not {text!r}")
    if not is_number:
        raise table.error("port", f"must be {PORTS[0]} to {PORTS[1]}, not {port!r}")
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
    """Read the options that may be at the top of the file, for all namespaces, or in a namespace's table."""
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
        raise InvalidValueError(f"must be {MIN_TIME:g} seconds to {MAX_TIME:g} seconds")
    return ticks / TICKS_PER_SECOND


def _read_namespace(name: str, table: Table, defaults: NamespaceConfig) -> NamespaceConfig:
    check_name(name, table)
    config = _read_options(table, replace(defaults, name=name))
    config = replace(
        config,
        port=table.take("port", integer(*PORTS), DEFAULT_PORT),
        administration_port=table.take("administration_port", integer(*PORTS), None),
        audience_hosts=table.take("audience_hosts", texts(MAX_HOSTS), config.audience_hosts),
        policies=read_policies(table),
        bearer_tokens=tuple(_read_bearer_token(each) for each in table.items("bearer_tokens")),
        queues=tuple(read_queue(path, each, config.tier) for path, each in table.tables("queues")),
        topics=tuple(read_topic(path, each, config.tier) for path, each in table.tables("topics")),
        places=_places(table),
    )
    table.finish()
    check_paths(config, table)
    return config


def check_name(name: str, table: Table) -> None:
    """Raise `ConfigError` if the name is not a valid namespace name."""
    if not 1 <= len(name) <= 50 or not name[0].isalpha() or not _is_label(name):
        raise table.error("", "must be named with 1 to 50 letters, digits and hyphens, a letter first")


def check_paths(config: NamespaceConfig, table: Table) -> None:
    """Raise `ConfigError` if a topic has the path of a queue."""
    queues = {queue.description.path.lower() for queue in config.queues}
    for topic in config.topics:
        if topic.description.path.lower() in queues:
            raise table.error("topics", f"has {topic.description.path!r}, which is a queue already")


def _places(table: Table) -> dict[str, Table]:
    places = dict(table.tables("queues"))
    for topic, each in table.tables("topics"):
        places[topic] = each
        for name, subscription in each.tables("subscriptions"):
            places[SubscriptionDescription(topic, name).path] = subscription
    return places


def _read_bearer_token(table: Table) -> BearerToken:
    bearer = BearerToken(
        token=table.require("token", text(1, MAX_TOKEN_LENGTH)),
        rights=table.require("rights", rights),
        path=table.take("path", text(0, 260), ""),
        expires_at=table.take("expires_at", moment, math.inf),
    )
    table.finish()
    return bearer


def _check_ports(table: Table, namespaces: tuple[NamespaceConfig, ...]) -> None:
    taken: dict[int, str] = {}
    for namespace in namespaces:
        for port in (namespace.port, namespace.administration_port):
            if port and port in taken:
                raise table.error(
                    "namespaces",
                    f"{taken[port]} and {namespace.name} have the same port {port}; "
                    f"{DEFAULT_PORT} is the default, 0 picks a free one",
                )
            if port:
                taken[port] = namespace.name


def _is_label(name: str) -> bool:
    return name.isascii() and name.replace("-", "").isalnum() and not name.endswith("-")
