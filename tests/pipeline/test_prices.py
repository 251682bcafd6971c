"""Tests the price book: the shipped prices, scales, and errors."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.report.cost.prices import (
    MILLION,
    PriceBook,
    PriceError,
    Scale,
    Step,
    checked_price,
    load_prices,
    parse_prices,
)

LEAST = """
currency = "EUR"
date = 2026-01-02
source = "our contract"
[tiers.standard]
"""


def steps(draw: st.DrawFn) -> tuple[Step, ...]:
    borders = sorted(draw(st.sets(st.integers(0, 60), min_size=1, max_size=4)))
    prices = st.decimals(0, 5, places=3)
    return tuple(Step(above, draw(prices)) for above in borders)


scales = st.composite(lambda draw: Scale(draw(st.sampled_from((1, MILLION))), steps(draw)))()


def cost_of_one(scale: Scale, number: int) -> Decimal:
    """Return the price of one unit of a month, by its 1-based number."""
    reached = [step for step in scale.steps if number > step.above]
    return reached[-1].price / scale.per if reached else Decimal(0)


# ---- the shipped book ----


def test_the_shipped_book_has_the_prices_of_the_specification_to_the_digit() -> None:
    book = load_prices()
    assert (book.currency, book.date, book.source) == ("USD", date(2026, 10, 5), "Retail price list, UK South")
    assert list(book.tiers) == ["basic", "standard", "premium"]
    basic, standard, premium = book.tiers.values()
    assert str(standard.base_per_hour) == "0.013441"
    assert standard.operations.included == 13_000_000
    assert [(step.above, str(step.price)) for step in standard.operations.steps] == [
        (13_000_000, "0.80"),
        (100_000_000, "0.50"),
        (2_500_000_000, "0.20"),
    ]
    assert [(step.above, str(step.price)) for step in standard.connections.steps] == [
        (1_000, "0.03"),
        (100_000, "0.025"),
        (500_000, "0.015"),
    ]
    assert [(step.above, str(step.price)) for step in basic.operations.steps] == [(0, "0.05")]
    assert basic.base_per_hour == basic.unit_per_hour == standard.unit_per_hour == premium.base_per_hour == 0
    assert str(premium.unit_per_hour) == "0.9275"
    assert premium.operations.included is None


def test_the_shipped_book_has_the_quotas_of_the_specification() -> None:
    basic, standard, premium = load_prices().tiers.values()
    assert standard.limits.message_bytes == basic.limits.message_bytes == 256 * 1024
    assert premium.limits.message_bytes == 100 * 1024 * 1024
    assert standard.limits.queue_bytes == 5 * 1024**3
    assert (standard.limits.connections, standard.limits.credits_per_second) == (5_000, 1_000)
    assert premium.limits.credits_per_second is None


def test_price_of_transfer_is_given_by_the_user() -> None:
    assert load_prices().transfer_per_gb is None
    assert parse_prices("transfer_per_gb = 0.02\n" + LEAST).transfer_per_gb == Decimal("0.02")


@pytest.mark.parametrize(
    ("operations", "amount"),
    [
        (0, "0"),
        (13_000_000, "0"),
        (13_000_001, "0.0000008"),
        (100_000_000, "69.6"),
        (100_000_001, "69.6000005"),
        (2_500_000_000, "1269.6"),
        (2_500_000_001, "1269.6000002"),
        (3_500_000_000, "1469.6"),
    ],
)
def test_standard_operations_cost_the_price_of_their_steps(operations: int, amount: str) -> None:
    assert load_prices().tier("standard").operations.charge(operations) == Decimal(amount)


@pytest.mark.parametrize(
    ("connections", "amount"),
    [(1_000, "0"), (1_001, "0.03"), (100_000, "2970"), (500_001, "12970.015"), (Decimal("1000.5"), "0.015")],
)
def test_standard_connections_cost_the_price_of_their_steps(connections: int | Decimal, amount: str) -> None:
    assert load_prices().tier("standard").connections.charge(connections) == Decimal(amount)


# ---- scales ----


@given(scales, st.integers(0, 100))
def test_charge_is_the_sum_of_the_prices_of_each_operation(scale: Scale, quantity: int) -> None:
    assert scale.charge(quantity) == sum(cost_of_one(scale, number) for number in range(1, quantity + 1))


@given(scales, st.integers(0, 100), st.integers(0, 100))
def test_larger_quantity_never_costs_less(scale: Scale, quantity: int, more: int) -> None:
    assert scale.charge(quantity) <= scale.charge(quantity + more)


@given(scales, st.integers(0, 200))
def test_a_charge_is_the_sum_of_its_parts_between_the_borders(scale: Scale, quantity: int) -> None:
    borders = [0, *(min(step.above, quantity) for step in scale.steps), quantity]
    parts = [scale.charge(end) - scale.charge(start) for start, end in pairwise(borders)]
    assert sum(parts) == scale.charge(quantity)
    for (start, end), part in zip(pairwise(borders), parts, strict=True):
        # Between two borders there is one price.
        assert part == (end - start) * (cost_of_one(scale, end) if end else 0)


@given(st.integers(0, 10**15))
def test_no_quantity_is_rounded(quantity: int) -> None:
    scale = Scale(MILLION, (Step(0, Decimal("0.000000000001")),))
    assert scale.charge(quantity) * 10**18 == quantity


# ---- a book of one's own ----


def test_shortest_valid_book() -> None:
    book = parse_prices(LEAST)
    assert book.tier("standard").operations.charge(10**9) == 0
    assert book.tier("standard").limits.credits_per_second is None


def test_a_book_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(LEAST + "operations = [{ above = 0, per_million = 1 }]\n")
    assert load_prices(file).tier("standard").operations.charge(3_000_000) == 3


def test_an_unknown_tier_is_refused_with_the_known_ones() -> None:
    book: PriceBook = load_prices()
    with pytest.raises(PriceError, match="tier must be one of basic, standard, premium, not 'gold'"):
        book.tier("gold")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[", "not TOML"),
        ("a = 1e999999999999999999999999", "not TOML: a number with an impossible exponent"),
        (LEAST.replace('"EUR"', '"euro"'), "currency must be three capital letters, such as USD, not 'euro'"),
        (LEAST.replace('currency = "EUR"', ""), "currency is missing"),
        (LEAST.replace("2026-01-02", '"2026-01-02"'), "date must be a date, such as 2026-10-05, not '2026-01-02'"),
        (LEAST.replace("2026-01-02", "2026-01-02T00:00:00Z"), "date must be a date"),
        (LEAST.replace("our contract", ""), "source must be one line of 1 to 500 characters"),
        (
            "colour = 1\n" + LEAST,
            "colour is not a known field; known are currency, date, source, transfer_per_gb, tiers",
        ),
        ("transfer_per_gb = -0.1\n" + LEAST, "transfer_per_gb must be from 0 to 1000000, not -0.1"),
        ("transfer_per_gb = inf\n" + LEAST, "transfer_per_gb must be from 0 to 1000000, not Infinity"),
        ("transfer_per_gb = nan\n" + LEAST, "transfer_per_gb must be from 0 to 1000000, not NaN"),
        (LEAST.replace("[tiers.standard]", "tiers = {}"), "tiers must have at least one tier"),
        (LEAST.replace("[tiers.standard]", "tiers = 1"), "tiers must be a table, not 1"),
        (LEAST.replace("standard", "'Gold Plus'"), "tiers.Gold Plus must be a name of small letters"),
        (LEAST + 'base_per_hour = "1"', "tiers.standard.base_per_hour must be a number, not '1'"),
        (LEAST + "unit_per_hour = true", "tiers.standard.unit_per_hour must be a number, not True"),
        (LEAST + "base_per_hour = 0.0000000000001", "base_per_hour must have at most 12 decimals, not 1E-13"),
        (LEAST + "operations = []", "tiers.standard.operations must be a list of steps, such as"),
        (LEAST + "operations = [{ above = -1, per_million = 1 }]", "operations[0].above must be a whole number from 0"),
        (LEAST + "operations = [{ per_million = 1 }]", "operations[0].above is missing"),
        (LEAST + "operations = [{ above = 0 }]", "tiers.standard.operations[0].per_million is missing"),
        (LEAST + "connections = [{ above = 0, each = 1, for = 2 }]", "connections[0].for is not a known field"),
        (
            LEAST + "connections = [{ above = 5, each = 1 }, { above = 5, each = 2 }]",
            "tiers.standard.connections[1].above must be more than 5, not 5",
        ),
        (LEAST + "limits = { credits_per_second = 0 }", "limits.credits_per_second must be a whole number from 1 to"),
        (LEAST + "limits = { speed = 1 }", "tiers.standard.limits.speed is not a known field"),
    ],
)
def test_a_bad_book_is_refused_with_the_field_and_its_bound(text: str, error: str) -> None:
    with pytest.raises(PriceError) as raised:
        parse_prices(text, "ours.toml")
    assert str(raised.value).startswith("ours.toml: ")
    assert error in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(PriceError, match="No such file"):
        load_prices(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PriceError, match="must be UTF-8 text"):
        load_prices(tmp_path / "bytes.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * 1_000_001)
    with pytest.raises(PriceError, match="at most 1,000,000 bytes"):
        load_prices(tmp_path / "large.toml")


def test_float_is_refused_as_a_price() -> None:
    with pytest.raises(PriceError, match="price must be a number"):
        checked_price("price", 0.1)
