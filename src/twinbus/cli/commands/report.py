"""`twinbus report`: reports outages, missing messages and cost from the result tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from twinbus.ledger.ledger_errors import reason_of
from twinbus.spark.pipeline_errors import PipelineError

from ..failures import exit_on_error
from ..options.quantities import decimal
from ..options.storage_options import StorageOption, storage_options

if TYPE_CHECKING:  # it needs libraries of the extra `ledger`
    from twinbus.report.cost.prices import PriceBook
    from twinbus.report.document import Report

_HOUR = timedelta(hours=1)
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


def report(
    source: Annotated[
        str, typer.Argument(metavar="PATH", help="The results of `twinbus pipeline`, or the ledger they come from.")
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML report with plots, in one self-contained file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start, inclusive (UTC): 2026-11-01 or 2026-11-01T13:00.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="End, exclusive (UTC): 2026-11-02 ends with November 1.")
    ] = None,
    primary_tier: Annotated[str, typer.Option(help="Tier of the primary, as in the price book.")] = "standard",
    secondary_tier: Annotated[str, typer.Option(help="Tier of the secondary, as in the price book.")] = "standard",
    primary_units: Annotated[int, typer.Option(help="Messaging units of a Premium primary.")] = 1,
    secondary_units: Annotated[int, typer.Option(help="Messaging units of a Premium secondary.")] = 1,
    two_subscriptions: Annotated[
        bool, typer.Option("--two-subscriptions", help="The namespaces belong to different Azure subscriptions.")
    ] = False,
    subscriptions: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC=N", help="Subscriptions per topic (repeatable)."),
    ] = None,
    transfer_per_gb: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Price of a GB between the two regions.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your own price book (docs/reference/price-book.md).")
    ] = None,
    storage_option: StorageOption = None,
) -> None:
    """Report what happened, whether anything is missing, and what it cost. Needs neither Spark nor Java.

    Example: twinbus report ./ledger --html report.html
    """
    with exit_on_error("twinbus report"):
        from twinbus.report.assemble import Wishes, assemble, open_results
        from twinbus.report.cost.billing import Contract

        contract = Contract(
            primary=primary_tier,
            secondary=secondary_tier,
            primary_units=primary_units,
            secondary_units=secondary_units,
            is_one_subscription=not two_subscriptions,
        )
        book = _book(prices, transfer_per_gb)
        contract.accounts(book)  # raises for unknown tiers before anything is read
        wishes = Wishes(
            book=book,
            contract=contract,
            since=_moment("--since", since),
            until=_moment("--until", until),
            subscriptions=dict(_subscriptions(subscriptions or ())),
            is_detailed=as_json,  # only the JSON shows the details
        )
        results = open_results(source, storage_options(storage_option))
        result = assemble(results, wishes, on_wait=_print_waiting)
        if html is not None:
            _write_html(result, html)
    _print(result, html, as_json)


def _print_waiting() -> None:
    console = Console(stderr=True)
    if console.is_terminal:
        console.print("A pipeline run is writing the results: waiting up to a minute.", highlight=False)


def _book(prices: Path | None, transfer_per_gb: str | None) -> PriceBook:
    from twinbus.report.cost.prices import checked_price, load_prices

    book = load_prices(prices)
    if transfer_per_gb is None:
        return book
    price = checked_price("--transfer-per-gb", decimal("--transfer-per-gb", transfer_per_gb))
    return replace(book, transfer_per_gb=price)


def _moment(option: str, text: str | None) -> datetime | None:
    """Parse a day or a time, UTC unless it has an offset. It must be a whole hour, as results are hourly."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{option} must be a day or a time, such as 2026-11-01 or 2026-11-01T13:00, not {text[:40]!r}"
        ) from None
    if moment < _EARLIEST:
        raise ValueError(f"{option} must be 1970 or later, not {text[:40]!r}")
    if (moment - _EARLIEST) % _HOUR:
        raise ValueError(f"{option} must be a whole hour, because results are hourly, not {text[:40]!r}")
    return moment


def _subscriptions(arguments: Iterable[str]) -> Iterator[tuple[str, int]]:
    for text in arguments:
        topic, _, count = text.rpartition("=")
        if not topic or not (count.isascii() and count.isdigit() and len(count) <= 6):
            raise ValueError(f"--subscriptions must be a topic and a number, such as events=3, not {text[:80]!r}")
        yield topic, int(count)


def _write_html(result: Report, path: Path) -> None:
    """Write the report by renaming a temporary file, so that the file is never incomplete."""
    try:
        from twinbus.report.render.html import render
    except ImportError as error:
        raise PipelineError(
            "an HTML report needs the extra `report`: pip install '.[report]' in a checkout of twinbus"
        ) from error
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(render(result), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise PipelineError(f"{path}: {reason_of(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _print(result: Report, html: Path | None, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result.to_json(), ensure_ascii=False))
        return
    if html is not None:
        typer.echo(f"{result.headline.sentence} {html}")
        return
    from twinbus.report.render.terminal import show

    show(result, Console(highlight=False, markup=False))
