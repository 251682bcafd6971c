"""Tests bills from the table `usage`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipeline.ledger_files import HOUR, START, an_operation
from tests.pipeline.report.sample_tables import moment
from tests.tables.result_files import table_of

from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import pa
from twinbus.report.cost.billing import Bill, Contract, Item
from twinbus.report.cost.prices import load_prices
from twinbus.report.cost.usage_bill import Period, cost_of, days_of, hours_within, period_of, usages
from twinbus.tables.billed_units import billed_units, is_transferred, usage_of
from twinbus.tables.code_words import word_of
from twinbus.tables.table_schemas import USAGE

BOOK = load_prices()


def table(operations: Sequence[Operation]) -> pa.Table:
    """Return the table `usage`, counted row by row."""
    groups: defaultdict[tuple[Any, ...], list[Operation]] = defaultdict(list)
    for operation in operations:
        entity = operation.destination or operation.entity
        groups[
            operation.ts // HOUR, operation.namespace, entity, operation.operation, operation.stage, operation.outcome
        ].append(operation)
    rows = []
    for (hour, namespace, entity, operation, stage, outcome), group in groups.items():
        units = sum(billed_units(operation, stage, outcome, size=row.bytes, count=row.count) for row in group)
        is_moved = is_transferred(namespace, operation, outcome)
        codes = {"namespace": namespace, "operation": operation, "stage": stage, "outcome": outcome}
        rows.append(
            {
                "day": moment(hour * HOUR).date(),
                "hour": moment(hour * HOUR),
                "entity": entity,
                **{name: word_of(code) for name, code in codes.items()},
                "units": units,
                "transferred": sum(row.bytes for row in group) if is_moved else 0,
                "first_time": moment(min(row.ts for row in group)),
                "last_time": moment(max(row.ts for row in group)),
            }
        )
    return table_of(USAGE, rows)


operations = st.builds(
    lambda hour, role, entity, kind, stage, outcome, size: an_operation(
        START + hour * HOUR, namespace=role, entity=entity, operation=kind, stage=stage, outcome=outcome, bytes=size
    ),
    st.integers(0, 24 * 60),
    st.sampled_from(NamespaceRole),
    st.sampled_from(["orders", "events", "Events"]),
    st.sampled_from(OperationKind),
    st.sampled_from(Stage),
    st.sampled_from(Outcome),
    st.integers(0, 300_000),
)


@settings(deadline=None)
@given(rows=st.lists(operations, max_size=30), subscriptions=st.integers(0, 3))
def test_usage_from_the_table_equals_usage_of_the_operations(rows: list[Operation], subscriptions: int) -> None:
    # A send to a topic is recorded at the primary; copies of other namespaces do not exist.
    rows = [row for row in rows if row.namespace is NamespaceRole.PRIMARY or row.entity == "orders"]
    assert usages(table(rows), {"events": subscriptions}) == usage_of(rows, {"events": subscriptions})


@settings(deadline=None)
@given(rows=st.lists(operations, min_size=1, max_size=20), since=st.integers(0, 1_500), hours=st.integers(1, 1_500))
def test_no_hour_is_billed_on_a_day_without_rows(rows: list[Operation], since: int, hours: int) -> None:
    start = moment(START) + timedelta(hours=since)
    whole = cost_of(table(rows), BOOK, Contract())
    part = cost_of(table(rows), BOOK, Contract(), period=Period(start, start + timedelta(hours=hours)))
    first, last = min(row.ts for row in rows) // HOUR, max(row.ts for row in rows) // HOUR
    days = {row.ts // (24 * HOUR) for row in rows}
    covered = [hour for hour in range(first, last + 1) if hour // 24 in days]
    asked = START // HOUR + since
    assert base_hours(whole) == len(covered)
    assert base_hours(part) == sum(asked <= hour < asked + hours for hour in covered)


def base_hours(bill: Bill) -> int:
    return int(sum((charge.quantity for charge in bill.charges if charge.item is Item.BASE), Decimal(0)))


def test_a_month_without_rows_has_no_charges() -> None:
    rows = [an_operation(START), an_operation(START + 70 * 24 * HOUR)]
    found = cost_of(table(rows), BOOK, Contract())
    assert {charge.month for charge in found.charges} == {moment(row.ts).date().replace(day=1) for row in rows}


def test_empty_usage_costs_nothing() -> None:
    assert period_of(table([])) is None
    assert cost_of(table([]), BOOK, Contract()) == Bill([], [])
    later = Period.of_days(date(2030, 1, 1))
    assert cost_of(table([an_operation(START)]), BOOK, Contract(), period=later) == Bill([], [])


def test_period_has_whole_hours_and_their_rows() -> None:
    usage = table([an_operation(START + 5), an_operation(START + HOUR), an_operation(START + 30 * HOUR)])
    start = moment(START)
    assert period_of(usage) == Period(start, start + timedelta(hours=31))
    assert days_of(usage) == {start.date(), (start + timedelta(days=1)).date()}
    middle = Period(start + timedelta(hours=1), start + timedelta(hours=30))
    assert hours_within(usage, middle)["hour"].to_pylist() == [start + timedelta(hours=1)]


def test_rows_with_codes_of_a_later_release_are_ignored() -> None:
    usage = table([an_operation(START)])
    for name in ("namespace", "stage"):
        later = usage.set_column(usage.schema.get_field_index(name), name, pa.array(["code_25"]))
        assert usages(later) == []
        assert base_hours(cost_of(later, BOOK, Contract())) == 1


def test_a_number_of_subscriptions_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="subscriptions of events must be a whole number from 0"):
        usages(table([]), {"events": -1})


def test_common_hours_of_two_periods() -> None:
    first = Period(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 3, tzinfo=UTC))
    assert first.within(Period.of_days(date(2026, 11, 2), date(2026, 11, 9))) == Period.of_days(date(2026, 11, 2))
    assert first.within(Period.of_days(date(2026, 11, 3))) is None
