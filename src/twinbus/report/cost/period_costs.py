"""Sum up the bill of a period by stage, entity and day. Pure: a function of the table `usage`."""

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
    Stage.MANAGE: "looking after the backlog queues",
}


@dataclass(frozen=True, slots=True)
class Part:
    """What was used, and its price, on the two sides of the bill: operations and transfer, nothing else."""

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
    """What a period cost. `bill` has everything; the rest is the same in other orders."""

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
        return sum(one.usage.unanswered for one in self.bill.lines)

    @property
    def transferred(self) -> int:
        return sum(one.usage.transferred for one in self.bill.lines)

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
                    "month": f"{one.month:%Y-%m}",
                    "tier": one.tier,
                    "item": one.item.value,
                    "quantity": plain(one.quantity),
                    "application": plain(one.application),
                    "pairing": plain(one.pairing),
                }
                for one in bill.charges
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
    """The same usage three times, each summed up as far as its question allows.

    Within a month, a namespace and a side of the bill every operation costs the same. So bills of coarser usage are the
    same, to the last digit, and thousands of entities on hundreds of days need not be priced one by one.
    """

    #: By month, entity left out.
    stages: Sequence[Usage]
    #: By month; of each side of the bill one stage stands for all (`SIDES`).
    entities: Sequence[Usage]
    #: Entity left out, and stages as above.
    days: Sequence[Usage]


#: The stage that stands for all of the application, and that for all of pairing.
SIDES = Stage.DIRECT, Stage.POLL


def views_of(table: pa.Table, since: datetime, subscriptions: Mapping[str, int]) -> Views:
    """What is billed of a table `usage`, all of which lies after `since`.

    Raises:
        ValueError: A number of subscriptions is out of bounds.
    """
    copied = pa.array([name.lower() for name in subscriptions], pa.string())
    months = pc.floor_temporal(table["day"], unit="month").cast(pa.date32())
    is_pairing, is_billed = (
        pc.is_in(table["stage"], pa.array(words_of(stages), pa.string())) for stages in (PAIRING_STAGES, STAGE_TEXTS)
    )
    sides = pc.if_else(is_pairing, *(word_of(one) for one in reversed(SIDES)))
    columns = {
        "month": pc.max_element_wise(months, pa.scalar(since.date())),
        "day": table["day"],
        # How many operations a send to a topic makes depends on its name.
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
        found = usages(sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names]), subscriptions)
        return found if entity == "entity" else _merged(one._replace(entity="") for one in found)

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
    """Bill what was used in a period, and sum it up. Time is charged for `days` only, if they are given.

    Raises:
        ValueError: The times are no period with a time zone, or a usage lies outside.
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
    for one in usage:
        found = sums.setdefault(one[:4], [0, 0, 0])
        found[0] += one.operations
        found[1] += one.unanswered
        found[2] += one.transferred
    return [Usage(*key, *values) for key, values in sums.items()]


def part_of(lines: Iterable[Line]) -> Part:
    """The sum of some lines."""
    own: list[Line] = []
    added: list[Line] = []
    for one in lines:
        (added if one.usage.is_pairing else own).append(one)
    return Part(
        sum(one.usage.operations for one in own),
        sum(one.usage.operations for one in added),
        _add(one.amount for one in own),
        _add(one.amount for one in added),
    )


def total_of(parts: Iterable[Part]) -> Part:
    """The sum of parts."""
    every = list(parts)
    return Part(
        sum(one.application_operations for one in every),
        sum(one.pairing_operations for one in every),
        _add(one.application for one in every),
        _add(one.pairing for one in every),
    )


def plain(amount: Decimal) -> str:
    """All digits, no exponent."""
    return f"{amount.normalize():f}"


def _sums(found: Bill, key: Callable[[Line], _Key]) -> dict[_Key, Part]:
    groups: defaultdict[_Key, list[Line]] = defaultdict(list)
    for one in found.lines:
        groups[key(one)].append(one)
    return {name: part_of(group) for name, group in groups.items()}


def _place(stage: Stage) -> int:
    order = list(STAGE_TEXTS)
    return order.index(stage) if stage in order else len(order)


def _warnings(found: Bill, book: PriceBook) -> Iterable[str]:
    yield "Connections are not in the ledger, nor in this bill."
    moved = sum(one.usage.transferred for one in found.lines)
    if moved and book.transfer_per_gb is None:
        gigabytes = Decimal(moved) / GB
        yield f"Transfer between regions ({gigabytes:,.3f} GB) has no price in the price book, and is not in this bill."
    open_ones = sum(one.usage.unanswered for one in found.lines)
    if open_ones:
        yield f"{open_ones:,} operations got no answer. They are in this bill, though some may not have been billed."


def _add(amounts: Iterable[Decimal]) -> Decimal:
    with localcontext(exact()):
        return sum(amounts, Decimal(0))
