"""Defines every option of a pairing, with its default and bounds."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_args, overload

from twinbus.ledger.durable_rows import LedgerMode
from twinbus.servicebus.entity_paths import check_primary_name, entity_key, is_entity_path

from .argument_checks import check_choice, check_count, check_type, number
from .failover.entity_failover import MAX_PING_INTERVAL
from .failover.error_classification import FailoverPolicy

Probe = Literal["ping", "link"]
WhileSuspect = Literal["divert", "raise"]
TimeToLive = Literal["remaining", "restart"]
Order = Literal["session"]

MINUTE = 60.0
#: The most links of one sender to one entity or queue, and the most connections to one namespace.
MAX_LINKS, MAX_CONNECTIONS = 256, 5000


class Duration:
    """A field that takes seconds or a `timedelta` within bounds, and stores seconds."""

    def __init__(self, default: float, *, minimum: float, maximum: float = math.inf) -> None:
        self._default = default
        self._minimum = minimum
        self._maximum = maximum
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> float: ...
    @overload
    def __get__(self, instance: object, owner: type) -> float: ...
    def __get__(self, instance: object | None, owner: type) -> float:
        # The class returns the default, an instance its value.
        return self._default if instance is None else instance.__dict__[self._name]

    def __set__(self, instance: object, value: float | timedelta) -> None:
        seconds = value.total_seconds() if isinstance(value, timedelta) else number(self._name, value)
        if not self._minimum <= seconds <= self._maximum or math.isinf(seconds):
            raise ValueError(f"{self._name} must be {self._bounds()}, not {value!r}")
        instance.__dict__[self._name] = seconds

    def _bounds(self) -> str:
        if self._maximum == math.inf:
            return f"at least {self._minimum:g} s"
        return f"from {self._minimum:g} s to {self._maximum:g} s"


@dataclass(frozen=True, kw_only=True)
class SyphonOptions:
    """How the syphon drains the backlog.

    `poll` is how long one receive waits for a message. `retry_min` and `retry_max` bound the back-off for a failing
    destination. A message that its destination refused `poison_tries` times is dead-lettered. `rate` is the maximum of
    messages per second (None: no limit). `destinations` are the only entities that messages are moved to (None: all).
    With a ledger, `ledger_mode` "required" completes only messages that the ledger has recorded, and waits while it
    takes no rows; "best_effort" goes on without it.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the bound and the value.
        TypeError: a value is of the wrong type.
    """

    poll: Duration = Duration(15 * MINUTE, minimum=0.001)
    retry_min: Duration = Duration(1.0, minimum=0.001)
    retry_max: Duration = Duration(2 * MINUTE, minimum=0.001)
    poison_tries: int = 10
    rate: float | None = None
    destinations: Collection[str] | None = None
    ledger_mode: LedgerMode = "required"

    def __post_init__(self) -> None:
        if self.retry_max < self.retry_min:
            raise ValueError(
                f"retry_max must be at least retry_min, which is {self.retry_min:g} s, not {self.retry_max:g}"
            )
        check_count("poison_tries", self.poison_tries)
        if self.rate is not None and not 0 < number("rate", self.rate) < math.inf:
            raise ValueError(f"rate must be above 0 messages a second, or None for no limit, not {self.rate!r}")
        if self.destinations is not None:
            object.__setattr__(self, "destinations", _paths(self.destinations))
        check_choice("ledger_mode", self.ledger_mode, get_args(LedgerMode))

    def allows(self, destination: str) -> bool:
        """Return whether messages may be moved to this entity."""
        return self.destinations is None or entity_key(destination) in self.destinations


@dataclass(frozen=True, kw_only=True)
class SendAvailabilityOptions:
    """How sends stay available. Times are seconds or `timedelta`.

    `max_links` is how many calls of one sender can run at the same time, on the primary and on each backlog queue;
    `max_connections` bounds the links of all senders of a client to one namespace.

    `while_suspect` decides whether a message that failed before the failover is diverted or raises. `ttl` decides
    whether time in the backlog counts. `order="session"` keeps the order within a session. `policy` decides which
    failures count. `create_backlog=False` expects the queues to exist, and needs no Manage right. `strict` makes the
    start fail if the backlog is not ready. `primary_name` is the first part of the backlog queues' paths, for a primary
    given by its address. `refuse_oversize` always refuses messages that would not fit the backlog.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the bound and the value.
        TypeError: a value is of the wrong type.
    """

    backlog_queue_count: int = 10
    failover_interval: Duration = Duration(1 * MINUTE, minimum=0.0, maximum=60 * MINUTE)
    ping_primary_interval: Duration = Duration(1 * MINUTE, minimum=1.0, maximum=MAX_PING_INTERVAL)
    enable_syphon: bool = False
    attempt_timeout: Duration = Duration(10.0, minimum=0.1, maximum=2 * MINUTE)
    backlog_cooldown: Duration = Duration(1 * MINUTE, minimum=1.0)
    max_links: int = 16
    max_connections: int = 200
    probe: Probe = "ping"
    while_suspect: WhileSuspect = "divert"
    ttl: TimeToLive = "remaining"
    order: Order | None = None
    policy: FailoverPolicy = field(default_factory=FailoverPolicy.availability)
    create_backlog: bool = True
    strict: bool = False
    primary_name: str | None = None
    refuse_oversize: bool = False
    syphon: SyphonOptions = field(default_factory=SyphonOptions)

    def __post_init__(self) -> None:
        check_count("backlog_queue_count", self.backlog_queue_count)
        check_count("max_links", self.max_links, MAX_LINKS)
        check_count("max_connections", self.max_connections, MAX_CONNECTIONS)
        for name in ("enable_syphon", "create_backlog", "strict", "refuse_oversize"):
            check_type(name, getattr(self, name), bool)
        check_choice("probe", self.probe, get_args(Probe))
        check_choice("while_suspect", self.while_suspect, get_args(WhileSuspect))
        check_choice("ttl", self.ttl, get_args(TimeToLive))
        check_choice("order", self.order, (None, *get_args(Order)))
        check_type("policy", self.policy, FailoverPolicy)
        check_type("syphon", self.syphon, SyphonOptions)
        if self.primary_name is not None:
            check_type("primary_name", self.primary_name, str)
            check_primary_name(self.primary_name)


def _paths(destinations: Any) -> frozenset[str]:
    if isinstance(destinations, str) or not isinstance(destinations, Collection):
        raise TypeError(f"destinations must be a collection of paths, or None for all, not {destinations!r}")
    for path in destinations:
        check_type("each of destinations", path, str)
    keys = frozenset(map(entity_key, destinations))
    if not keys or not all(map(is_entity_path, keys)):
        raise ValueError(f"destinations must be paths of queues or topics, at least one, not {destinations!r}")
    return keys
