"""`twinbus report`: what happened, whether anything is missing, and what it cost."""

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

from twinbus.ledger.errors import reason_of
from twinbus.pipeline.errors import PipelineError

from .failing import failing
from .quantities import decimal

if TYPE_CHECKING:  # it needs libraries of the extra `ledger`, which other commands do without
    from twinbus.pipeline.prices import PriceBook
    from twinbus.pipeline.report.document import Report

_HOUR = timedelta(hours=1)
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


def report(
    source: Annotated[
        str, typer.Argument(metavar="PATH", help="The results of `twinbus pipeline`, or the ledger they were made of.")
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one HTML file with plots; it needs no network.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only from then on, UTC: 2026-11-01 or 2026-11-01T13:00.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only before then, UTC: a day that is named is not included.")
    ] = None,
    primary_tier: Annotated[str, typer.Option(help="A tier of the price book.")] = "standard",
    secondary_tier: Annotated[str, typer.Option(help="A tier of the price book.")] = "standard",
    primary_units: Annotated[int, typer.Option(help="Messaging units, if it is Premium.")] = 1,
    secondary_units: Annotated[int, typer.Option(help="Messaging units, if it is Premium.")] = 1,
    two_subscriptions: Annotated[
        bool, typer.Option("--two-subscriptions", help="The namespaces belong to different subscriptions.")
    ] = False,
    subscriptions: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC=N", help="So many subscriptions a topic has. May be given again."),
    ] = None,
    transfer_per_gb: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="What a GB between the two regions costs.")
    ] = None,
    prices: Annotated[Path | None, typer.Option(metavar="FILE", help="Your own price book (docs/cost.md).")] = None,
) -> None:
    """What happened, whether anything is missing, and what it cost. Needs neither Spark nor Java.

    Example: twinbus report ./ledger --html report.html
    """
    with failing("twinbus report"):
        from twinbus.pipeline.billing import Contract
        from twinbus.pipeline.report.assemble import Wishes, assemble, open_results

        contract = Contract(
            primary=primary_tier,
            secondary=secondary_tier,
            primary_units=primary_units,
            secondary_units=secondary_units,
            is_one_subscription=not two_subscriptions,
        )
        book = _book(prices, transfer_per_gb)
        contract.accounts(book)  # refuses unknown tiers before anything is read
        wishes = Wishes(
            book=book,
            contract=contract,
            since=_moment("--since", since),
            until=_moment("--until", until),
            subscriptions=dict(_subscriptions(subscriptions or ())),
            is_detailed=as_json,  # only there is it shown
        )
        found = assemble(open_results(source), wishes)
        if html is not None:
            _write_html(found, html)
    _print(found, html, as_json)


def _book(prices: Path | None, transfer_per_gb: str | None) -> PriceBook:
    from twinbus.pipeline.prices import checked_price, load_prices

    book = load_prices(prices)
    if transfer_per_gb is None:
        return book
    price = checked_price("--transfer-per-gb", decimal("--transfer-per-gb", transfer_per_gb))
    return replace(book, transfer_per_gb=price)


def _moment(option: str, text: str | None) -> datetime | None:
    """A day or a time, UTC unless it has an offset. Results are kept by the hour, so an hour must be whole."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{option} must be a day or a time, such as 2026-11-01 or 2026-11-01T13:00, not {text[:40]!r}"
        ) from None
    if found < _EARLIEST:
        raise ValueError(f"{option} must not be before 1970, not {text[:40]!r}")
    if (found - _EARLIEST) % _HOUR:
        raise ValueError(f"{option} must be a whole hour, for results are kept by the hour, not {text[:40]!r}")
    return found


def _subscriptions(given: Iterable[str]) -> Iterator[tuple[str, int]]:
    for one in given:
        topic, _, count = one.rpartition("=")
        if not topic or not (count.isascii() and count.isdigit() and len(count) <= 6):
            raise ValueError(f"--subscriptions must be a topic and a number, such as events=3, not {one[:80]!r}")
        yield topic, int(count)


def _write_html(found: Report, path: Path) -> None:
    """The file appears whole, or not at all."""
    try:
        from twinbus.pipeline.report.html import render
    except ImportError as error:
        raise PipelineError("an HTML report needs jinja2: pip install 'twinbus[report]'") from error
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(render(found), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise PipelineError(f"{path}: {reason_of(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _print(found: Report, html: Path | None, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
        return
    if html is not None:
        typer.echo(f"{found.headline.sentence} {html}")
        return
    from twinbus.pipeline.report.terminal import show

    show(found, Console(highlight=False, markup=False))
