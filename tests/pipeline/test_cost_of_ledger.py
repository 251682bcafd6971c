"""Tests bills of recorded ledgers, and the figures in the documentation."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench.ledger_shape import MINUTE, Shape
from bench.ledgers import generate
from tests.pipeline.ledger_files import HOUR, START, an_operation

from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import pa
from twinbus.ledger.writer import LedgerWriter
from twinbus.report.cost.billing import Contract, Item, bill
from twinbus.report.cost.prices import load_prices
from twinbus.report.cost.usage_bill import Period, cost_of, hours_within, period_of, usages
from twinbus.spark import run_pipeline
from twinbus.tables.billed_units import usage_of
from twinbus.tables.result_reader import open_results
from twinbus.tables.table_schemas import USAGE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MONTH = Shape(rows=3_000, days=30, outages=1, entities=4, clients=3, backlog_queues=10)
QUEUE = "contoso/x-servicebus-transfer/4"


def _usage(spark: SparkSession, ledger: Path) -> pa.Table:
    """Return the table `usage` of a ledger."""
    run_pipeline(spark, ledger, reconcile=False, now=datetime(2026, 12, 1, tzinfo=UTC))
    return open_results(str(ledger)).read(USAGE)


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> pa.Table:
    """Return thirty days in which ten backlog queues are polled every 15 minutes."""
    ledger = tmp_path_factory.mktemp("month") / "ledger"
    generate(ledger, MONTH)
    return _usage(spark, ledger)


def test_ten_queues_are_polled_40_times_an_hour_960_a_day_and_28800_in_30_days(month: pa.Table) -> None:
    rows = [row for row in month.to_pylist() if row["stage"] == "poll"]
    by_hour: Counter[datetime] = Counter()
    for row in rows:
        by_hour[row["hour"]] += row["units"]
    assert set(by_hour.values()) == {40}
    assert len(by_hour) == 24 * 30
    by_day: Counter[date] = Counter()
    for row in usages(month):
        by_day[row.day] += row.operations if row.stage is Stage.POLL else 0
    assert set(by_day.values()) == {960}
    assert by_day.total() == 28_800


def test_an_entity_is_pinged_once_a_minute_by_each_client(month: pa.Table) -> None:
    (window,) = MONTH.windows
    pinged = [row for row in month.to_pylist() if row["stage"] == "ping"]
    units: Counter[tuple[str, str]] = Counter()
    for row in pinged:
        units[row["entity"], row["client"]] += row["units"]
    minutes = (window.recovered - window.began) // MINUTE  # the first ping follows a minute after the first failure
    assert set(units.values()) == {minutes}
    assert len(units) == MONTH.entities * MONTH.clients


def test_a_month_has_one_bill_and_its_two_sides_add_up(month: pa.Table) -> None:
    found = cost_of(month, load_prices(), Contract())
    operations = next(charge for charge in found.charges if charge.item is Item.OPERATIONS)
    assert operations.quantity == sum(row.operations for row in usages(month))
    base = next(charge for charge in found.charges if charge.item is Item.BASE)
    assert (base.quantity, base.total) == (720, Decimal("0.013441") * 720)
    assert found.application + found.pairing == found.total


def test_a_period_has_the_bill_of_its_hours(month: pa.Table) -> None:
    whole = period_of(month)
    assert whole == Period(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))
    day = Period(datetime(2026, 11, 3, 6, tzinfo=UTC), datetime(2026, 11, 4, 6, tzinfo=UTC))
    polls = [row for row in usages(hours_within(month, day)) if row.stage is Stage.POLL]
    assert sum(row.operations for row in polls) == 960
    assert {row.day for row in polls} == {date(2026, 11, 3), date(2026, 11, 4)}


def _diverted(number: int, ts: int, size: int) -> list[Operation]:
    """Return the rows of a message that goes through the backlog, from pairing, syphon and receiver."""
    secondary, done = NamespaceRole.SECONDARY, Outcome.DONE
    facts = {"message_id": f"m-{number}", "destination": "events", "outcome": done}
    backlog = {**facts, "namespace": secondary, "entity": QUEUE, "backlog_queue": QUEUE}
    receive, complete, back = OperationKind.RECEIVE, OperationKind.COMPLETE, Stage.BACKLOG_RECEIVE
    arrived = {"message_id": f"m-{number}", "entity": "events/subscriptions/a", "stage": Stage.PRIMARY_RECEIVE}
    return [
        an_operation(ts, **backlog, stage=Stage.BACKLOG_SEND, bytes=size),
        an_operation(ts + 1, **backlog, stage=back, operation=receive, bytes=size),
        an_operation(ts + 2, **facts, entity="events", stage=Stage.PRIMARY_SEND, bytes=size),
        an_operation(ts + 3, **backlog, stage=back, operation=complete, bytes=0),
        an_operation(ts + 4, **arrived, operation=receive, bytes=size),
        an_operation(ts + 5, **arrived, operation=complete, bytes=0),
    ]


def test_diverted_message_passes_four_stages_of_which_pairing_pays_two(tmp_path: Path, spark: SparkSession) -> None:
    rows = [row for number in range(5) for row in _diverted(number, START + number * HOUR, 96 * 1024)]
    with LedgerWriter(tmp_path / "ledger") as writer:
        for row in rows:
            writer.record(row)
    table = _usage(spark, tmp_path / "ledger")
    found = usages(table)
    stages = {row.stage for row in found}
    assert stages == {Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE, Stage.PRIMARY_SEND, Stage.PRIMARY_RECEIVE}
    assert {row.stage for row in found if row.is_pairing} == {Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE}
    # Of 96 KB each: two units for each send and receive, and one for each complete.
    assert Counter({row.stage: row.operations for row in found}) == Counter(
        {Stage.BACKLOG_SEND: 10, Stage.BACKLOG_RECEIVE: 15, Stage.PRIMARY_SEND: 10, Stage.PRIMARY_RECEIVE: 15}
    )
    assert sum(row.transferred for row in found) == 2 * 5 * 96 * 1024
    subscriptions = {"Events": 3}
    with_copies = usages(table, subscriptions)
    assert with_copies == usage_of(rows, subscriptions)
    assert {row.stage: row.operations for row in with_copies}[Stage.PRIMARY_SEND] == 40
    hours = {datetime(2026, 11, 1, hour, tzinfo=UTC) for hour in range(5)}
    assert {row["hour"] for row in table.to_pylist()} == hours

    book, period = load_prices(), period_of(table)
    assert period is not None
    exact = bill(usage_of(rows), book, Contract(), since=period.since, until=period.until)
    assert cost_of(table, book, Contract()) == exact


def test_a_number_of_subscriptions_out_of_bounds_is_refused(month: pa.Table) -> None:
    with pytest.raises(ValueError, match="subscriptions of events must be a whole number from 0"):
        usages(month, {"events": -1})
