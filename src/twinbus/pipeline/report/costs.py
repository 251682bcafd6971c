"""The bill of a period, summed up by stage, entity and day. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from typing import Any, TypeVar

from twinbus.ledger.recorder import Stage
from twinbus.pipeline.billing import GB, Bill, Contract, Line, bill
from twinbus.pipeline.prices import PriceBook, exact
from twinbus.pipeline.usage import PAIRING_STAGES, Usage

_Key = TypeVar("_Key", bound=Hashable)

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

    def as_json(self) -> dict[str, Any]:
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

    def as_json(self) -> dict[str, Any]:
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
            "entities": [{"entity": name, **part.as_json()} for name, part in self.entities.items()],
            "days": [{"day": day.isoformat(), **part.as_json()} for day, part in self.days.items()],
            "warnings": list(self.warnings),
        }


def summed_cost(
    usage: Iterable[Usage], book: PriceBook, contract: Contract, *, since: datetime, until: datetime
) -> Cost:
    """Bill what was used in a period, and sum it up.

    Raises:
        ValueError: The times are no period with a time zone, or a usage lies outside.
        PriceError: The book lacks a tier of the contract.
    """
    every = list(usage)

    def billed(group: Callable[[Usage], Usage]) -> Bill:
        # Within a month, a namespace and a side every operation costs the same. So bills of coarser usage add up to
        # the same, to the last digit, and thousands of entities on hundreds of days are not priced one by one.
        return bill(_merged(map(group, every)), book, contract, since=since, until=until)

    def by_month(one: Usage) -> Usage:
        return one._replace(day=max(one.day.replace(day=1), since.astimezone(UTC).date()))

    whole = billed(lambda one: by_month(one)._replace(entity=""))
    entities = _sums(billed(lambda one: _sided(by_month(one))), lambda line: line.usage.entity)
    days = _sums(billed(lambda one: _sided(one)._replace(entity="")), lambda line: line.usage.day)
    stages = _sums(whole, lambda line: line.usage.stage)
    return Cost(
        book=book,
        contract=contract,
        bill=whole,
        stages={stage: stages[stage] for stage in sorted(stages, key=_place)},
        entities={
            name: entities[name]
            for name in sorted(entities, key=lambda name: (-entities[name].amount, -entities[name].operations, name))
        },
        days={day: days[day] for day in sorted(days)},
        warnings=tuple(_warnings(whole, book)),
    )


def _sided(usage: Usage) -> Usage:
    """A stage for each side of the bill, in place of all the stages that the side has."""
    return usage._replace(stage=Stage.POLL if usage.is_pairing else Stage.DIRECT)


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
