"""Tests the sums of a bill by stage, entity and day."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from tests.tables.result_files import table_of

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Stage
from twinbus.ledger.schema import pa
from twinbus.report.cost.billing import Contract, Line, bill
from twinbus.report.cost.period_costs import Cost, summed_cost, views_of
from twinbus.report.cost.prices import load_prices
from twinbus.tables.billed_units import PAIRING_STAGES, Usage
from twinbus.tables.code_words import word_of
from twinbus.tables.table_schemas import USAGE

SINCE, UNTIL = datetime(2026, 10, 20, tzinfo=UTC), datetime(2026, 12, 5, 7, tzinfo=UTC)
BOOK = load_prices()


def traffic(most: int) -> list[Usage]:
    """Return six weeks of uneven traffic in three months, enough for several steps of the scale."""
    dice = random.Random(7)
    found = []
    for number in range(47):
        day = date(2026, 10, 20) + timedelta(days=number)
        for entity in ("orders", "events", "mail"):
            for stage in (stage for stage in Stage if stage is not Stage.LEDGER):
                role = NamespaceRole.SECONDARY if stage.name.startswith("BACKLOG") else NamespaceRole.PRIMARY
                found.append(Usage(day, role, entity, stage, dice.randrange(1, most), dice.randrange(2), 0))
    return found


def rollup(usage: list[Usage]) -> pa.Table:
    """Return the usage as rows of the table."""
    rows = []
    for one in usage:
        kind = OperationKind.SEND if one.stage is Stage.DIRECT else OperationKind.COMPLETE
        codes = {"namespace": one.namespace, "operation": kind, "stage": one.stage}
        row = {"day": one.day, "entity": one.entity, **{name: word_of(code) for name, code in codes.items()}}
        rows.append({**row, "outcome": "unknown", "units": one.unanswered, "transferred": 0})
        answered = one.operations - one.unanswered
        rows.append({**row, "outcome": "done", "units": answered, "transferred": one.transferred})
    return table_of(USAGE, rows)


def priced(usage: list[Usage], contract: Contract | None = None, **subscriptions: int) -> Cost:
    views = views_of(rollup(usage), SINCE, subscriptions)
    return summed_cost(views, BOOK, contract or Contract(), since=SINCE, until=UNTIL)


@pytest.mark.parametrize("contract", [Contract(), Contract(is_one_subscription=False), Contract(secondary="basic")])
@pytest.mark.parametrize("most", [1_000, 4_000_000])
def test_sums_equal_the_bill_that_prices_every_usage_alone(contract: Contract, most: int) -> None:
    usage = traffic(most)
    cost, one_by_one = priced(usage, contract), bill(usage, BOOK, contract, since=SINCE, until=UNTIL)
    assert cost.bill.charges == one_by_one.charges
    keys: list[tuple[dict[object, object], Callable[[Line], object]]] = [
        (dict(cost.stages), lambda line: line.usage.stage),
        (dict(cost.entities), lambda line: line.usage.entity),
        (dict(cost.days), lambda line: line.usage.day),
    ]
    for parts, key in keys:
        for name, part in parts.items():
            mine = [line for line in one_by_one.lines if key(line) == name]
            assert part.operations == sum(line.usage.operations for line in mine)  # type: ignore[attr-defined]
            amount = sum((line.amount for line in mine), Decimal(0))
            assert abs(part.amount - amount) < Decimal("0.000000001")  # type: ignore[attr-defined]


def test_stages_entities_and_days_have_the_same_sum() -> None:
    cost = priced(traffic(4_000_000))
    for parts in (cost.stages.values(), cost.entities.values(), cost.days.values()):
        assert sum(part.operations for part in parts) == cost.whole.operations
        assert sum((part.amount for part in parts), Decimal(0)) == cost.whole.amount
        assert sum((part.pairing for part in parts), Decimal(0)) == cost.whole.pairing
    operations = [charge for charge in cost.bill.charges if charge.item == "operations"]
    assert sum((operation.pairing for operation in operations), Decimal(0)) == cost.whole.pairing > 0


def test_entities_are_sorted_by_amount_and_days_by_date() -> None:
    cost = priced(traffic(4_000_000))
    amounts = [part.amount for part in cost.entities.values()]
    assert amounts == sorted(amounts, reverse=True)
    assert list(cost.days) == sorted(cost.days)
    assert {stage for stage, part in cost.stages.items() if part.pairing_operations} == PAIRING_STAGES


def test_sends_to_a_topic_are_copied_to_its_subscriptions_in_every_view() -> None:
    plain, copied = priced(traffic(1_000)), priced(traffic(1_000), events=3)
    sends = sum(row.operations for row in traffic(1_000) if row.entity == "events" and row.stage is Stage.DIRECT)
    for parts in (lambda cost: cost.stages, lambda cost: cost.entities, lambda cost: cost.days):
        before, after = (sum(part.operations for part in parts(cost).values()) for cost in (plain, copied))
        assert after - before == 3 * sends
    assert copied.entities["events"].operations - plain.entities["events"].operations == 3 * sends


def test_warnings_name_what_the_bill_does_not_count() -> None:
    usage = [Usage(date(2026, 11, 1), NamespaceRole.SECONDARY, "orders", Stage.BACKLOG_SEND, 9, 2, 1_500_000_000)]
    warnings = priced(usage).warnings
    assert any("Connections" in text for text in warnings)
    assert any("1.500 GB" in text for text in warnings)
    assert any("2 operations got no answer" in text for text in warnings)


def test_json_amounts_have_all_digits() -> None:
    found = priced(traffic(4_000_000)).to_json()
    assert Decimal(found["application"]) + Decimal(found["pairing"]) == Decimal(found["total"])
    assert [charge["month"] for charge in found["charges"] if charge["item"] == "base"] == [
        "2026-10",
        "2026-11",
        "2026-12",
    ]
    assert {stage["paid_by"] for stage in found["stages"]} == {"application", "pairing"}
