"""Figures of the history: the whole period, and each of its largest incidents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge

from twinbus.report.outages import Outage

from ..coverage import Span, gaps_between
from ..document import Report
from ..incidents import Incident, Interval, State, Timeline, states_over_time
from ..stories import incident_story
from . import formats, plots
from .axes import TimeAxis, padded
from .plots import ROWS, Figure

#: Limits of what is drawn. The rest is summed up, and `--json` has all of it.
TRACKS, INCIDENT_TRACKS = 24, 16
INCIDENTS = 6
#: Time that the plot of an incident shows at least.
_SHORTEST = 10 * formats.SECOND
OUTAGE_HEADS = (
    "entity",
    "suspected (UTC)",
    "to fail over",
    "away",
    "to drain",
    "diverted",
    "moved",
    "dead-lettered",
    "pings",
    "half left the backlog within",
    "the last one",
)


def largest(incidents: Sequence[Incident]) -> list[Incident]:
    """Return the incidents that get a plot of their own, by start: open ones, then those with the most messages."""
    ranked = sorted(
        incidents,
        key=lambda incident: (incident.is_over, incident.is_forced, -incident.total("diverted"), -incident.began),
    )
    return sorted(ranked[:INCIDENTS], key=lambda incident: incident.began)


def overview(report: Report) -> Figure | None:
    """Draw the states of each entity and the depth of the backlog; None if one plot of an incident shows the same."""
    if report.period is None or len(report.incidents) + len(report.forced_incidents) < 2:
        return None
    axis = TimeAxis(report.period.since, report.seen_until)
    diverted = _diverted(report)
    ranked = sorted(
        report.timelines, key=lambda timeline: (-diverted[timeline.pairing, timeline.entity], timeline.entity)
    )
    has_pairings = len({timeline.pairing for timeline in report.timelines}) > 1
    tracks = [
        plots.Track(
            _track_name(timeline, has_pairings),
            timeline.intervals,
            report.coverage.of(timeline.pairing, timeline.entity),
            formats.short_number(diverted[timeline.pairing, timeline.entity]),
            title=f"{timeline.entity} ({timeline.pairing})",
        )
        for timeline in ranked[:TRACKS]
    ]
    areas = [_depth_area(report, axis)]
    if len(ranked) > TRACKS:
        areas.insert(0, _failed_over_area([interval for timeline in ranked for interval in timeline.intervals]))
    texts = [(_track_name(timeline, has_pairings), text) for timeline in ranked for text in _texts(report, timeline)]
    plot = _time_plot(report, axis, tracks, areas)
    return Figure(
        plot.draw(),
        f"Timeline of {_entities(len(ranked))}, and the depth of the backlog",
        ("entity", "state (UTC)"),
        texts[:ROWS],
        left_out=max(0, len(texts) - ROWS),
        caption=_overview_caption(len(ranked)),
        has_gaps=plot.has_gaps,
    )


def _time_plot(
    report: Report, axis: TimeAxis, tracks: Sequence[plots.Track], areas: Sequence[plots.Area]
) -> plots.TimePlot:
    period = Span(report.period.since, report.seen_until) if report.period else Span(axis.since, axis.until)
    return plots.TimePlot(axis, period, report.coverage.spans, tracks, areas, note="diverted")


def _texts(report: Report, timeline: Timeline) -> Iterator[str]:
    """Yield the states of an entity and the time without rows between them, in words and in order."""
    if report.period is None:
        return
    states = [(interval.since, plots.interval_text(interval)) for interval in timeline.intervals]
    gaps = gaps_between(report.coverage.of(timeline.pairing, timeline.entity), report.period.since, report.seen_until)
    for _, text in merge(states, [(gap.since, plots.gap_text(gap)) for gap in gaps]):
        yield text


def _entities(count: int) -> str:
    return formats.plural(count, "entity", "entities")


def _overview_caption(count: int) -> str:
    if count > TRACKS:
        return f"the {TRACKS} of {formats.number(count)} affected entities with the most diverted messages"
    return "every affected entity"


def _track_name(timeline: Timeline, has_pairings: bool) -> str:
    return f"{timeline.entity} · {timeline.pairing}" if has_pairings else timeline.entity


def _diverted(report: Report) -> dict[tuple[str, str], int]:
    sums: Counter[tuple[str, str]] = Counter()
    for outage in (*report.outages, *report.forced_failovers):
        sums[outage.pairing, outage.entity] += outage.diverted
    return sums


def _depth_area(report: Report, axis: TimeAxis) -> plots.Area:
    within = report.backlog.within(axis.since, axis.until)
    peak = within.peak
    note = f"peak {formats.short_number(peak.depth)}" if peak and peak.depth else "empty"
    return plots.Area("messages in the backlog", within.series, note)


def _failed_over_area(intervals: Sequence[Interval]) -> plots.Area:
    series = states_over_time(intervals, [State.FAILED_OVER, State.FORCED])
    most = max((point.depth for point in series), default=0)
    return plots.Area("entities failed over", series, f"peak {formats.number(most)}", "away")


@dataclass(frozen=True, slots=True)
class IncidentView:
    incident: Incident
    title: str
    story: Sequence[str]
    figure: Figure


def incident_view(report: Report, incident: Incident) -> IncidentView:
    """Return the view of one incident; its time axis fills the width."""
    until = _end(incident, _known_end(report, incident))
    axis = _incident_axis(report, incident.began, until)
    outages = {
        (outage.pairing, outage.entity): outage
        for outage in sorted(incident.outages, key=lambda outage: outage.diverted)
    }
    timelines = {(timeline.pairing, timeline.entity): timeline for timeline in report.timelines}
    ranked = sorted(outages.values(), key=lambda outage: (-outage.diverted, outage.entity))
    tracks = [
        plots.Track(
            outage.entity,
            timelines[outage.pairing, outage.entity].intervals,
            report.coverage.of(outage.pairing, outage.entity),
            formats.short_number(outage.diverted),
            title=f"{outage.entity} ({outage.pairing})",
        )
        for outage in ranked[:INCIDENT_TRACKS]
    ]
    areas = [_depth_area(report, axis)]
    if len(ranked) > INCIDENT_TRACKS:
        areas.insert(0, _failed_over_area([interval for key in outages for interval in timelines[key].intervals]))
    plot = _time_plot(report, axis, tracks, areas)
    title = formats.span(incident.began, until) if incident.is_over else f"since {formats.moment(incident.began)}"
    return IncidentView(
        incident,
        f"Failed over by hand: {title}" if incident.is_forced else title[0].upper() + title[1:],
        incident_story(incident),
        Figure(
            plot.draw(),
            f"Timeline of {_entities(len(ranked))}, and the depth of the backlog",
            OUTAGE_HEADS,
            [_outage_cells(outage) for outage in ranked[:ROWS]],
            left_out=max(0, len(ranked) - ROWS),
            has_gaps=plot.has_gaps,
        ),
    )


def _known_end(report: Report, incident: Incident) -> int:
    """Return where the plot of an open incident ends: now, but with no longer time without rows than with rows."""
    last = report.coverage.last
    if report.period is None or last is None:
        return incident.began
    return min(report.seen_until, last + max(0, last - incident.began))


def _incident_axis(report: Report, began: int, until: int) -> TimeAxis:
    """The time of an incident with some room on both sides, but not after the report was made."""
    axis = padded(began, max(until, began + _SHORTEST))
    return TimeAxis(axis.since, max(until, min(axis.until, report.seen_until)))


def _end(incident: Incident, end: int) -> int:
    """Return where the plot of an incident ends: when it was over, or at `end` if it is not.

    A drain that does not end may last for weeks. Only its beginning is drawn, so that the outage stays visible.
    """
    recovered = incident.recovered
    if recovered is None:
        return end
    if incident.is_over:
        return max(recovered, incident.drained or recovered)
    return min(end, recovered + max(4 * (recovered - incident.began), formats.HOUR))


def _outage_cells(outage: Outage) -> tuple[str, ...]:
    over = None if outage.is_forced else outage.failed_over_at
    back, drained = outage.recovered_at, outage.drained_at
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
