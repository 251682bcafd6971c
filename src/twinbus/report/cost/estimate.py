"""Estimate the cost of pairing and the length of a drain from a few numbers, without a ledger.

Times are seconds. Numbers are exact: integers, decimals or fractions, never floats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from twinbus.ledger.recorder import NamespaceRole, Stage
from twinbus.tables.billed_units import MAX_SUBSCRIPTIONS, Usage, units_of

from .billing import QUANTUM, Bill, Connections, Contract, bill_month
from .prices import PriceBook

Number = int | Decimal | Fraction

HOUR, DAY = 3_600, 86_400
#: A month of the estimate.
MONTH_DAYS = 30
#: Size with which a backlog queue is created (SPEC, section 2).
BACKLOG_QUEUE_BYTES = 5_120 * 1024 * 1024
#: Credits of the throttle that a drained message takes at the secondary: one for the receive, none to settle.
BACKLOG_CREDITS = 1


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The input of an estimate.

    Raises:
        ValueError: Names the field and the bound.
        TypeError: A value is of the wrong type.
    """

    backlog_queues: int = 10
    #: Queues and topics to which messages are sent.
    entities: int = 1
    #: Processes that send.
    clients: int = 1
    #: Processes that run the syphon. Each polls every backlog queue.
    syphons: int = 1
    #: Messages per second of all clients to all entities, before, during and after the outage.
    rate: Number = 0
    #: Bytes of a message with all properties.
    size: int = 1024
    #: Subscriptions of each entity; 0 for queues.
    subscriptions: int = 0
    #: How long the primary cannot be reached.
    outage: Number = 0
    #: Diverted messages, if not all that are sent during the outage.
    messages: int | None = None
    #: The time to pay for, with outage and drain.
    days: int = MONTH_DAYS
    poll: Number = 900
    ping_interval: Number = 60
    failover_interval: Number = 60
    #: False if links are opened instead (`probe="link"`), which is not billed.
    is_pinging: bool = True
    #: Connections of the application; None: one for each client and entity.
    connections: int | None = None
    #: Limit of the syphon in messages per second.
    drain_rate: Number | None = None

    def __post_init__(self) -> None:
        for bound in _BOUNDS:
            bound.check(getattr(self, bound.name))
        if self.outage > self.days * DAY:
            raise ValueError(f"outage must be at most the {self.days} days to pay for, not {self.outage} s")


@dataclass(frozen=True, slots=True)
class _Bound:
    """The range of a field."""

    name: str
    least: Number
    most: Number
    is_whole: bool = True
    is_optional: bool = False

    def check(self, value: object) -> None:
        if value is None and self.is_optional:
            return
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | Decimal | Fraction):
            expected = "a whole number" if self.is_whole else "a whole number, a Decimal or a Fraction"
            raise TypeError(f"{self.name} must be {expected}, not {value!r}")
        is_number = not isinstance(value, Decimal) or value.is_finite()
        if not is_number or not self.least <= value <= self.most:
            raise ValueError(f"{self.name} must be from {self.least} to {self.most}, not {value}")


_MANY = 10**12
_MILLI = Decimal("0.001")
_BOUNDS = (
    _Bound("backlog_queues", 1, 10_000),
    _Bound("entities", 1, 1_000_000),
    _Bound("clients", 1, 1_000_000),
    _Bound("syphons", 0, 1_000_000),
    _Bound("rate", 0, 1_000_000, is_whole=False),
    _Bound("size", 0, 100 * 1024 * 1024),
    _Bound("subscriptions", 0, MAX_SUBSCRIPTIONS),
    _Bound("outage", 0, 31 * DAY, is_whole=False),
    _Bound("messages", 0, _MANY, is_optional=True),
    _Bound("days", 1, 31),
    _Bound("poll", _MILLI, 31 * DAY, is_whole=False),
    _Bound("ping_interval", 1, 30 * 60, is_whole=False),
    _Bound("failover_interval", 0, HOUR, is_whole=False),
    _Bound("connections", 0, _MANY, is_optional=True),
    _Bound("drain_rate", _MILLI, 1_000_000, is_whole=False, is_optional=True),
)


def polls_within(scenario: Scenario, seconds: Number) -> int:
    """Return the number of long polls of all backlog queues within a time in which nothing arrives."""
    return scenario.syphons * scenario.backlog_queues * math.floor(Fraction(seconds) / Fraction(scenario.poll))


def pings_within(scenario: Scenario, seconds: Number) -> int:
    """Return the number of pings within a time in which every entity of every client is failed over."""
    if not scenario.is_pinging:
        return 0
    return scenario.entities * scenario.clients * math.floor(Fraction(seconds) / Fraction(scenario.ping_interval))


def diverting_seconds(scenario: Scenario) -> Fraction:
    """Return how long messages go to the backlog: until a ping gets through, or the outage if there is no failover."""
    outage, failover = Fraction(scenario.outage), Fraction(scenario.failover_interval)
    if outage <= failover:
        return outage
    return failover + _failed_pings(scenario) * Fraction(scenario.ping_interval)


def _failed_pings(scenario: Scenario) -> int:
    """Return the failed pings of one entity and client: one at the failover, then one per interval of the outage."""
    failed_over = Fraction(scenario.outage) - Fraction(scenario.failover_interval)
    return max(0, math.ceil(failed_over / Fraction(scenario.ping_interval)))


def pings_of_outage(scenario: Scenario) -> int:
    """Return all pings of the outage: failed ones and, for each entity and client, the one that gets through."""
    failed = _failed_pings(scenario)
    return scenario.entities * scenario.clients * (failed + 1) if failed and scenario.is_pinging else 0


def diverted_messages(scenario: Scenario) -> int:
    """Return the number of messages that go through the backlog."""
    if scenario.messages is not None:
        return scenario.messages
    return math.ceil(Fraction(scenario.rate) * diverting_seconds(scenario))


@dataclass(frozen=True, slots=True)
class Drain:
    """How long the backlog takes to drain. None: nothing bounds it, or (`never`) it does not end."""

    messages: int
    bytes: int
    #: Messages per second.
    rate: Fraction | None
    seconds: Fraction | None
    #: What bounds the rate: primary, secondary or drain_rate; None if only the machines do.
    limited_by: str | None
    #: The time without receivers and senders at the primary.
    fastest_seconds: Fraction | None

    @property
    def never(self) -> bool:
        return bool(self.messages) and self.rate == 0


def drain_of(scenario: Scenario, book: PriceBook, contract: Contract) -> Drain:
    """Return the drain under the throttle of the tiers.

    At the primary a message takes one credit for its send and one for each receive. Live traffic takes the same, and
    the rest bounds the drain. At the secondary a message takes one credit for its receive.
    """
    primary = book.tier(contract.primary).limits.credits_per_second
    secondary = book.tier(contract.secondary).limits.credits_per_second
    per_message = 1 + max(1, scenario.subscriptions)
    bounds, fastest = {}, []
    if primary is not None:
        live = Fraction(scenario.rate) * per_message
        bounds["primary"] = max(Fraction(0), primary - live) / per_message
        fastest.append(Fraction(primary))
    if secondary is not None:
        bounds["secondary"] = Fraction(secondary, BACKLOG_CREDITS)
        fastest.append(bounds["secondary"])
    if scenario.drain_rate is not None:
        bounds["drain_rate"] = Fraction(scenario.drain_rate)
        fastest.append(bounds["drain_rate"])
    messages = diverted_messages(scenario)
    limited_by = min(bounds, key=bounds.__getitem__, default=None)
    rate = None if limited_by is None else bounds[limited_by]
    return Drain(
        messages,
        messages * scenario.size,
        rate,
        messages / rate if rate else None if messages else Fraction(0),
        limited_by,
        messages / min(fastest) if fastest else None,
    )


@dataclass(frozen=True, slots=True)
class Backlog:
    """How full the backlog queues get."""

    capacity_bytes: int
    bytes: int
    #: Time until they are full at this rate; None without traffic.
    full_after_seconds: Fraction | None

    @property
    def fits(self) -> bool:
        return self.bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cost and drain of a scenario."""

    scenario: Scenario
    contract: Contract
    book: PriceBook
    usage: list[Usage]
    bill: Bill
    drain: Drain
    backlog: Backlog
    warnings: list[str]

    def operations(self, stage: Stage) -> int:
        """Return the billed operations of one stage."""
        return sum(row.operations for row in self.usage if row.stage is stage)


def estimate(scenario: Scenario, book: PriceBook, contract: Contract | None = None) -> Estimate:
    """Return the estimate of a scenario.

    Raises:
        PriceError: The book lacks a tier of the contract.
    """
    contract = contract or Contract()
    usage = list(_usage(scenario, book))
    hours = scenario.days * 24
    month_bill = bill_month(
        usage,
        book,
        contract,
        month=book.date.replace(day=1),
        hours=hours,
        month_hours=max(hours, MONTH_DAYS * 24),
        connections=_connections(scenario),
    )
    drain = drain_of(scenario, book, contract)
    capacity = scenario.backlog_queues * BACKLOG_QUEUE_BYTES
    a_second = Fraction(scenario.rate) * scenario.size
    backlog = Backlog(capacity, drain.bytes, capacity / a_second if a_second else None)
    # Both namespaces may have the same warning.
    warnings = list(dict.fromkeys(_warnings(scenario, book, contract, drain, backlog)))
    return Estimate(scenario, contract, book, usage, month_bill, drain, backlog, warnings)


def _usage(scenario: Scenario, book: PriceBook) -> Iterator[Usage]:
    diverted = diverted_messages(scenario)
    sent = max(diverted, math.ceil(Fraction(scenario.rate) * scenario.days * DAY))
    units = units_of(scenario.size)
    send = units * (1 + scenario.subscriptions)
    receive_and_settle = units + 1
    received = sent * max(1, scenario.subscriptions)
    checks = scenario.clients * scenario.backlog_queues + scenario.backlog_queues
    windows = scenario.clients * scenario.entities * (2 if scenario.subscriptions else 1)
    polls = polls_within(scenario, scenario.days * DAY)
    carried = diverted * scenario.size
    primary, secondary = NamespaceRole.PRIMARY, NamespaceRole.SECONDARY
    for role, stage, operations, transferred in (
        (primary, Stage.DIRECT, (sent - diverted) * send, 0),
        (secondary, Stage.BACKLOG_SEND, diverted * units, carried),
        (secondary, Stage.BACKLOG_RECEIVE, diverted * receive_and_settle, carried),
        (primary, Stage.PRIMARY_SEND, diverted * send, 0),
        (primary, Stage.PRIMARY_RECEIVE, received * receive_and_settle, 0),
        (primary, Stage.PING, pings_of_outage(scenario), 0),
        (secondary, Stage.POLL, polls, 0),
        (secondary, Stage.MANAGE, checks, 0),
        (primary, Stage.MANAGE, windows, 0),
    ):
        yield Usage(book.date, role, "", stage, operations, 0, transferred)


def _connections(scenario: Scenario) -> Connections:
    """Return one connection for each sender and each pump of the syphon, and one more for each sender that diverts."""
    senders = scenario.clients * scenario.entities
    own = senders if scenario.connections is None else scenario.connections
    part = senders * diverting_seconds(scenario) / (scenario.days * DAY)
    diverting = (Decimal(part.numerator) / part.denominator).quantize(QUANTUM)
    pumps = scenario.syphons * scenario.backlog_queues
    return Connections({NamespaceRole.PRIMARY: Decimal(own)}, {NamespaceRole.SECONDARY: pumps + diverting})


def _warnings(scenario: Scenario, book: PriceBook, contract: Contract, drain: Drain, backlog: Backlog) -> Iterator[str]:
    rate = Fraction(scenario.rate)
    for role, name in (("primary", contract.primary), ("secondary", contract.secondary)):
        limits = book.tier(name).limits
        if limits.message_bytes is not None and scenario.size > limits.message_bytes:
            yield f"a message of {scenario.size:,} bytes is too large for {name}, which takes {limits.message_bytes:,}"
        if limits.credits_per_second is not None and role == "secondary" and rate > limits.credits_per_second:
            yield (
                f"the secondary would be throttled: {name} takes {limits.credits_per_second:,} messages a second,"
                f" and {float(rate):,g} are diverted"
            )
        if limits.connections is not None and scenario.clients * scenario.entities > limits.connections:
            yield (
                f"{scenario.clients * scenario.entities:,} senders need as many connections; a namespace of {name}"
                f" takes {limits.connections:,}"
            )
    if drain.never:
        yield "the drain would never end: the live traffic takes all that the primary's throttle allows"
    if not backlog.fits:
        yield f"the backlog queues hold {backlog.capacity_bytes:,} bytes, and {backlog.bytes:,} are diverted"
    if book.transfer_per_gb is None and drain.bytes:
        yield "transfer between regions is not counted: the price book does not say what a GB costs"
