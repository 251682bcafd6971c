"""Compute the bill of a usage.

The bill of a month has two sides: what the *application* would have paid anyway, and what *pairing* adds to it.
Included operations and the first steps of a scale belong to the application; pairing pays the increase that it causes.
So the two sides always add up to the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, Decimal, localcontext
from enum import StrEnum

from twinbus.ledger.recorder import NamespaceRole
from twinbus.tables.billed_units import Usage

from .prices import PriceBook, Tier, exact

#: Bytes of a GB of transfer, which is decimal.
GB = 1_000_000_000
#: Shares of a month cannot be exact and are rounded to this.
QUANTUM = Decimal("0.000000000001")
MAX_MESSAGING_UNITS = 64
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """Which tiers the two namespaces have.

    Raises:
        ValueError: Names the field and the bound.
    """

    primary: str = "standard"
    secondary: str = "standard"
    #: Messaging units, for tiers that charge for them.
    primary_units: int = 1
    secondary_units: int = 1
    #: If so, namespaces of the same tier share base charge, included operations and steps.
    is_one_subscription: bool = True

    def __post_init__(self) -> None:
        for name in ("primary_units", "secondary_units"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_MESSAGING_UNITS:
                raise ValueError(f"{name} must be a whole number from 1 to {MAX_MESSAGING_UNITS}, not {value!r}")

    def accounts(self, book: PriceBook) -> list[Account]:
        """Return what is billed together. Raises `PriceError` for a tier that is not in the book."""
        first, second = book.tier(self.primary), book.tier(self.secondary)
        primary, secondary = NamespaceRole.PRIMARY, NamespaceRole.SECONDARY
        units = {primary: self.primary_units, secondary: self.secondary_units}
        if self.primary == self.secondary and self.is_one_subscription:
            return [Account(first, units)]
        return [Account(first, {primary: units[primary]}), Account(second, {secondary: units[secondary]})]


@dataclass(frozen=True, slots=True)
class Account:
    """Namespaces that share a subscription and a tier, with their messaging units."""

    tier: Tier
    units: Mapping[NamespaceRole, int]


class Item(StrEnum):
    """Kind of charge."""

    OPERATIONS = "operations"
    BASE = "base"
    MESSAGING_UNITS = "messaging_units"
    CONNECTIONS = "connections"
    TRANSFER = "transfer"


@dataclass(frozen=True, slots=True)
class Charge:
    """One line of a bill: what the application would have paid anyway, and what pairing adds."""

    #: The first day of the month.
    month: date
    tier: str
    item: Item
    #: Operations, hours, unit hours, connections (mean of the month) or GB.
    quantity: Decimal
    application: Decimal
    pairing: Decimal

    @property
    def total(self) -> Decimal:
        return _add((self.application, self.pairing))


@dataclass(frozen=True, slots=True)
class Line:
    """A usage with its share of the price of operations and transfer."""

    usage: Usage
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Bill:
    """The charges. `lines` add up to the charges for operations and transfer."""

    charges: list[Charge]
    lines: list[Line]

    @property
    def application(self) -> Decimal:
        return _add(charge.application for charge in self.charges)

    @property
    def pairing(self) -> Decimal:
        return _add(charge.pairing for charge in self.charges)

    @property
    def total(self) -> Decimal:
        return _add((self.application, self.pairing))


@dataclass(frozen=True, slots=True)
class Connections:
    """Mean number of connections in a month: of the application, and of pairing."""

    application: Mapping[NamespaceRole, Decimal]
    pairing: Mapping[NamespaceRole, Decimal]

    @classmethod
    def none(cls) -> Connections:
        return cls({}, {})


def bill(
    usage: Iterable[Usage],
    book: PriceBook,
    contract: Contract,
    *,
    since: datetime,
    until: datetime,
    days: Collection[date] | None = None,
    connections: Connections | None = None,
) -> Bill:
    """Return the bill of the usage from `since` to `until`, month by month (UTC).

    A started hour is charged as a whole. A part of a month has all included operations and steps of the month, but
    only its share of the monthly price of connections.

    Args:
        days: Charge base, messaging units and connections only for the hours of these days; all days by default. A
            month without such hours and without usage has no charges.

    Raises:
        ValueError: The times have no time zone or are in the wrong order, or a usage lies outside.
        PriceError: The book lacks a tier of the contract.
    """
    periods = {month: (start, end) for month, start, end in _months(since, until)}
    first, last = since.astimezone(UTC).date(), (until.astimezone(UTC) - timedelta(microseconds=1)).date()
    by_month: dict[date, list[Usage]] = {month: [] for month in periods}
    for row in usage:
        if not first <= row.day <= last:
            raise ValueError(f"usage must lie on the days from {first} to {last}, not on {row.day}")
        by_month[row.day.replace(day=1)].append(row)
    hours = {month: _hours(start, end, days) for month, (start, end) in periods.items()}
    bills = [
        bill_month(
            by_month[month],
            book,
            contract,
            month=month,
            hours=hours[month],
            month_hours=(_next_month(month) - month) // HOUR,
            connections=connections,
        )
        for month in periods
        if hours[month] or by_month[month]
    ]
    return Bill(
        [charge for month_bill in bills for charge in month_bill.charges],
        [line for month_bill in bills for line in month_bill.lines],
    )


def bill_month(
    usage: Sequence[Usage],
    book: PriceBook,
    contract: Contract,
    *,
    month: date,
    hours: int,
    month_hours: int,
    connections: Connections | None = None,
) -> Bill:
    """Return the bill of one month, for `hours` started hours of its `month_hours`."""
    whole = Bill([], [])
    for account in contract.accounts(book):
        own = [row for row in usage if row.namespace in account.units]
        operations, amounts = _operations(own, account, month)
        whole.charges.append(operations)
        whole.charges.extend(_hourly(account, month, hours))
        if account.tier.connections.steps:
            mean = connections or Connections.none()
            whole.charges.append(_connections(mean, account, month, hours, month_hours))
        if book.transfer_per_gb is not None and any(row.transferred for row in own):
            transfer, more = _transfer(own, account, month, book.transfer_per_gb)
            whole.charges.append(transfer)
            amounts = [_add(pair) for pair in zip(amounts, more, strict=True)]
        whole.lines.extend(map(Line, own, amounts))
    return whole


def _operations(usage: Sequence[Usage], account: Account, month: date) -> tuple[Charge, list[Decimal]]:
    """Return the charge, and the share of each usage."""
    own = [0 if row.is_pairing else row.operations for row in usage]
    added = [row.operations if row.is_pairing else 0 for row in usage]
    count = sum(own) + sum(added)
    application = account.tier.operations.charge(sum(own))
    pairing = _add((account.tier.operations.charge(count), -application))
    shares = zip(share(application, own), share(pairing, added), strict=True)
    charge = Charge(month, account.tier.name, Item.OPERATIONS, Decimal(count), application, pairing)
    return charge, [_add(pair) for pair in shares]


def _hourly(account: Account, month: date, hours: int) -> Iterable[Charge]:
    """Yield the base charge, once, and messaging units. Without pairing there would be no secondary."""
    units = account.units
    with localcontext(exact()):
        base = account.tier.base_per_hour * hours
        # The base charge is paid once per subscription and tier, so the application pays it if the primary is in it.
        own_base = base if NamespaceRole.PRIMARY in units else Decimal(0)
        unit = account.tier.unit_per_hour * hours
        own_units = unit * units.get(NamespaceRole.PRIMARY, 0)
        added_units = unit * units.get(NamespaceRole.SECONDARY, 0)
        added_base = base - own_base
    if base:
        yield Charge(month, account.tier.name, Item.BASE, Decimal(hours), own_base, added_base)
    if unit:
        unit_hours = Decimal(hours * sum(units.values()))
        yield Charge(month, account.tier.name, Item.MESSAGING_UNITS, unit_hours, own_units, added_units)


def _connections(connections: Connections, account: Account, month: date, hours: int, month_hours: int) -> Charge:
    own = _add(connections.application.get(role, Decimal(0)) for role in account.units)
    count = _add((own, *(connections.pairing.get(role, Decimal(0)) for role in account.units)))
    price = account.tier.connections
    application = prorated(price.charge(own), hours, month_hours)
    pairing = _add((prorated(price.charge(count), hours, month_hours), -application))
    return Charge(month, account.tier.name, Item.CONNECTIONS, count, application, pairing)


def _transfer(usage: Sequence[Usage], account: Account, month: date, per_gb: Decimal) -> tuple[Charge, list[Decimal]]:
    """Return the charge, and the share of each usage."""
    with localcontext(exact()):
        amounts = [per_gb * row.transferred / GB for row in usage]
        quantity = Decimal(sum(row.transferred for row in usage)) / GB
    own = _add(amount for row, amount in zip(usage, amounts, strict=True) if not row.is_pairing)
    added = _add(amount for row, amount in zip(usage, amounts, strict=True) if row.is_pairing)
    return Charge(month, account.tier.name, Item.TRANSFER, quantity, own, added), amounts


def share(total: Decimal, weights: Sequence[int]) -> list[Decimal]:
    """Divide an amount in proportion. The parts add up to it exactly: the largest takes the rounding error."""
    whole = sum(weights)
    if not whole:
        return [Decimal(0) for _ in weights]
    parts = [prorated(total, weight, whole, ROUND_DOWN) for weight in weights]
    largest = max(range(len(weights)), key=weights.__getitem__)
    parts[largest] = _add((parts[largest], total, *(-part for part in parts)))
    return parts


def prorated(amount: Decimal, part: int, whole: int, rounding: str = ROUND_HALF_EVEN) -> Decimal:
    """Return the share of an amount for a part of a whole: exact for all of it, otherwise rounded to `QUANTUM`."""
    if part == whole:
        return amount
    with localcontext(prec=100):
        return (amount * part / whole).quantize(QUANTUM, rounding)


def _add(amounts: Iterable[Decimal]) -> Decimal:
    with localcontext(exact()):
        return sum(amounts, Decimal(0))


def _hours(start: datetime, end: datetime, days: Collection[date] | None) -> int:
    """Count the started hours between two times of a month, on `days` only if given."""
    if days is None:
        return -((start - end) // HOUR)
    hours = 0
    for day in {day for day in days if start.date() <= day <= end.date()}:
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        first, last = max(start, midnight), min(end, midnight + timedelta(days=1))
        hours += max(0, -((first - last) // HOUR))
    return hours


def _next_month(month: date) -> date:
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)


def _months(since: datetime, until: datetime) -> Iterable[tuple[date, datetime, datetime]]:
    """Yield the months of a period, each with its part in the period."""
    if since.tzinfo is None or until.tzinfo is None:
        raise ValueError("since and until must have a time zone")
    if not since < until:
        raise ValueError(f"until must be later than since, which is {since}, not {until}")
    start = since.astimezone(UTC)
    while start < until:
        month = start.date().replace(day=1)
        after = _next_month(month)
        end = min(until.astimezone(UTC), datetime(after.year, after.month, 1, tzinfo=UTC))
        yield month, start, end
        start = end
