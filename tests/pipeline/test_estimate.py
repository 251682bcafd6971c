"""Tests the estimate, and the figures in the documentation."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus import SendAvailabilityOptions
from twinbus.ledger.recorder import Stage
from twinbus.pairing.failover.entity_failover import FailedOver, FailoverMachine, Route
from twinbus.report.cost.billing import Contract
from twinbus.report.cost.estimate import (
    DAY,
    HOUR,
    Drain,
    Scenario,
    diverted_messages,
    diverting_seconds,
    drain_of,
    estimate,
    pings_of_outage,
    pings_within,
    polls_within,
)
from twinbus.report.cost.prices import load_prices
from twinbus.tables.billed_units import PAIRING_STAGES

BOOK = load_prices()
STAGES = [stage for stage in Stage if stage is not Stage.LEDGER]


def operations(**fields: Any) -> dict[Stage, int]:
    found = estimate(Scenario(**fields), BOOK)
    return {stage: found.operations(stage) for stage in STAGES}


def drain(contract: Contract | None = None, **fields: Any) -> Drain:
    return drain_of(Scenario(**fields), BOOK, contract or Contract())


# ---- the documents' figures ----


def test_ten_queues_are_40_receives_an_hour_960_a_day_and_28800_in_30_days() -> None:
    scenario = Scenario(backlog_queues=10)
    assert [polls_within(scenario, time) for time in (HOUR, DAY, 30 * DAY)] == [40, 960, 28_800]
    assert operations(backlog_queues=10)[Stage.POLL] == 28_800


def test_poll_of_two_minutes_costs_as_much_as_that_of_the_legacy_client() -> None:
    assert polls_within(Scenario(poll=120), 30 * DAY) == 216_000


@pytest.mark.parametrize(("entities", "clients"), [(1, 1), (3, 1), (1, 4), (5, 7)])
def test_there_is_one_ping_a_minute_for_each_entity_and_client(entities: int, clients: int) -> None:
    scenario = Scenario(entities=entities, clients=clients)
    assert pings_within(scenario, 60) == entities * clients
    assert pings_within(scenario, HOUR) == 60 * entities * clients


def test_a_diverted_message_passes_four_stages_two_of_them_paid_by_pairing() -> None:
    with_it, without = operations(messages=1), operations(messages=0)
    added = {stage: with_it[stage] - without[stage] for stage in STAGES if with_it[stage] != without[stage]}
    # A receive and its settlement are two operations of one stage.
    assert added == {
        Stage.BACKLOG_SEND: 1,
        Stage.BACKLOG_RECEIVE: 2,
        Stage.PRIMARY_SEND: 1,
        Stage.PRIMARY_RECEIVE: 2,
    }
    assert {stage for stage in added if stage in PAIRING_STAGES} == {Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE}


def test_50_gb_of_1_kb_messages_take_standard_about_a_day() -> None:
    found = drain(messages=50 * 1024**3 // 1024, size=1024)
    assert (found.limited_by, found.rate) == ("primary", 500)
    assert found.seconds is not None
    assert 20 * HOUR < found.seconds < 30 * HOUR
    assert found.fastest_seconds == Fraction(52_428_800, 1000)
    assert estimate(Scenario(messages=found.messages), BOOK).backlog.fits


def test_the_defaults_are_those_of_a_pairing() -> None:
    scenario, options = Scenario(), SendAvailabilityOptions()
    assert (scenario.backlog_queues, scenario.poll) == (options.backlog_queue_count, options.syphon.poll)
    assert scenario.ping_interval == options.ping_primary_interval
    assert scenario.failover_interval == options.failover_interval


# ---- outages ----


@given(
    outage=st.integers(1, 4_000),
    failover_interval=st.integers(0, 600),
    ping_interval=st.integers(1, 600),
)
def test_pings_and_diverting_time_match_the_state_machine(
    outage: int, failover_interval: int, ping_interval: int
) -> None:
    scenario = Scenario(outage=outage, failover_interval=failover_interval, ping_interval=ping_interval)
    machine = FailoverMachine(failover_interval, ping_interval)
    machine.sent_failed(0, machine.epoch)
    pings, now = 0, 0.0
    while (at := machine.next_time()) is not None and (at < outage or isinstance(machine.state, FailedOver)):
        now = at
        machine.tick(now)
        if machine.ping_due(now):
            epoch = machine.ping_started(now)
            pings += 1
            (machine.ping_ok if now >= outage else machine.ping_failed)(now, epoch)
    assert machine.route(now).route is Route.PRIMARY
    assert pings == pings_of_outage(scenario)
    assert diverting_seconds(scenario) == (now if pings else outage)


def test_messages_are_diverted_until_a_ping_gets_through() -> None:
    assert diverting_seconds(Scenario(outage=3_600)) == 3_600
    assert diverting_seconds(Scenario(outage=3_601)) == 3_660
    assert diverted_messages(Scenario(outage=3_601, rate=Decimal("0.5"))) == 1_830
    assert diverted_messages(Scenario(outage=30, rate=10)) == 300


def test_links_that_are_opened_are_not_billed() -> None:
    assert pings_of_outage(Scenario(outage=HOUR, is_pinging=False)) == 0
    assert operations(outage=HOUR, entities=5)[Stage.PING] == 5 * 60


def test_a_month_counts_every_message_once_with_or_without_an_outage() -> None:
    quiet, outage = operations(rate=10), operations(rate=10, outage=HOUR)
    assert quiet[Stage.DIRECT] == 10 * 30 * DAY
    assert outage[Stage.DIRECT] + outage[Stage.PRIMARY_SEND] == quiet[Stage.DIRECT]
    assert outage[Stage.PRIMARY_RECEIVE] == quiet[Stage.PRIMARY_RECEIVE] == 2 * quiet[Stage.DIRECT]
    assert outage[Stage.BACKLOG_SEND] == outage[Stage.PRIMARY_SEND] == 36_000


def test_large_messages_and_topics_count_by_units_and_copies() -> None:
    found = operations(messages=10, size=96 * 1024, subscriptions=3)
    assert found[Stage.BACKLOG_SEND] == 20
    assert found[Stage.BACKLOG_RECEIVE] == 30
    assert found[Stage.PRIMARY_SEND] == 10 * 2 * 4
    assert found[Stage.PRIMARY_RECEIVE] == 10 * 3 * 3


# ---- the drain ----


def test_live_traffic_leaves_the_drain_what_it_does_not_take() -> None:
    found = drain(messages=36_000, rate=100)
    assert (found.rate, found.seconds) == (400, 90)


def test_a_drain_beside_too_much_live_traffic_never_ends_and_says_so() -> None:
    found = drain(messages=1, rate=500)
    assert (found.rate, found.seconds, found.never) == (0, None, True)
    assert any("never end" in text for text in estimate(Scenario(messages=1, rate=500), BOOK).warnings)


def test_the_syphons_own_rate_bounds_the_drain() -> None:
    found = drain(messages=1_000, drain_rate=10)
    assert (found.limited_by, found.seconds) == ("drain_rate", 100)


def test_the_secondary_bounds_the_drain_into_premium() -> None:
    found = drain(Contract(primary="premium"), messages=10_000)
    assert (found.limited_by, found.rate, found.seconds) == ("secondary", 1_000, 10)


def test_premium_has_no_known_throttle() -> None:
    found = drain(Contract(primary="premium", secondary="premium"), messages=10_000)
    assert (found.limited_by, found.rate, found.seconds, found.never) == (None, None, None, False)


def test_each_subscription_takes_its_part_of_the_throttle() -> None:
    assert drain(messages=1, subscriptions=3).rate == 250


@given(st.integers(1, 10**9), st.integers(0, 499))
def test_a_longer_backlog_and_more_traffic_never_make_a_drain_shorter(messages: int, rate: int) -> None:
    seconds = drain(messages=messages, rate=rate).seconds
    longer, busier = drain(messages=messages + 1, rate=rate).seconds, drain(messages=messages, rate=rate + 1).seconds
    assert seconds is not None
    assert longer is not None
    assert longer > seconds
    assert busier is None or busier > seconds


# ---- money ----


def test_a_pairing_that_only_waits_costs_nothing_on_standard() -> None:
    found = estimate(Scenario(), BOOK)
    assert (found.bill.pairing, found.bill.application) == (0, Decimal("9.677520"))


def test_the_surcharge_of_an_outage_is_what_its_operations_cost() -> None:
    # 129.6 million sends and 259.2 million receives and settlements: the step of 0.50 a million.
    found = estimate(Scenario(rate=50, outage=2 * HOUR, clients=3), BOOK)
    added = 28_800 + 360 + 360_000 + 720_000 + 3 * 10 + 10 + 3
    assert found.bill.pairing == added * Decimal("0.0000005")
    assert found.bill.application == Decimal("69.6") + (388_800_000 - 100 * 10**6) * Decimal("0.0000005") + Decimal(
        "9.677520"
    )


def test_transfer_counts_what_crosses_the_regions_twice() -> None:
    book = replace(BOOK, transfer_per_gb=Decimal("0.02"))
    found = estimate(Scenario(messages=1_000_000, size=1_000), book)
    assert found.bill.pairing == Decimal("0.04")
    assert found.warnings == []


def test_thousands_of_connections_are_paid_for() -> None:
    found = estimate(Scenario(clients=100, entities=20, syphons=2), BOOK)
    [connections] = [charge for charge in found.bill.charges if charge.item == "connections"]
    assert (connections.quantity, connections.application, connections.pairing) == (2_020, 30, Decimal("0.6"))


# ---- what is said and refused ----


def test_warnings_name_what_would_not_work() -> None:
    found = estimate(Scenario(rate=1_500, outage=11 * HOUR, size=300_000, entities=600, clients=10), BOOK)
    assert [text.split(":")[0].split(",")[0] for text in found.warnings] == [
        "a message of 300",
        "6",
        "the secondary would be throttled",
        "the drain would never end",
        "the backlog queues hold 53",
        "transfer between regions is not counted",
    ]
    assert found.backlog.full_after_seconds == Fraction(53_687_091_200, 450_000_000)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"backlog_queues": 0}, "backlog_queues must be from 1 to 10000, not 0"),
        ({"entities": 0}, "entities must be from 1"),
        ({"clients": -1}, "clients must be from 1"),
        ({"syphons": -1}, "syphons must be from 0"),
        ({"rate": Decimal(-1)}, "rate must be from 0 to 1000000, not -1"),
        ({"rate": Decimal("NaN")}, "rate must be from 0 to 1000000, not NaN"),
        ({"size": 104_857_601}, "size must be from 0 to 104857600"),
        ({"subscriptions": 2_001}, "subscriptions must be from 0 to 2000"),
        ({"messages": -1}, "messages must be from 0"),
        ({"days": 32}, "days must be from 1 to 31, not 32"),
        ({"poll": 0}, "poll must be from 0.001"),
        ({"ping_interval": Fraction(1, 2)}, "ping_interval must be from 1 to 1800, not 1/2"),
        ({"failover_interval": 3_601}, "failover_interval must be from 0 to 3600"),
        ({"drain_rate": 0}, "drain_rate must be from 0.001"),
        ({"outage": 2 * DAY, "days": 1}, "outage must be at most the 1 days to pay for"),
    ],
)
def test_a_scenario_out_of_bounds_is_refused_with_the_field_and_its_bound(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Scenario(**fields)


@pytest.mark.parametrize("fields", [{"rate": 0.5}, {"outage": True}, {"entities": Decimal(1)}, {"days": None}])
def test_floats_and_other_types_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(fields))} must be a whole number"):
        Scenario(**fields)
