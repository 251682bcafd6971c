"""Figures of the cost: by stage, by day and by entity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from twinbus.report.cost.billing import Charge, Item
from twinbus.servicebus.entity_paths import parse_backlog_path
from twinbus.tables.billed_units import PAIRING_STAGES

from ..cost.period_costs import STAGE_TEXTS, Cost, Part, total_of
from . import formats, plots
from .plots import ROWS, Figure

#: Entities that are drawn. The table has more, `--json` has all.
BARS = 12


@dataclass(frozen=True, slots=True)
class Measure:
    """The unit of bars: money or, if all operations are included in the tier, operations."""

    currency: str
    is_money: bool

    def sides(self, part: Part) -> tuple[float, float]:
        """Return the parts of the application and of pairing."""
        if self.is_money:
            return float(part.application), float(part.pairing)
        return part.application_operations, part.pairing_operations

    def text(self, part: Part) -> str:
        if self.is_money:
            return f"{self.currency} {formats.money(part.amount)}"
        return formats.short_number(part.operations)

    @property
    def name(self) -> str:
        return self.currency if self.is_money else "billed operations"


@dataclass(frozen=True, slots=True)
class CostView:
    cost: Cost
    measure: Measure
    figures: Sequence[Figure]
    #: Rows of the bill.
    charges: Sequence[tuple[str, ...]]

    @property
    def has_gaps(self) -> bool:
        """Whether a plot shows days without rows."""
        return any(drawn.has_gaps for drawn in self.figures)


def cost_view(cost: Cost) -> CostView:
    """Return the plots of a bill, without those that would have a single bar."""
    measure = Measure(cost.book.currency, bool(cost.whole.amount))
    figures = [_stages(cost, measure)]
    if len(cost.days) > 1:
        figures.append(_days(cost, measure))
    if len(cost.entities) > 1:
        figures.append(_entities(cost, measure))
    return CostView(cost, measure, figures, [_charge_cells(charge) for charge in cost.bill.charges if charge.quantity])


def _stages(cost: Cost, measure: Measure) -> Figure:
    named = {STAGE_TEXTS.get(stage, stage.name.lower()): (stage, part) for stage, part in cost.stages.items()}
    cells = [
        (
            name,
            "pairing" if stage in PAIRING_STAGES else "application",
            formats.number(part.operations),
            formats.money(part.amount),
        )
        for name, (stage, part) in named.items()
    ]
    return Figure(
        plots.bars([plots.Bar(name, *measure.sides(part), measure.text(part)) for name, (_, part) in named.items()]),
        "Cost by stage",
        ("stage", "paid by", "billed operations", measure.currency),
        cells,
        caption=f"By stage, {measure.name}",
    )


def _days(cost: Cost, measure: Measure) -> Figure:
    rows = []
    first, last = min(cost.days), max(cost.days)
    for day in (first + timedelta(days=number) for number in range((last - first).days + 1)):
        label = f"{day.day} {formats.month(day.year, day.month)[:3]}"
        part = cost.days.get(day)
        if part is None:
            rows.append(plots.Column(label, 0, 0, f"{label}: {plots.NO_DATA}"))
            continue
        added = measure.text(Part(0, part.pairing_operations, pairing=part.pairing))
        rows.append(plots.Column(label, *measure.sides(part), f"{label}: {measure.text(part)}, of it pairing {added}"))
    highest = max(cost.days.values(), key=lambda part: sum(measure.sides(part)))
    cells = [
        (day.isoformat(), formats.number(part.operations), formats.money(part.application), formats.money(part.pairing))
        for day, part in cost.days.items()
    ]
    return Figure(
        plots.columns(rows, measure.text(highest)),
        "Cost by day",
        ("day", "billed operations", f"application, {measure.currency}", f"pairing, {measure.currency}"),
        cells[-ROWS:],
        left_out=max(0, len(cells) - ROWS),
        caption=f"By day (UTC), {measure.name}",
        has_gaps=len(rows) > len(cost.days),
    )


def _entities(cost: Cost, measure: Measure) -> Figure:
    queues = {name: part for name, part in cost.entities.items() if parse_backlog_path(name) is not None}
    drawn = [(name, part) for name, part in cost.entities.items() if name not in queues][:BARS]
    if queues:
        drawn.append((f"backlog queues ({len(queues)})", total_of(queues.values())))
    entities = list(cost.entities.items())
    cells = [
        (
            name,
            formats.number(part.application_operations),
            formats.number(part.pairing_operations),
            formats.money(part.application),
            formats.money(part.pairing),
        )
        for name, part in entities[:ROWS]
    ]
    count = len(entities) - len(queues)
    largest = f"the {BARS} largest of {formats.number(count)}, " if count > BARS else ""
    return Figure(
        plots.bars([plots.Bar(name, *measure.sides(part), measure.text(part)) for name, part in drawn]),
        "Cost by entity",
        ("entity", "operations: application", "pairing", f"{measure.currency}: application", "pairing"),
        cells,
        left_out=len(entities) - len(cells),
        caption=f"By entity, {largest}{measure.name}",
    )


_ITEMS = {
    Item.OPERATIONS: ("operations", ""),
    Item.BASE: ("base charge", " h"),
    Item.MESSAGING_UNITS: ("messaging units", " h"),
    Item.CONNECTIONS: ("connections", ""),
    Item.TRANSFER: ("transfer", " GB"),
}


def _charge_cells(charge: Charge) -> tuple[str, ...]:
    text, unit = _ITEMS[charge.item]
    quantity = charge.quantity
    is_whole = quantity == quantity.to_integral_value()
    return (
        f"{formats.month(charge.month.year, charge.month.month)}, {charge.tier}: {text}",
        (f"{quantity:,.0f}" if is_whole else f"{quantity:,.3f}") + unit,
        formats.money(charge.application),
        formats.money(charge.pairing),
    )
