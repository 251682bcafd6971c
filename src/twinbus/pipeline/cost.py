"""What a ledger has cost, from its rollups. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from twinbus.ledger.recorder import NamespaceRole, Outcome, Stage
from twinbus.ledger.schema import pa, pc

from .billing import Bill, Connections, Contract, bill
from .prices import PriceBook
from .results import Results, Snapshot
from .tables import HOUR_US, USAGE
from .usage import COPIED, Usage, checked_subscriptions

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOURS_A_DAY = 24


@dataclass(frozen=True, slots=True)
class Period:
    """Hours from `since` until `until`, whole ones, in UTC."""

    since: datetime
    until: datetime

    @classmethod
    def of_days(cls, first: date, last: date | None = None) -> Period:
        """From the first day to the last, both included; one day if no last is given."""
        days = (last or first) - first + timedelta(days=1)
        since = datetime(first.year, first.month, first.day, tzinfo=UTC)
        return cls(since, since + days)

    @property
    def first_day(self) -> str:
        return self.since.date().isoformat()

    @property
    def last_day(self) -> str:
        return (self.until - timedelta(microseconds=1)).date().isoformat()


def period_of(snapshot: Snapshot) -> Period | None:
    """The hours that the results tell of; None if there is nothing."""
    first = [day.first_us for day in snapshot.days.values() if day.first_us is not None]
    last = [day.last_us for day in snapshot.days.values() if day.last_us is not None]
    if not first or not last:
        return None
    return Period(_hour(min(first) // HOUR_US), _hour(max(last) // HOUR_US + 1))


def usage_table(results: Results, snapshot: Snapshot, period: Period | None = None) -> pa.Table:
    """The rollup `usage`, of the hours of a period or of all."""
    if period is None:
        return results.table(snapshot.paths("usage"), USAGE)
    table = results.table(snapshot.paths("usage", period.first_day, period.last_day), USAGE)
    since, until = ((one - _EPOCH) // timedelta(microseconds=1) for one in (period.since, period.until))
    hours = table["hour_us"]
    return table.filter(pc.and_(pc.greater_equal(hours, since), pc.less(hours, until)))


def usages(table: pa.Table, subscriptions: Mapping[str, int] | None = None) -> list[Usage]:
    """What is billed, as `usage.usage_of` counts it. Rows with codes of a later release are left out.

    Args:
        table: The rollup `usage`.
        subscriptions: How many subscriptions each topic has.

    Raises:
        ValueError: A number of subscriptions is out of bounds.
    """
    copies = checked_subscriptions(subscriptions or {})
    known = pc.and_(_in(table["namespace"], NamespaceRole), _in(table["stage"], Stage))
    table = table.filter(pc.and_(pc.greater(table["units"], 0), known))
    slim = pa.table(
        {
            "day": pc.divide(table["hour_us"], HOUR_US * _HOURS_A_DAY),
            "namespace": table["namespace"],
            "entity": table["entity"],
            "stage": table["stage"],
            # Copies are made where a message is sent to the topic itself, not to the backlog.
            "is_copied": pc.and_(
                pc.is_in(table["operation"], pa.array(sorted(COPIED), pa.int8())),
                pc.equal(table["namespace"], int(NamespaceRole.PRIMARY)),
            ),
            "units": table["units"],
            "unanswered": pc.if_else(pc.equal(table["outcome"], int(Outcome.UNKNOWN)), table["units"], 0),
            "transferred": table["transferred"],
        }
    )
    sums = slim.group_by(["day", "namespace", "entity", "stage", "is_copied"]).aggregate(
        [("units", "sum"), ("unanswered", "sum"), ("transferred", "sum")]
    )
    found: dict[tuple[int, int, str, int], list[int]] = {}
    for row in sums.to_pylist():
        times = 1 + copies.get(row["entity"].lower(), 0) if row["is_copied"] else 1
        values = found.setdefault((row["day"], row["namespace"], row["entity"], row["stage"]), [0, 0, 0])
        values[0] += row["units_sum"] * times
        values[1] += row["unanswered_sum"] * times
        values[2] += row["transferred_sum"]
    return [
        Usage((_EPOCH + timedelta(days=day)).date(), NamespaceRole(namespace), entity, Stage(stage), *values)
        for (day, namespace, entity, stage), values in sorted(found.items())
    ]


def cost_of(
    results: Results,
    snapshot: Snapshot,
    book: PriceBook,
    contract: Contract,
    *,
    period: Period | None = None,
    subscriptions: Mapping[str, int] | None = None,
    connections: Connections | None = None,
) -> Bill:
    """The bill of a period, all that the results tell of unless it is given.

    Raises:
        ValueError: A number of subscriptions is out of bounds.
        PriceError: The book lacks a tier of the contract.
    """
    period = period or period_of(snapshot)
    if period is None:
        return Bill([], [])
    used = usages(usage_table(results, snapshot, period), subscriptions)
    return bill(used, book, contract, since=period.since, until=period.until, connections=connections)


def _in(column: pa.ChunkedArray, codes: type[NamespaceRole] | type[Stage]) -> pa.ChunkedArray:
    return pc.is_in(column, pa.array([int(one) for one in codes], pa.int8()))


def _hour(number: int) -> datetime:
    return _EPOCH + timedelta(hours=number)
