"""Print a report on one screen of the terminal, the verdict first."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from twinbus.tables.billed_units import PAIRING_STAGES

from ..cost.period_costs import STAGE_TEXTS, Cost
from ..coverage import is_covered
from ..document import Report
from ..headline import MEANINGS, Tone
from ..incidents import Incident, highest
from ..stories import Card, card_texts, latency_name
from .formats import NONE, clock, day, duration, moment, money, number, printable, span

#: Most rows of each list; the HTML file and `--json` have more.
INCIDENTS, ANOMALIES, LATENCIES = 5, 5, 5
_NARROW, _WIDE = 10, 60
_BACKLOG = "  backlog "
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_NO_DATA = "·"
_STYLES = {Tone.GOOD: "bold green", Tone.CARE: "bold yellow", Tone.BAD: "bold red", Tone.NEUTRAL: "bold"}
_MARKS = {Tone.GOOD: "✓", Tone.CARE: "!", Tone.BAD: "✗", Tone.NEUTRAL: "·"}


def show(report: Report, console: Console) -> None:
    """Print the report. Names are neither read as markup nor sent to the terminal as control characters."""
    tone = report.headline.tone
    console.print(Text(f"{_MARKS[tone]} {report.headline.sentence}", _STYLES[tone]))
    for detail in report.headline.details:
        console.print(Text(f"  {detail}"))
    if report.period:
        console.print(Text(f"  {span(report.period.since, report.seen_until)} UTC", "dim"))
    happened, missing, cost = card_texts(report)
    _head(console, happened)
    _happened(report, console)
    _head(console, missing)
    _missing(report, console)
    _head(console, cost)
    if report.cost:
        _indented(console, _cost_table(report.cost))
    if any(percentiles.entity is None for percentiles in report.latency):
        console.print()
        _indented(console, _latency_table(report))
    for file in report.left_out[:ANOMALIES]:
        console.print(Text(f"  left out: {printable(file.path)}: {printable(file.reason)}", "yellow"))


def _head(console: Console, card: Card) -> None:
    console.print()
    console.print(Text.assemble((card.question, "bold"), f" {card.answer}. {card.more}"))


def _indented(console: Console, table: Table) -> None:
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _table(*heads: str) -> Table:
    """Return an empty table: the first column is text, the others are figures."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left", overflow="fold" if index == 0 else "ellipsis")
    return table


def _happened(report: Report, console: Console) -> None:
    incidents = sorted((*report.incidents, *report.forced_incidents), key=lambda incident: incident.began)
    if not incidents or report.period is None:
        return
    table = _table("began (UTC)", "entities", "to fail over", "away", "to drain", "diverted", "left")
    for incident in incidents[-INCIDENTS:]:
        table.add_row(*_incident_cells(incident))
    _indented(console, table)
    if len(incidents) > INCIDENTS:
        console.print(Text(f"  the newest {INCIDENTS} of {number(len(incidents))}", "dim"))
    peak = report.backlog.peak
    if peak and peak.depth:
        text = f" peak {number(peak.depth)}, {moment(peak.at)}"
        line = sparkline(report, max(_NARROW, min(_WIDE, console.width - len(_BACKLOG) - len(text) - 1)))
        console.print(Text.assemble(_BACKLOG, (line, "blue"), text))


def _incident_cells(incident: Incident) -> list[str]:
    recovered, drained, diverted = incident.recovered, incident.drained, incident.total("diverted")
    left = max(0, diverted - sum(incident.total(name) for name in ("moved", "expired", "poison")))
    return [
        f"{day(incident.began)} {clock(incident.began, seconds=True)}",
        number(len(incident.entities)),
        "by hand" if incident.is_forced else duration(max(incident.waits)) if incident.waits else NONE,
        "not back" if recovered is None else duration(recovered - incident.began),
        duration(max(0, drained - recovered)) if drained is not None and recovered is not None else NONE,
        number(diverted),
        number(left),
    ]


def sparkline(report: Report, width: int) -> str:
    """Draw the depth of the backlog over the period, one character a part; parts without rows are dots."""
    if report.period is None:
        return ""
    since, until = report.period.since, report.seen_until
    length = until - since
    depths = [point.depth for point in highest(report.backlog.series, since, until, width)]
    top = max(depths, default=0) or 1
    steps = len(_HEIGHTS) - 1
    characters = []
    for index, depth in enumerate(depths):
        begin, end = since + length * index // width, since + length * (index + 1) // width
        has_rows = is_covered(report.coverage.spans, begin, end)
        characters.append(_HEIGHTS[-(-depth * steps // top)] if has_rows else _NO_DATA)
    return "".join(characters)


def _missing(report: Report, console: Console) -> None:
    summary = report.summary
    if summary is None:
        return
    words = Text()
    for word in (word for word in MEANINGS if word in summary):
        is_bad = word in ("lost", "unexpected") and summary[word]
        style = "bold red" if is_bad else "" if summary[word] else "dim"
        words.append(" · " if words else "", "dim")
        words.append(f"{word.replace('_', ' ')}\N{NO-BREAK SPACE}{number(summary[word])}", style)
    console.print(Padding(words, (0, 0, 0, 2), expand=False))
    for row in report.anomalies.shown[:ANOMALIES]:
        text = f"{row['word']}: {row['message_id']} to {row['destination']}, last seen {moment(row['last_us'])}"
        console.print(Padding(Text(printable(text), overflow="fold"), (0, 0, 0, 2), expand=False))
    if report.anomalies.count > min(ANOMALIES, len(report.anomalies.shown)):
        more = report.anomalies.count - min(ANOMALIES, len(report.anomalies.shown))
        console.print(Text(f"  and {number(more)} more: --html, --json, or the tables of the results", "dim"))


def _cost_table(cost: Cost) -> Table:
    currency = cost.book.currency
    table = _table(f"{currency}, prices of {cost.book.date}", "billed operations", "application", "pairing")
    for stage, part in cost.stages.items():
        sides = ("", money(part.amount)) if stage in PAIRING_STAGES else (money(part.amount), "")
        table.add_row(STAGE_TEXTS.get(stage, stage.name.lower()), number(part.operations), *sides)
    for charge in cost.bill.charges:
        if charge.item != "operations" and charge.total:
            text = f"{charge.month:%Y-%m} {charge.tier}: {charge.item.value.replace('_', ' ')}"
            table.add_row(text, "", money(charge.application), money(charge.pairing))
    bill = cost.bill
    table.add_row(*(Text(cell, "bold") for cell in ("all", number(cost.whole.operations))), *_bold(bill))
    return table


def _bold(bill: object) -> list[Text]:
    return [Text(money(getattr(bill, side)), "bold") for side in ("application", "pairing")]


def _latency_table(report: Report) -> Table:
    table = _table("latency", "operations", "p50", "p90", "p99", "longest")
    overall = [percentiles for percentiles in report.latency if percentiles.entity is None]
    for percentiles in overall[:LATENCIES]:
        values = (percentiles.p50_us, percentiles.p90_us, percentiles.p99_us, percentiles.max_us)
        table.add_row(latency_name(percentiles), number(percentiles.count), *map(duration, values))
    return table
