"""What happened, drawn: the whole period, and each of its largest incidents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinbus.report.outages import Outage

from ..document import Report
from ..incidents import Incident, Interval, State, Timeline, states_over_time
from ..stories import incident_story
from . import formats, plots
from .axes import TimeAxis, padded
from .plots import ROWS, Figure

#: How much is drawn; the rest is summed up, and `--json` has all of it.
LANES, INCIDENT_LANES = 24, 16
INCIDENTS = 6
OUTAGE_HEADS = (
    "entity",
    "suspected (UTC)",
    "to fail over",
    "away",
    "to drain",
    "diverted",
    "moved",
    "put aside",
    "pings",
    "in the backlog: half within",
    "longest",
)


def largest(incidents: Sequence[Incident]) -> list[Incident]:
    """The incidents that are drawn one by one: those with the most messages, and those that are not over; in order."""
    ranked = sorted(incidents, key=lambda one: (one.is_over, -one.total("diverted"), -one.began))
    return sorted(ranked[:INCIDENTS], key=lambda one: one.began)


def overview(report: Report) -> Figure | None:
    """The whole period: each entity's states, and the depth of the backlog."""
    if report.period is None or not report.outages:
        return None
    axis = TimeAxis(report.period.since, report.period.until)
    diverted = _diverted(report)
    ranked = sorted(report.timelines, key=lambda one: (-diverted[one.pairing, one.entity], one.entity))
    has_pairings = len({one.pairing for one in report.timelines}) > 1
    lanes = [
        plots.Lane(
            _lane_name(one, has_pairings),
            one.intervals,
            formats.short_number(diverted[one.pairing, one.entity]),
            title=f"{one.entity} ({one.pairing})",
        )
        for one in ranked[:LANES]
    ]
    areas = [_depth_area(report, axis)]
    if len(ranked) > LANES:
        areas.insert(0, _away_area([interval for one in ranked for interval in one.intervals]))
    every = [(_lane_name(one, has_pairings), interval) for one in ranked for interval in one.intervals]
    cells = [(name, plots.interval_text(interval)) for name, interval in every[:ROWS]]
    return Figure(
        plots.TimePlot(axis, lanes, areas, note="diverted").draw(),
        f"Timeline of {len(ranked)} entities with {len(report.outages)} outages, and the depth of the backlog",
        ("entity", "state"),
        cells,
        left_out=len(every) - len(cells),
        caption=_overview_caption(len(ranked)),
    )


def _overview_caption(count: int) -> str:
    if count > LANES:
        return f"of {formats.number(count)} entities that had an outage, those with the most diverted messages"
    return "every entity that had an outage"


def _lane_name(timeline: Timeline, has_pairings: bool) -> str:
    return f"{timeline.entity} · {timeline.pairing}" if has_pairings else timeline.entity


def _diverted(report: Report) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = {}
    for one in report.outages:
        key = one.pairing, one.entity
        sums[key] = sums.get(key, 0) + one.diverted
    return sums


def _depth_area(report: Report, axis: TimeAxis) -> plots.Area:
    within = report.backlog.within(axis.since, axis.until)
    peak = within.peak
    note = f"peak {formats.short_number(peak.depth)}" if peak and peak.depth else "empty"
    return plots.Area("messages in the backlog", within.series, note)


def _away_area(intervals: Sequence[Interval]) -> plots.Area:
    series = states_over_time(intervals, [State.FAILED_OVER])
    most = max((one.depth for one in series), default=0)
    return plots.Area("entities failed over", series, f"most {formats.number(most)}", "away")


@dataclass(frozen=True, slots=True)
class IncidentView:
    incident: Incident
    title: str
    story: Sequence[str]
    figure: Figure


def incident_view(report: Report, incident: Incident) -> IncidentView:
    """One incident, its time axis as wide as the page."""
    until = _end(incident, report.period.until if report.period else incident.began)
    axis = padded(incident.began, max(until, incident.began + formats.MINUTE))
    mine = {(one.pairing, one.entity): one for one in sorted(incident.outages, key=lambda one: one.diverted)}
    timelines = {(one.pairing, one.entity): one for one in report.timelines}
    ranked = sorted(mine.values(), key=lambda one: (-one.diverted, one.entity))
    lanes = [
        plots.Lane(
            one.entity,
            timelines[one.pairing, one.entity].intervals,
            formats.short_number(one.diverted),
            title=f"{one.entity} ({one.pairing})",
        )
        for one in ranked[:INCIDENT_LANES]
    ]
    areas = [_depth_area(report, axis)]
    if len(ranked) > INCIDENT_LANES:
        areas.insert(0, _away_area([interval for key in mine for interval in timelines[key].intervals]))
    cells = [_outage_cells(one) for one in ranked[:ROWS]]
    return IncidentView(
        incident,
        formats.span(incident.began, until) if incident.is_over else f"Since {formats.moment(incident.began)}",
        incident_story(incident),
        Figure(
            plots.TimePlot(axis, lanes, areas, note="diverted").draw(),
            f"Timeline of {len(ranked)} entities in this outage, and the depth of the backlog",
            OUTAGE_HEADS,
            cells,
            left_out=len(ranked) - len(cells),
        ),
    )


def _end(incident: Incident, end: int) -> int:
    """How far an incident is drawn: until it was over or, while it is not, to the end of the period.

    A drain that does not end may go on for weeks: of that only the beginning is drawn, or the outage would be a hair.
    """
    recovered = incident.recovered
    if recovered is None:
        return end
    if incident.is_over:
        return max(recovered, incident.drained or recovered)
    return min(end, recovered + max(4 * (recovered - incident.began), formats.HOUR))


def _outage_cells(outage: Outage) -> tuple[str, ...]:
    over, back, drained = outage.failed_over_at, outage.recovered_at, outage.drained_at
    drain = "not empty"
    if not outage.diverted:
        drain = formats.NONE
    elif drained is not None and back is not None:
        drain = formats.duration(max(0, drained - back))
    return (
        outage.entity,
        formats.moment(outage.suspected_at, seconds=True),
        formats.NONE if over is None else formats.duration(over - outage.suspected_at),
        "not back" if back is None else formats.duration(back - outage.suspected_at),
        drain,
        formats.number(outage.diverted),
        formats.number(outage.moved),
        formats.number(outage.expired + outage.poison),
        formats.number(outage.pings),
        _seconds(outage.backlog_seconds_p50),
        _seconds(outage.backlog_seconds_max),
    )


def _seconds(value: float | None) -> str:
    return formats.NONE if value is None else formats.duration(value * formats.SECOND)
