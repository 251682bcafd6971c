"""A report as one HTML file: no script, nothing from the network, for phone and desktop, light, dark and print."""

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
from ..stories import card_texts, latency_name, moved_unseen_text
from . import formats, plots
from .cost_figures import cost_view
from .history_figures import incident_view, largest, overview
from .plots import ROWS, Figure

#: Messages that are listed at once; more can be opened.
ANOMALIES = 12
#: Words that have a column of their own whatever there is to tell.
ALWAYS = ("attempted", "acknowledged", "ok", "lost")


def render(report: Report) -> str:
    """The page."""
    return _template().render(
        report=report,
        cards=card_texts(report),
        moved_unseen=moved_unseen_text(report),
        overview=overview(report),
        incidents=[incident_view(report, one) for one in largest(report.incidents)],
        entities=_entities(report.summary),
        cost=cost_view(report.cost) if report.cost else None,
        latency=_latency(report),
        meanings={word: text for word, text in MEANINGS.items() if word in (report.summary or {})},
        version=__version__,
        rows=ROWS,
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
        state_texts=plots.STATE_TEXTS,
    )
    return environment.from_string(_resource("report.html.jinja"))


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _name(text: str) -> Markup:
    """A name or an id from anywhere: without control characters, and kept from turning the text around it."""
    return Markup("<bdi>{}</bdi>").format(formats.printable(text))


@dataclass(frozen=True, slots=True)
class Entities:
    """The entities of a reconciliation: those with something to tell first, the others summed up."""

    shown: Sequence[Mapping[str, Any]]
    others: int
    #: The words that are a column: those that no entity has anything to tell of are left out.
    words: Sequence[str]


def _entities(summary: Mapping[str, Any] | None) -> Entities | None:
    if summary is None or not summary["entities"]:
        return None
    troubles = ("lost", "unexpected", "in_flight", "dead_lettered", "duplicated", "recovered", "attempted")
    every = sorted(summary["entities"], key=lambda one: ([-one[word] for word in troubles], one["entity"]))
    shown = [{"subscriptions": {}, **one} for one in every[:ROWS]]
    words = [word for word in MEANINGS if word in ALWAYS or any(one.get(word) for one in every)]
    return Entities(shown, max(0, len(every) - ROWS), words)


def _latency(report: Report) -> Figure | None:
    """The percentiles of all entities together, by what was done."""
    every = [one for one in report.latency if one.entity is None]
    if not every:
        return None
    rows = [
        plots.Range(
            latency_name(one),
            one.p50_us,
            one.p90_us,
            one.p99_us,
            one.max_us,
            f"{formats.duration(one.p50_us)} · {formats.duration(one.p99_us)}",
        )
        for one in every
    ]
    cells = [
        (
            latency_name(one),
            formats.number(one.count),
            *(formats.duration(value) for value in (one.p50_us, one.p90_us, one.p99_us, one.max_us)),
        )
        for one in every
    ]
    heads = ("operation", "how many", "p50", "p90", "p99", "longest")
    return Figure(plots.ranges(rows), "Latency of operations", heads, cells)
