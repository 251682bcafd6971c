"""Render a report as one HTML file without scripts and network requests, for phone, desktop, light, dark and print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from twinbus import __version__

from ..document import Report
from ..headline import MEANINGS
from ..stories import card_texts, latency_name, moved_unseen_text, no_data_text, not_drawn_text
from . import formats, plots
from .cost_figures import cost_view
from .history_figures import incident_view, largest, overview
from .plots import ROWS, Figure

#: Messages that are listed at once; a click opens the others.
ANOMALIES = 12
#: Times without rows that are listed.
GAPS = 5
#: Words that always have a column.
ALWAYS = ("attempted", "acknowledged", "ok", "lost")


def render(report: Report) -> str:
    """Return the page."""
    incidents = [*report.incidents, *report.forced_incidents]
    history = overview(report)
    views = [incident_view(report, incident) for incident in largest(incidents)]
    figures = [view.figure for view in views] + ([history] if history else [])
    words = {word: text for word, text in MEANINGS.items() if word in (report.summary or {})}
    return _template().render(
        report=report,
        cards=card_texts(report),
        moved_unseen=moved_unseen_text(report),
        overview=history,
        incidents=views,
        not_drawn=not_drawn_text(incidents, [view.incident for view in views]),
        states=_states(report),
        has_gaps=any(drawn.has_gaps for drawn in figures),
        no_data=no_data_text(report),
        entities=_entities(report.summary),
        cost=cost_view(report.cost) if report.cost else None,
        latency=_latency(report),
        tiles_shown={word: text for word, text in words.items() if report.summary and report.summary[word]},
        zero_tiles={word: text for word, text in words.items() if report.summary and not report.summary[word]},
        version=__version__,
        rows=ROWS,
        gaps=GAPS,
        anomalies=ANOMALIES,
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        number=formats.number,
        duration=formats.duration,
        moment=formats.moment,
        money=formats.money,
        name=_name,
    )
    environment.globals.update(
        span=formats.span,
        plural=formats.plural,
        style=Markup(_resource("report.css")),
        no_data_word=plots.NO_DATA,
    )
    return environment.from_string(_resource("report.html.jinja"))


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _name(text: str) -> Markup:
    """Return a name or an id without control characters, and isolated so that it cannot reverse the text around it."""
    return Markup("<bdi>{}</bdi>").format(formats.printable(text))


@dataclass(frozen=True, slots=True)
class Entities:
    """The entities of a reconciliation, the worst first; those beyond the limit are counted."""

    shown: Sequence[Mapping[str, Any]]
    others: int
    #: The columns: words that are zero for every entity are left out.
    words: Sequence[str]


def _entities(summary: Mapping[str, Any] | None) -> Entities | None:
    if summary is None or not summary["entities"]:
        return None
    troubles = ("lost", "unexpected", "in_flight", "dead_lettered", "duplicated", "recovered", "attempted")
    ranked = sorted(summary["entities"], key=lambda row: ([-row[word] for word in troubles], row["entity"]))
    shown = [{"subscriptions": {}, **row} for row in ranked[:ROWS]]
    words = [word for word in MEANINGS if word in ALWAYS or any(row.get(word) for row in ranked)]
    return Entities(shown, max(0, len(ranked) - ROWS), words)


def _states(report: Report) -> dict[str, str]:
    """The states that occur, with their names, for the legend."""
    occurring = {interval.state for timeline in report.timelines for interval in timeline.intervals}
    return {state.value: text for state, text in plots.STATE_TEXTS.items() if state in occurring}


def _latency(report: Report) -> Figure | None:
    """Draw the percentiles of all entities together, by kind of operation."""
    rows = [
        plots.Range(
            latency_name(percentiles),
            percentiles.count,
            percentiles.p50_us,
            percentiles.p90_us,
            percentiles.p99_us,
            percentiles.max_us,
        )
        for percentiles in report.latency
        if percentiles.entity is None
    ]
    if not rows:
        return None
    cells = [
        (row.name, formats.number(row.count), *map(formats.duration, (row.p50, row.p90, row.p99, row.longest)))
        for row in rows
    ]
    heads = ("operation", "operations", "p50", "p90", "p99", "longest")
    return Figure(plots.ranges(rows), "Latency of operations", heads, cells)
