"""Defines the parameters of a generated ledger and the expected report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import NamedTuple

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.tables.billed_units import Usage

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000  # microseconds
FAILOVER, PING, POLL = MINUTE, MINUTE, 15 * MINUTE
BACK_BEFORE = 20 * SECOND
#: The drain is this many times as fast as the diverting was.
DRAIN_PART = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Parameters of a generated ledger.

    Raises:
        ValueError: a field is out of bounds.
    """

    #: Approximate number of rows.
    rows: int = 1_000_000
    seed: int = 1
    entities: int = 20
    clients: int = 4
    backlog_queues: int = 10
    start: date = date(2026, 11, 1)
    days: int = 7
    #: Evenly spaced; every second one hits only entities with an even number.
    outages: int = 3
    outage_minutes: int = 40
    #: Messages per million with each kind of trouble: a lost acknowledgement, a redelivery, …
    trouble: int = 200
    #: Number of accepted messages that never arrive, and of arrivals that no client sent.
    lost: int = 0
    unexpected: int = 0
    #: False: the ledger ends in the middle of the last drain.
    is_drained: bool = True
    #: Rows per thousand that are repeated in a second file.
    repeats: int = 0
    #: Messages generated at a time.
    block: int = 100_000

    def __post_init__(self) -> None:
        for name, least, most in (
            ("rows", 1, 10**10),
            ("entities", 1, 100_000),
            ("clients", 1, 10_000),
            ("backlog_queues", 1, 1_000),
            ("days", 1, 3_650),
            ("outages", 0, 10_000),
            ("outage_minutes", 2, 600),
            ("trouble", 0, 100_000),
            ("lost", 0, self.messages),
            ("unexpected", 0, 100_000),
            ("repeats", 0, 1_000),
            ("block", 1, 1_000_000),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from {least} to {most}, not {getattr(self, name)}")
        if self.outages * 2 * self.outage_minutes * MINUTE > self.days * DAY:
            raise ValueError(f"outages must fit into {self.days} days twice, not {self.outages}")

    @property
    def messages(self) -> int:
        return max(1, self.rows // 3)

    @property
    def start_us(self) -> int:
        return int(datetime(self.start.year, self.start.month, self.start.day, tzinfo=UTC).timestamp()) * SECOND

    @property
    def windows(self) -> list[Window]:
        gap = self.days * DAY // (self.outages + 1)
        starts = [self.start_us + gap * (number + 1) for number in range(self.outages)]
        length = self.outage_minutes * MINUTE
        # Pings are sent once a minute, and the primary recovers some seconds before one.
        return [Window(number, at, at + length - BACK_BEFORE, at + length) for number, at in enumerate(starts)]

    def hits(self, window: Window) -> list[int]:
        """The entities that an outage affects."""
        return [entity for entity in range(self.entities) if window.number % 2 == 0 or entity % 2 == 0]

    def moves_until(self, window: Window) -> int:
        """When the syphon stops moving messages that the outage diverted."""
        if self.is_drained or window.number < self.outages - 1:
            return window.recovered + window.diverting + HOUR
        return window.recovered + window.diverting // DRAIN_PART // 2


class Window(NamedTuple):
    """An outage."""

    number: int
    began: int
    ended: int
    #: Time of the first successful ping.
    recovered: int

    @property
    def diverting(self) -> int:
        return self.recovered - self.began


@dataclass
class OutageOfEntity:
    """The effect of an outage on one entity. Times are microseconds since the epoch; `None`: never."""

    entity: str
    #: The first send that failed.
    suspected: int | None = None
    #: The first ping.
    failed_over: int | None = None
    recovered: int | None = None
    #: The last completed move.
    drained: int | None = None
    diverted: int = 0
    moved: int = 0


@dataclass
class Expected:
    """What a correct report of the ledger says."""

    rows: int = 0
    #: Including repeated rows.
    rows_in_files: int = 0
    files: int = 0
    #: Rows by namespace, stage, operation and outcome.
    operations: Counter[tuple[NamespaceRole, Stage, OperationKind, Outcome]] = field(default_factory=Counter)
    #: Billed units, unanswered units and bytes transferred, by day, namespace, entity and stage.
    usage: Counter[tuple[date, NamespaceRole, str, Stage, str]] = field(default_factory=Counter)
    attempted: int = 0
    acknowledged: int = 0
    #: Attempted and arrived.
    ok: int = 0
    #: Message ids. Duplicated: arrived twice, with two sequence numbers; recovered: arrived without acknowledgement.
    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    in_flight: list[str] = field(default_factory=list)
    #: Ids of messages received twice with the same sequence number, which are not duplicates.
    redelivered: list[str] = field(default_factory=list)
    #: Rows that the ledger reports as dropped.
    dropped: int = 0
    outages: dict[tuple[int, str], OutageOfEntity] = field(default_factory=dict)

    def usages(self) -> list[Usage]:
        """The expected result of `twinbus.tables.billed_units.usage_of`."""
        keys = sorted({key[:4] for key in self.usage})
        names = ("operations", "unanswered", "transferred")
        return [Usage(*key, *(self.usage[*key, name] for name in names)) for key in keys if self.usage[*key, names[0]]]

    def add(self, other: Expected) -> None:
        """Add the expectations of another block."""
        for name in ("rows", "rows_in_files", "files", "attempted", "acknowledged", "ok", "dropped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("lost", "unexpected", "duplicated", "recovered", "in_flight", "redelivered"):
            getattr(self, name).extend(getattr(other, name))
        self.operations.update(other.operations)
        self.usage.update(other.usage)
        for key, outage in other.outages.items():
            total = self.outages.setdefault(key, OutageOfEntity(outage.entity))
            total.diverted += outage.diverted
            total.moved += outage.moved
            for name, choose in (("suspected", min), ("failed_over", min), ("recovered", max), ("drained", max)):
                times = [time for time in (getattr(total, name), getattr(outage, name)) if time is not None]
                setattr(total, name, choose(times) if times else None)
