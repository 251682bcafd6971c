"""Tests the bill: steps across both namespaces, the part of pairing, and exact sums."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.ledger.recorder import NamespaceRole, Stage
from twinbus.report.cost.billing import Bill, Connections, Contract, Item, bill, prorated, share
from twinbus.report.cost.prices import PriceBook, PriceError, load_prices, parse_prices
from twinbus.tables.billed_units import PAIRING_STAGES, Usage

PRIMARY, SECONDARY = NamespaceRole.PRIMARY, NamespaceRole.SECONDARY
BOOK = load_prices()
NOVEMBER, DECEMBER = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
M = 1_000_000

#: A scale with small steps, so that small numbers cross them.
SMALL_BOOK = parse_prices(
    """
currency = "EUR"
date = 2026-01-02
source = "test"
[tiers.standard]
operations = [{ above = 5, per_million = 3 }, { above = 20, per_million = 2 }, { above = 70, per_million = 0.7 }]
"""
)


def used(operations: int, stage: Stage = Stage.DIRECT, day: int = 1, **changes: Any) -> Usage:
    given = {"day": date(2026, 11, day), "namespace": PRIMARY, "entity": "orders", "stage": stage}
    return Usage(**{**given, "operations": operations, **changes})


def november(usage: list[Usage], book: PriceBook = BOOK, **changes: Any) -> Bill:
    connections = changes.pop("connections", None)
    return bill(usage, book, Contract(**changes), since=NOVEMBER, until=DECEMBER, connections=connections)


def sides(found: Bill, item: Item) -> list[tuple[Decimal, Decimal]]:
    return [(charge.application, charge.pairing) for charge in found.charges if charge.item is item]


def amounts(*pairs: tuple[str, str]) -> list[tuple[Decimal, Decimal]]:
    return [(Decimal(application), Decimal(pairing)) for application, pairing in pairs]


stages = st.sampled_from([stage for stage in Stage if stage is not Stage.LEDGER])
usages = st.lists(
    st.builds(used, st.integers(0, 40), stages, st.integers(1, 30), namespace=st.sampled_from((PRIMARY, SECONDARY))),
    max_size=12,
)


# ---- tiers ----


def test_steps_apply_to_both_namespaces_together() -> None:
    found = november([used(10 * M), used(4 * M, namespace=SECONDARY)])
    assert found.charges[0].quantity == 14 * M
    assert found.charges[0].total == Decimal("0.80")


def test_namespaces_of_two_subscriptions_each_have_their_included_operations() -> None:
    usage = [used(10 * M), used(4 * M, namespace=SECONDARY)]
    found = november(usage, is_one_subscription=False)
    assert [charge.total for charge in found.charges if charge.item is Item.OPERATIONS] == [0, 0]


def test_steps_start_again_every_month() -> None:
    usage = [used(13 * M), used(13 * M, day=30), used(13 * M, stage=Stage.DIRECT)._replace(day=date(2026, 12, 1))]
    found = bill(usage, BOOK, Contract(), since=NOVEMBER, until=datetime(2027, 1, 1, tzinfo=UTC))
    operations = [charge for charge in found.charges if charge.item is Item.OPERATIONS]
    assert [(operation.month.month, operation.total) for operation in operations] == [(11, Decimal("10.4")), (12, 0)]


@given(usages)
def test_a_small_bill_equals_a_loop_over_its_operations(usage: list[Usage]) -> None:
    found = november(usage, SMALL_BOOK)
    application = sum(row.operations for row in usage if row.stage not in PAIRING_STAGES)
    prices = []
    for number in range(1, 1 + sum(row.operations for row in usage)):
        prices.append(
            Decimal(0 if number <= 5 else "0.000003" if number <= 20 else "0.000002" if number <= 70 else "0.0000007")
        )
    assert found.application == sum(prices[:application])
    assert found.pairing == sum(prices[application:])
    assert found.total == sum(prices)


@given(usages)
def test_the_lines_add_up_to_the_bill(usage: list[Usage]) -> None:
    found = november(usage, SMALL_BOOK)
    assert sum((line.amount for line in found.lines), Decimal(0)) == found.total
    assert sum((line.amount for line in found.lines if line.usage.is_pairing), Decimal(0)) == found.pairing
    assert sorted(line.usage for line in found.lines) == sorted(usage)


@given(usages, usages)
def test_more_usage_never_costs_less(usage: list[Usage], more: list[Usage]) -> None:
    assert november(usage, SMALL_BOOK).total <= november(usage + more, SMALL_BOOK).total


# ---- what pairing adds ----


def test_application_comes_first_and_pairing_pays_the_increase() -> None:
    found = november([used(12 * M), used(2 * M, Stage.BACKLOG_SEND), used(1 * M, Stage.POLL)])
    assert sides(found, Item.OPERATIONS) == amounts(("0", "1.6"))


def test_within_the_included_operations_pairing_adds_nothing() -> None:
    found = november([used(1 * M), used(28_800, Stage.POLL, namespace=SECONDARY)])
    assert (found.application, found.pairing) == (Decimal("9.677520"), 0)


def test_stage_has_its_share_of_its_side() -> None:
    usage = [used(13 * M), used(3 * M, Stage.BACKLOG_RECEIVE), used(1 * M, Stage.PING)]
    found = november(usage)
    assert [line.amount for line in found.lines] == [0, Decimal("2.4"), Decimal("0.8")]


# ---- base, messaging units, connections, transfer ----


def test_the_base_charge_is_paid_once_per_subscription() -> None:
    assert sides(november([]), Item.BASE) == amounts(("9.677520", "0.000000"))
    assert sides(november([], is_one_subscription=False), Item.BASE) == amounts(("9.677520", "0"), ("0", "9.677520"))


def test_a_secondary_of_another_tier_is_paid_by_pairing() -> None:
    found = november([], primary="premium", secondary="standard", primary_units=2)
    assert sides(found, Item.MESSAGING_UNITS) == amounts(("1335.6000", "0.0000"))
    assert sides(found, Item.BASE) == amounts(("0", "9.677520"))
    both = november([], primary="premium", secondary="premium", primary_units=2)
    assert sides(both, Item.MESSAGING_UNITS) == amounts(("1335.6000", "667.8000"))
    assert sides(both, Item.BASE) == []


def test_premium_does_not_charge_for_operations_and_basic_for_all() -> None:
    usage = [used(100 * M), used(1 * M, Stage.PING)]
    assert november(usage, primary="premium", secondary="premium").charges[0].total == 0
    assert november(usage, primary="basic", secondary="basic").charges[0].total == Decimal("5.05")


def test_started_hours_are_charged_and_no_more() -> None:
    until = NOVEMBER + timedelta(hours=5, microseconds=1)
    found = bill([], BOOK, Contract(), since=NOVEMBER, until=until)
    assert [(charge.quantity, charge.total) for charge in found.charges if charge.item is Item.BASE] == [
        (6, Decimal("0.080646"))
    ]


def test_part_of_a_month_has_all_included_operations() -> None:
    found = bill([used(13 * M)], BOOK, Contract(), since=NOVEMBER, until=NOVEMBER + timedelta(days=1))
    assert sides(found, Item.OPERATIONS) == amounts(("0", "0"))


def test_connections_are_prorated_and_pairing_pays_its_own() -> None:
    connections = Connections({PRIMARY: Decimal(900)}, {SECONDARY: Decimal(300)})
    assert sides(november([], connections=connections), Item.CONNECTIONS) == amounts(("0", "6.00"))
    half = NOVEMBER + timedelta(days=15)
    found = bill([], BOOK, Contract(), since=NOVEMBER, until=half, connections=connections)
    assert [charge.total for charge in found.charges if charge.item is Item.CONNECTIONS] == [3]


def test_transfer_is_charged_by_the_gb_if_it_has_a_price() -> None:
    usage = [used(1, Stage.BACKLOG_SEND, namespace=SECONDARY, transferred=1_500_000_000)]
    assert sides(november(usage), Item.TRANSFER) == []
    book = parse_prices('transfer_per_gb = 0.02\ncurrency = "USD"\ndate = 2026-01-02\nsource = "x"\n[tiers.standard]')
    found = november(usage, book)
    assert sides(found, Item.TRANSFER) == amounts(("0", "0.03"))
    assert [line.amount for line in found.lines] == [Decimal("0.03")]


# ---- periods ----


def test_months_are_in_utc() -> None:
    east = timezone(timedelta(hours=3))
    found = bill(
        [], BOOK, Contract(), since=datetime(2026, 11, 1, tzinfo=east), until=datetime(2026, 11, 2, tzinfo=east)
    )
    bases = [(charge.month, charge.quantity) for charge in found.charges if charge.item is Item.BASE]
    assert bases == [(date(2026, 10, 1), 3), (date(2026, 11, 1), 21)]


@pytest.mark.parametrize(
    ("since", "until", "error"),
    [
        (datetime(2026, 11, 1), DECEMBER, "since and until must have a time zone"),
        (DECEMBER, NOVEMBER, "until must be later than since"),
        (NOVEMBER, NOVEMBER, "until must be later than since"),
    ],
)
def test_invalid_period_is_refused(since: datetime, until: datetime, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        bill([], BOOK, Contract(), since=since, until=until)


@pytest.mark.parametrize("day", [date(2026, 10, 31), date(2026, 12, 1)])
def test_usage_outside_the_period_is_refused(day: date) -> None:
    with pytest.raises(ValueError, match=f"from 2026-11-01 to 2026-11-30, not on {day}"):
        november([used(1)._replace(day=day)])


def test_a_contract_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="secondary_units must be a whole number from 1 to 64, not 0"):
        Contract(secondary_units=0)
    with pytest.raises(PriceError, match="tier must be one of"):
        november([], primary="gold")


# ---- sharing ----


@given(st.decimals(0, 10**9, places=18), st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
def test_shares_add_up_exactly_and_are_never_negative(total: Decimal, weights: list[int]) -> None:
    if not any(weights):
        assert share(total, weights) == [0] * len(weights)
        return
    shares = share(total, weights)
    assert sum((Decimal(amount).scaleb(18).to_integral_exact() for amount in shares), Decimal(0)) == total.scaleb(18)
    for amount, weight in zip(shares, weights, strict=True):
        assert amount >= 0
        exact = total * weight / sum(weights)
        assert abs(amount - exact) <= Decimal("0.00000000002")


def test_amount_too_small_to_divide_is_given_once() -> None:
    assert share(Decimal("0.0000000000024"), [1, 1, 1, 1]) == [Decimal("0.0000000000024"), 0, 0, 0]


def test_whole_amount_is_not_rounded() -> None:
    amount = Decimal("0.123456789012345678")
    assert prorated(amount, 720, 720) == amount
    assert prorated(amount, 360, 720) == Decimal("0.061728394506")
