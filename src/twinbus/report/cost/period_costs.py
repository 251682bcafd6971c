"""Sum up the bill of a period by stage, entity and day. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from typing import Any, NamedTuple, TypeVar

from twinbus.ledger.recorder import Stage
from twinbus.ledger.schema import pa, pc
from twinbus.report.cost.billing import GB, Bill, Contract, Line, bill
from twinbus.report.cost.prices import PriceBook, exact
from twinbus.report.cost.usage_bill import usages
from twinbus.tables.billed_units import PAIRING_STAGES, Usage
from twinbus.tables.code_words import word_of, words_of

_Key = TypeVar("_Key", bound=Hashable)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

STAGE_TEXTS = {
    Stage.DIRECT: "sent to the primary",
    Stage.PRIMARY_SEND: "diverted: sent to the primary",
    Stage.PRIMARY_RECEIVE: "received and settled",
    Stage.BACKLOG_SEND: "diverted: sent to the backlog",
    Stage.BACKLOG_RECEIVE: "diverted: received from the backlog and settled",
    Stage.PING: "pings",
    Stage.POLL: "polls of the backlog queues",
    Stage.MANAGE: "checks of the backlog queues",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Operations, and the price of operations and transfer, on the two sides of the bill."""

    application_operations: int = 0
    pairing_operations: int = 0
    application: Decimal = Decimal(0)
    pairing: Decimal = Decimal(0)

    @property
    def operations(self) -> int:
        return self.application_operations + self.pairing_operations

    @property
    def amount(self) -> Decimal:
        return _add((self.application, self.pairing))

    def to_json(self) -> dict[str, Any]:
        return {
            "operations": self.operations,
            "amount": plain(self.amount),
            "application": {"operations": self.application_operations, "amount": plain(self.application)},
            "pairing": {"operations": self.pairing_operations, "amount": plain(self.pairing)},
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a period. `bill` has everything; the other fields group it by stage, entity and day."""

    book: PriceBook
    contract: Contract
    bill: Bill
    stages: dict[Stage, Part]
    #: The most expensive first.
    entities: dict[str, Part]
    days: dict[date, Part]
    warnings: tuple[str, ...]

    @property
    def whole(self) -> Part:
        return part_of(self.bill.lines)

    @property
    def unanswered(self) -> int:
        return sum(line.usage.unanswered for line in self.bill.lines)

    @property
    def transferred(self) -> int:
        return sum(line.usage.transferred for line in self.bill.lines)

    def to_json(self) -> dict[str, Any]:
        book, contract, bill = self.book, self.contract, self.bill
        return {
            "currency": book.currency,
            "prices": {"date": book.date.isoformat(), "source": book.source},
            "tiers": {"primary": contract.primary, "secondary": contract.secondary},
            "total": plain(bill.total),
            "application": plain(bill.application),
            "pairing": plain(bill.pairing),
            "operations": self.whole.operations,
            "unanswered": self.unanswered,
            "transferred_bytes": self.transferred,
            "charges": [
                {
                    "month": f"{charge.month:%Y-%m}",
                    "tier": charge.tier,
                    "item": charge.item.value,
                    "quantity": plain(charge.quantity),
                    "application": plain(charge.application),
                    "pairing": plain(charge.pairing),
                }
                for charge in bill.charges
            ],
            "stages": [
                {
                    "stage": stage.name.lower(),
                    "paid_by": "pairing" if stage in PAIRING_STAGES else "application",
                    "operations": part.operations,
                    "amount": plain(part.amount),
                }
                for stage, part in self.stages.items()
            ],
            "entities": [{"entity": name, **part.to_json()} for name, part in self.entities.items()],
            "days": [{"day": day.isoformat(), **part.to_json()} for day, part in self.days.items()],
            "warnings": list(self.warnings),
        }


class Views(NamedTuple):
    """The same usage in three groupings, each as coarse as possible.

    Within a month, a namespace and a side of the bill every operation costs the same. So the bill of a coarser usage is
    the same to the last digit, and thousands of entities on hundreds of days need not be priced one by one.
    """

    #: By month, without entities.
    stages: Sequence[Usage]
    #: By month; one stage stands for all stages of a side of the bill (`SIDES`).
    entities: Sequence[Usage]
    #: By day, without entities; stages as above.
    days: Sequence[Usage]


#: The stages that stand for the application and for pairing.
SIDES = Stage.DIRECT, Stage.POLL


def views_of(table: pa.Table, since: datetime, subscriptions: Mapping[str, int]) -> Views:
    """Return the billed usage of a table `usage` whose rows all lie after `since`.

    Raises:
        ValueError: A number of subscriptions is out of bounds.
    """
    copied = pa.array([name.lower() for name in subscriptions], pa.string())
    months = pc.floor_temporal(table["day"], unit="month").cast(pa.date32())
    is_pairing, is_billed = (
        pc.is_in(table["stage"], pa.array(words_of(stages), pa.string())) for stages in (PAIRING_STAGES, STAGE_TEXTS)
    )
    sides = pc.if_else(is_pairing, *(word_of(stage) for stage in reversed(SIDES)))
    columns = {
        "month": pc.max_element_wise(months, pa.scalar(since.date())),
        "day": table["day"],
        # The number of operations of a send depends on the topic, so its name must stay.
        "no_entity": pc.if_else(pc.is_in(pc.utf8_lower(table["entity"]), copied), table["entity"], ""),
        "side": pc.if_else(is_billed, sides, table["stage"]),
        "entity": table["entity"],
        "stage": table["stage"],
    }

    def billed(day: str, entity: str, stage: str) -> list[Usage]:
        slim = pa.table(
            {
                "day": columns[day],
                "entity": columns[entity],
                "stage": columns[stage],
                **{name: table[name] for name in ("namespace", "operation", "outcome", "units", "transferred")},
            }
        )
        keys = ["day", "namespace", "entity", "operation", "stage", "outcome"]
        sums = slim.group_by(keys).aggregate([("units", "sum"), ("transferred", "sum")])
        used = usages(sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names]), subscriptions)
        return used if entity == "entity" else _merged(row._replace(entity="") for row in used)

    return Views(
        billed("month", "no_entity", "stage"), billed("month", "entity", "side"), billed("day", "no_entity", "side")
    )


def summed_cost(
    views: Views,
    book: PriceBook,
    contract: Contract,
    *,
    since: datetime,
    until: datetime,
    days: Collection[date] | None = None,
) -> Cost:
    """Bill the usage of a period, and sum it up. Time is charged only for `days` if they are given.

    Raises:
        ValueError: The times have no time zone or are in the wrong order, or a usage lies outside.
        PriceError: The book lacks a tier of the contract.
    """
    whole, by_entity, by_day = (bill(usage, book, contract, since=since, until=until, days=days) for usage in views)
    stages = _sums(whole, lambda line: line.usage.stage)
    entities = _sums(by_entity, lambda line: line.usage.entity)
    by_date = _sums(by_day, lambda line: line.usage.day)
    return Cost(
        book=book,
        contract=contract,
        bill=whole,
        stages={stage: stages[stage] for stage in sorted(stages, key=_place)},
        entities={
            name: entities[name]
            for name in sorted(entities, key=lambda name: (-entities[name].amount, -entities[name].operations, name))
        },
        days={day: by_date[day] for day in sorted(by_date)},
        warnings=tuple(_warnings(whole, book)),
    )


def _merged(usage: Iterable[Usage]) -> list[Usage]:
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in usage:
        values = sums.setdefault(row[:4], [0, 0, 0])
        values[0] += row.operations
        values[1] += row.unanswered
        values[2] += row.transferred
    return [Usage(*key, *values) for key, values in sums.items()]


def part_of(lines: Iterable[Line]) -> Part:
    """Return the sum of lines of a bill."""
    own: list[Line] = []
    added: list[Line] = []
    for line in lines:
        (added if line.usage.is_pairing else own).append(line)
    return Part(
        sum(line.usage.operations for line in own),
        sum(line.usage.operations for line in added),
        _add(line.amount for line in own),
        _add(line.amount for line in added),
    )


def total_of(parts: Iterable[Part]) -> Part:
    """Return the sum of parts."""
    parts = list(parts)
    return Part(
        sum(part.application_operations for part in parts),
        sum(part.pairing_operations for part in parts),
        _add(part.application for part in parts),
        _add(part.pairing for part in parts),
    )


def plain(amount: Decimal) -> str:
    """Return an amount with all digits and without exponent."""
    return f"{amount.normalize():f}"


def _sums(bill: Bill, key: Callable[[Line], _Key]) -> dict[_Key, Part]:
    groups: defaultdict[_Key, list[Line]] = defaultdict(list)
    for line in bill.lines:
        groups[key(line)].append(line)
    return {name: part_of(group) for name, group in groups.items()}


def _place(stage: Stage) -> int:
    order = list(STAGE_TEXTS)
    return order.index(stage) if stage in order else len(order)


def _warnings(bill: Bill, book: PriceBook) -> Iterable[str]:
    yield "Connections are not in the ledger, so they are not in this bill."
    transferred = sum(line.usage.transferred for line in bill.lines)
    if transferred and book.transfer_per_gb is None:
        gigabytes = Decimal(transferred) / GB
        yield f"Transfer between regions ({gigabytes:,.3f} GB) is not in this bill: the price book has no price for it."
    unanswered = sum(line.usage.unanswered for line in bill.lines)
    if unanswered:
        yield f"{unanswered:,} operations got no answer. They are in this bill, but some may not have been billed."


def _add(amounts: Iterable[Decimal]) -> Decimal:
    with localcontext(exact()):
        return sum(amounts, Decimal(0))
