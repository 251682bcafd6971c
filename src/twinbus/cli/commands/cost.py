"""`twinbus cost`: estimates the bill of a pairing."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from twinbus.ledger.recorder import Stage

from ..failures import exit_on_error
from ..options.quantities import byte_count, decimal, seconds
from ..text import counted

if TYPE_CHECKING:  # imported when a command runs
    from twinbus.report.cost.billing import Bill
    from twinbus.report.cost.estimate import Estimate

_CENT = Decimal("0.01")
#: Amounts below a cent are shown to this precision.
_SMALL = Decimal("0.000001")
_STAGES = {
    Stage.DIRECT: "sent to the primary",
    Stage.PRIMARY_SEND: "diverted: sent to the primary",
    Stage.PRIMARY_RECEIVE: "received and settled",
    Stage.POLL: "polls of the backlog queues",
    Stage.PING: "pings",
    Stage.BACKLOG_SEND: "diverted: sent to the backlog",
    Stage.BACKLOG_RECEIVE: "diverted: received from the backlog and settled",
    Stage.MANAGE: "managing the backlog queues",
}

app = typer.Typer(no_args_is_help=True)


@app.callback()
def cost() -> None:
    """Estimate what a pairing costs."""


def _option(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text)


@app.command()
def estimate(
    backlog_queues: Annotated[int, typer.Option(help="Number of backlog queues.")] = 10,
    entities: Annotated[int, typer.Option(help="Number of queues and topics that messages are sent to.")] = 1,
    clients: Annotated[int, typer.Option(help="Number of sending processes.")] = 1,
    syphons: Annotated[int, typer.Option(help="Number of syphon processes; each polls every backlog queue.")] = 1,
    rate: Annotated[str, _option("NUMBER", "Messages per second, from all clients to all entities.")] = "0",
    message_size: Annotated[
        str, typer.Option("--size", metavar="SIZE", help="Size of a message, such as 900 (bytes) or 96KB.")
    ] = "1KB",
    subscriptions: Annotated[int, typer.Option(help="Subscriptions per topic; 0 for queues.")] = 0,
    outage: Annotated[str, _option("DURATION", "How long the primary is down, such as 90m or 1h30m.")] = "0",
    messages: Annotated[
        int | None, typer.Option(help="Number of diverted messages. Default: all of the outage.")
    ] = None,
    days: Annotated[int, typer.Option(help="Days to bill, 1 to 31.")] = 30,
    poll: Annotated[str, _option("DURATION", "How long a receive of the syphon waits for a message.")] = "15m",
    ping_interval: Annotated[str, _option("DURATION", "Time between pings.")] = "1m",
    failover_interval: Annotated[str, _option("DURATION", "Time from the first failure to the failover.")] = "1m",
    link_probe: Annotated[bool, typer.Option("--link-probe", help="Probe by opening links instead of pings.")] = False,
    connections: Annotated[
        int | None, typer.Option(help="Connections of the application. Default: one per client and entity.")
    ] = None,
    drain_rate: Annotated[str | None, _option("NUMBER", "Most messages per second that the syphon moves.")] = None,
    primary_tier: Annotated[str, typer.Option(help="Tier of the primary, as in the price book.")] = "standard",
    secondary_tier: Annotated[str, typer.Option(help="Tier of the secondary, as in the price book.")] = "standard",
    primary_units: Annotated[int, typer.Option(help="Messaging units of a Premium primary.")] = 1,
    secondary_units: Annotated[int, typer.Option(help="Messaging units of a Premium secondary.")] = 1,
    two_subscriptions: Annotated[
        bool, typer.Option("--two-subscriptions", help="The namespaces belong to different Azure subscriptions.")
    ] = False,
    transfer_per_gb: Annotated[str | None, _option("NUMBER", "Price of a GB between the two regions.")] = None,
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your own price book (docs/reference/price-book.md).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
) -> None:
    """Estimate the monthly bill of a pairing, and how long a drain takes. Needs no ledger.

    Example: twinbus cost estimate --backlog-queues 10 --clients 3 --rate 50 --outage 2h
    """
    from twinbus.report.cost.billing import Contract
    from twinbus.report.cost.estimate import Scenario
    from twinbus.report.cost.estimate import estimate as estimate_cost
    from twinbus.report.cost.prices import checked_price, load_prices

    with exit_on_error("twinbus cost"):
        book = load_prices(prices)
        if transfer_per_gb is not None:
            price = checked_price("--transfer-per-gb", decimal("--transfer-per-gb", transfer_per_gb))
            book = replace(book, transfer_per_gb=price)
        scenario = Scenario(
            backlog_queues=backlog_queues,
            entities=entities,
            clients=clients,
            syphons=syphons,
            rate=decimal("--rate", rate),
            size=byte_count("--size", message_size),
            subscriptions=subscriptions,
            outage=seconds("--outage", outage),
            messages=messages,
            days=days,
            poll=seconds("--poll", poll),
            ping_interval=seconds("--ping-interval", ping_interval),
            failover_interval=seconds("--failover-interval", failover_interval),
            is_pinging=not link_probe,
            connections=connections,
            drain_rate=None if drain_rate is None else decimal("--drain-rate", drain_rate),
        )
        contract = Contract(
            primary=primary_tier,
            secondary=secondary_tier,
            primary_units=primary_units,
            secondary_units=secondary_units,
            is_one_subscription=not two_subscriptions,
        )
        result = estimate_cost(scenario, book, contract)
    if as_json:
        typer.echo(json.dumps(as_object(result), ensure_ascii=False))
    else:
        _print(result)


def as_object(result: Estimate) -> dict[str, Any]:
    """Return the estimate as a JSON object (docs/reference/cost-estimate.md). Amounts are strings: no digit is lost."""
    from twinbus.report.cost import estimate as of
    from twinbus.tables.billed_units import PAIRING_STAGES, units_of

    scenario, drain, book = result.scenario, result.drain, result.book
    units = units_of(scenario.size)
    operations = {stage: result.operations(stage) for stage in _STAGES}
    return {
        "prices": {"currency": book.currency, "date": book.date.isoformat(), "source": book.source},
        "polls": {
            "seconds": _plain(Fraction(scenario.poll)),
            "hour": of.polls_within(scenario, of.HOUR),
            "day": of.polls_within(scenario, of.DAY),
            "days_30": of.polls_within(scenario, of.MONTH_DAYS * of.DAY),
        },
        "pings": {
            "seconds": _plain(Fraction(scenario.ping_interval)),
            "minute": of.pings_within(scenario, 60),
            "hour": of.pings_within(scenario, of.HOUR),
            "outage": of.pings_of_outage(scenario),
        },
        "diverted_message": {"stages": 4, "operations": 4 * units + 2, "pairing": 2 * units + 1},
        "diverted": {
            "seconds": _plain(of.diverting_seconds(scenario)),
            "messages": drain.messages,
            "bytes": drain.bytes,
        },
        "backlog": {
            "capacity_bytes": result.backlog.capacity_bytes,
            "fits": result.backlog.fits,
            "full_after_seconds": _plain(result.backlog.full_after_seconds),
        },
        "drain": {
            "seconds": _plain(drain.seconds),
            "fastest_seconds": _plain(drain.fastest_seconds),
            "rate": _plain(drain.rate),
            "limited_by": drain.limited_by,
        },
        "operations": {
            "application": {stage.name.lower(): operations[stage] for stage in _STAGES if stage not in PAIRING_STAGES},
            "pairing": {stage.name.lower(): operations[stage] for stage in _STAGES if stage in PAIRING_STAGES},
        },
        "cost": {"days": scenario.days, **_bill_object(result.bill)},
        "warnings": result.warnings,
    }


def _bill_object(bill: Bill) -> dict[str, Any]:
    return {
        "application": _money(bill.application),
        "pairing": _money(bill.pairing),
        "total": _money(bill.total),
        "items": [
            {
                "tier": charge.tier,
                "item": charge.item.value,
                "quantity": _money(charge.quantity),
                "application": _money(charge.application),
                "pairing": _money(charge.pairing),
            }
            for charge in bill.charges
        ],
    }


def _plain(number: Fraction | None) -> int | float | None:
    if number is None:
        return None
    return number.numerator if number.denominator == 1 else round(float(number), 6)


def _money(amount: Decimal) -> str:
    return f"{amount.normalize():f}"


def _print(result: Estimate) -> None:
    from twinbus.report.cost import estimate as of

    scenario, drain = result.scenario, result.drain
    console = Console(highlight=False, markup=False)
    spans = (of.HOUR, of.DAY, of.MONTH_DAYS * of.DAY)
    hour, day, month = (of.polls_within(scenario, span) for span in spans)
    queues = counted(scenario.backlog_queues, "queue")
    console.print(f"polls of {queues}: {hour:,} per hour, {day:,} per day, {month:,} in 30 days")
    console.print(
        f"pings while every entity is failed over: {of.pings_within(scenario, of.HOUR):,} per hour;"
        f" in this outage {of.pings_of_outage(scenario):,}"
    )
    if drain.messages:
        console.print(f"diverted: {counted(drain.messages, 'message')}, {counted(drain.bytes, 'byte')}")
        console.print(f"drain: {_drain_text(result)}")
    console.print()
    console.print(_operations_table(result))
    console.print()
    console.print(_cost_table(result.bill, result.book.currency, scenario.days))
    console.print(f"\nprices of {result.book.date}: {result.book.source}")
    for warning in result.warnings:
        typer.echo(f"twinbus cost: {warning}", err=True)


def _drain_text(result: Estimate) -> str:
    drain = result.drain
    if drain.never:
        return "would never end"
    if drain.seconds is None or drain.rate is None:
        return "as fast as the machines allow; these tiers have no throttle"
    limit = {
        "primary": "by the primary's throttle, which live traffic and receivers share",
        "secondary": "by the secondary's throttle",
        "drain_rate": "by the syphon's own rate",
    }[drain.limited_by or ""]
    return f"{_time_text(drain.seconds)}, at {float(drain.rate):,.0f} per second, limited {limit}"


def _time_text(seconds: Fraction) -> str:
    minutes = -(-seconds // 60)
    if seconds < 120:
        return f"{float(seconds):.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"


def _operations_table(result: Estimate) -> Table:
    from twinbus.tables.billed_units import PAIRING_STAGES

    table = Table("billed operations", box=None, pad_edge=False)
    table.add_column("application", justify="right")
    table.add_column("pairing", justify="right")
    for stage, text in _STAGES.items():
        count = f"{result.operations(stage):,}"
        table.add_row(text, *(("", count) if stage in PAIRING_STAGES else (count, "")))
    return table


def _cost_table(bill: Bill, currency: str, days: int) -> Table:
    table = Table(f"{currency} in {counted(days, 'day')}", box=None, pad_edge=False)
    for name in ("quantity", "application", "pairing"):
        table.add_column(name, justify="right")
    for charge in bill.charges:
        text = f"{charge.tier}: {charge.item.value.replace('_', ' ')}"
        table.add_row(text, _quantity(charge.quantity), _amount(charge.application), _amount(charge.pairing))
    table.add_row("total", "", _amount(bill.application), _amount(bill.pairing))
    return table


def _quantity(quantity: Decimal) -> str:
    is_whole = quantity == quantity.to_integral_value()
    return f"{quantity:,.0f}" if is_whole else f"{quantity:,.3f}"


def _amount(amount: Decimal) -> str:
    """Format to the cent; smaller amounts with more digits, so that they do not show as nothing."""
    digits = _CENT if amount >= _CENT or not amount else _SMALL
    return f"{amount.quantize(digits, ROUND_HALF_UP):,f}"
