"""Plots as SVG and HTML that fit any width: positions are percentages, and text keeps its size on a phone.

There is no script, and colours are classes of the style sheet, so one plot serves light, dark and print. `tag` escapes
everything that is not a literal, because names come from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from typing import NamedTuple

from markupsafe import Markup, escape

from ..coverage import Span
from ..incidents import Depth, Interval, State, highest
from .axes import LogAxis, Tick, TimeAxis, count_ticks
from .formats import at, clock, duration, moment, number, printable, short_number

#: Columns of a time plot. Each column of an area shows its highest point, so no peak is lost.
_DRAWN = 360
#: Columns of an area that show their value under the pointer.
_HOVER_COLUMNS = 72
#: Columns of a gap that is wide enough for its label, on a phone too.
_LABELLED_GAP = 60
_AREA_HEIGHT = 132
#: Approximate width of a letter of a tick, in percent of a plot on a desktop and on a phone.
_WIDE_LETTER, _NARROW_LETTER = 1.0, 2.1
#: Room above the highest grid line, for its label.
_HEADROOM = 16
_TRACK_HEIGHT = 18
_AXIS_HEIGHT = 20
#: Most rows of a table.
ROWS = 100
#: Tracks that are drawn on a phone too.
_NEVER_SPARE = 10
#: States differ in height as well as in colour.
_STATE_BARS = {State.SUSPECT: (5, 8), State.FAILED_OVER: (2, 14), State.FORCED: (3, 12), State.DRAINING: (7, 4)}
STATE_TEXTS = {
    State.SUSPECT: "suspect",
    State.FAILED_OVER: "failed over",
    State.FORCED: "failed over by hand",
    State.DRAINING: "draining the backlog",
}
NO_DATA = "no data"


def tag(name: str, *children: str | Markup, **attributes: str | float) -> Markup:
    """Return an element. What is not `Markup` is escaped; `class_` becomes `class`, `text_anchor` `text-anchor`."""
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, Markup("").join(map(escape, children)))


def _svg(height: int, *children: Markup, class_: str = "plot") -> Markup:
    return tag("svg", *children, class_=class_, height=height, width="100%", aria_hidden="true", focusable="false")


def _track(name: str, plot: Markup, note: str = "", *, class_: str = "track", title: str = "") -> Markup:
    shown = printable(name)
    label = tag("span", tag("bdi", shown), class_="track-name", title=printable(title or name))
    return tag("div", label, plot, tag("span", note, class_="track-note"), class_=class_)


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with a label, and a table of the same figures for readers who cannot see it."""

    plot: Markup
    label: str
    heads: Sequence[str]
    cells: Sequence[Sequence[str]]
    #: Rows that do not fit into the table.
    left_out: int = 0
    caption: str = ""
    #: Whether the plot shows time without rows.
    has_gaps: bool = False


# ---- time ----


@dataclass(frozen=True, slots=True)
class Track:
    """One entity of a timeline: its states, the time of which there are rows, and a note."""

    name: str
    intervals: Sequence[Interval]
    covered: Sequence[Span]
    note: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """A count over time, below the timeline."""

    name: str
    series: Sequence[Depth]
    note: str = ""
    class_: str = "depth"


class Run(NamedTuple):
    """Neighbouring columns of a plot that have rows, or that have none."""

    begin: int
    end: int
    is_covered: bool


@dataclass(frozen=True, slots=True)
class TimePlot:
    """Tracks and areas over one time axis."""

    axis: TimeAxis
    #: Nothing but states is drawn outside the period of the report.
    period: Span
    #: The time of which there are rows of any entity. Open intervals are drawn to its end.
    covered: Sequence[Span]
    tracks: Sequence[Track] = ()
    areas: Sequence[Area] = ()
    #: Head of the right column.
    note: str = ""
    ticks: list[Tick] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ticks", self.axis.ticks())

    @property
    def has_gaps(self) -> bool:
        """Whether time without rows is drawn."""
        spans = [self.covered] if self.areas else []
        return any(
            not run.is_covered
            for each in (*spans, *(track.covered for track in self.tracks))
            for run in self._runs(each)
        )

    def draw(self) -> Markup:
        rows = [self._track(track, is_spare=index >= _NEVER_SPARE) for index, track in enumerate(self.tracks)]
        if self.note and rows:
            rows.insert(0, _track("", Markup(""), self.note, class_="track track-head"))
        rows.extend(self._area(area) for area in self.areas)
        rows.append(_track("", _time_axis(self.ticks), class_="track track-axis"))
        return tag("div", *rows, class_="tracks")

    def _runs(self, covered: Sequence[Span]) -> list[Run]:
        """The columns of the period, as runs with and without rows."""
        first, last = self._columns(self.period)
        has_rows = [False] * _DRAWN
        for span in covered:
            begin, end = self._columns(span)
            has_rows[begin:end] = [True] * (end - begin)
        runs = []
        for is_covered, columns in groupby(range(first, last), key=has_rows.__getitem__):
            indices = list(columns)
            runs.append(Run(indices[0], indices[-1] + 1, is_covered))
        return runs

    def _columns(self, span: Span) -> tuple[int, int]:
        """The columns that a span touches: the first, and the one after the last."""
        length = max(1, self.axis.until - self.axis.since)
        begin, end = (_DRAWN * (at - self.axis.since) for at in span)
        first, last = begin // length, max(begin // length + 1, -(-end // length))
        return max(0, min(_DRAWN, first)), max(0, min(_DRAWN, last))

    def _track(self, track: Track, is_spare: bool) -> Markup:
        middle = _TRACK_HEIGHT // 2
        runs = self._runs(track.covered)
        paths = []
        for class_, is_covered in (("no-data", False), ("healthy", True)):
            path = "".join(f"M{run.begin} {middle}H{run.end}" for run in runs if run.is_covered is is_covered)
            if path:
                paths.append(_stretched(_TRACK_HEIGHT, _TRACK_HEIGHT, tag("path", d=path, class_=class_)))
        seen = sorted(filter(self._is_seen, track.intervals), key=lambda interval: interval.state is State.FAILED_OVER)
        bars = [self._bar(interval) for interval in seen]  # the worst state is drawn last, on top
        plot = _svg(_TRACK_HEIGHT, *_grid(self.ticks, _TRACK_HEIGHT), *paths, *bars)
        return _track(track.name, plot, track.note, class_="track spare" if is_spare else "track", title=track.title)

    def _is_seen(self, interval: Interval) -> bool:
        return interval.since < self.axis.until and (interval.until is None or interval.until > self.axis.since)

    def _bar(self, interval: Interval) -> Markup:
        until = self._open_end if interval.until is None else interval.until
        left, right = self.axis.place(interval.since), self.axis.place(max(until, interval.since))
        y, height = _STATE_BARS[interval.state]
        title = tag("title", interval_text(interval))
        width = f"{round(right - left, 3)}%"
        return tag("rect", title, class_=f"state {interval.state.value}", x=f"{left}%", width=width, y=y, height=height)

    @property
    def _open_end(self) -> int:
        return self.covered[-1].until if self.covered else self.axis.until

    def _area(self, area: Area) -> Markup:
        ticks = count_ticks(max((point.depth for point in area.series), default=0))
        top = ticks[-1]
        bottom, height = _AREA_HEIGHT, _AREA_HEIGHT - _HEADROOM
        lines = []
        for tick in ticks:
            y = bottom - height * tick / top
            lines.append(tag("line", x1="0%", x2="100%", y1=y, y2=y, class_="base" if tick == 0 else "grid"))
            if tick:
                lines.append(tag("text", short_number(tick), x=0, y=y - 4, class_="tick"))
        runs = self._runs(self.covered)
        shapes = [tag("path", d=self._steps(area.series, runs, top), class_=f"area {area.class_}")]
        gaps = [run for run in runs if not run.is_covered]
        if gaps:
            outline = "".join(f"M{run.begin} 0H{run.end}V1000H{run.begin}Z" for run in gaps)
            shapes.insert(0, tag("path", d=outline, class_="gap"))
        shape = _stretched(height, 1000, *shapes, y=_HEADROOM)
        texts = [_gap_text(run, bottom) for run in gaps if run.end - run.begin >= _LABELLED_GAP]
        peaks = self._peaks(area.series, runs, bottom)
        plot = _svg(_AREA_HEIGHT + 1, *_grid(self.ticks, bottom), shape, *lines, *texts, peaks)
        return _track(area.name, plot, area.note, class_="track track-area")

    def _steps(self, series: Sequence[Depth], runs: Sequence[Run], top: int) -> str:
        """The outline of an area in a box of _DRAWN by 1000, where there are rows."""
        peaks = highest(series, self.axis.since, self.axis.until, _DRAWN)
        path = []
        for run in runs:
            if not run.is_covered:
                continue
            path.append(f"M{run.begin} 1000")
            last = 1000
            for column in range(run.begin, run.end):
                y = round(1000 - 1000 * peaks[column].depth / top)
                if y != last:
                    path.append(f"H{column}V{y}")
                    last = y
            path.append(f"H{run.end}V1000Z")
        return "".join(path)

    def _peaks(self, series: Sequence[Depth], runs: Sequence[Run], bottom: int) -> Markup:
        """Columns that show their highest value while the pointer is over them; this needs no script."""
        width = 100 / _HOVER_COLUMNS
        share = _DRAWN // _HOVER_COLUMNS
        groups = []
        for index, peak in enumerate(highest(series, self.axis.since, self.axis.until, _HOVER_COLUMNS)):
            begin, end = index * share, (index + 1) * share
            inside = [run for run in runs if run.begin < end and run.end > begin]
            if not inside:
                continue
            has_rows = any(run.is_covered for run in inside)
            left = index * width
            is_left = left < 50
            text = tag(
                "text",
                f"{number(peak.depth) if has_rows else 'no data'} · {moment(peak.at)}",
                x=f"{round(left if is_left else left + width, 3)}%",
                y=11,
                text_anchor="start" if is_left else "end",
                class_="peak",
            )
            target = tag("rect", x=f"{round(left, 3)}%", width=f"{round(width, 3)}%", y=0, height=bottom)
            groups.append(tag("g", target, text, class_="hit"))
        return tag("g", *groups, class_="hits")


def _gap_text(run: Run, bottom: int) -> Markup:
    middle = round(100 * (run.begin + run.end) / 2 / _DRAWN, 3)
    return tag("text", NO_DATA, x=f"{middle}%", y=bottom - 8, text_anchor="middle", class_="tick")


def interval_text(interval: Interval) -> str:
    """An interval in words."""
    since = moment(interval.since, seconds=True)
    if interval.until is None:
        return f"{STATE_TEXTS[interval.state]} since {since}, not over"
    return f"{STATE_TEXTS[interval.state]} {_length_text(interval.since, interval.until)}"


def gap_text(gap: Span) -> str:
    """A time without rows in words."""
    return f"{NO_DATA} {_length_text(*gap)}"


def _length_text(since: int, until: int) -> str:
    is_same_day = at(since).date() == at(until).date()
    end = clock(until, seconds=True) if is_same_day else moment(until, seconds=True)
    return f"for {duration(until - since)}, {moment(since, seconds=True)} to {end}"


def _stretched(height: int, units: int, *children: Markup, y: int = 0) -> Markup:
    """Shapes in a box of _DRAWN by `units` that is as wide as the plot."""
    box = {"viewBox": f"0 0 {_DRAWN} {units}", "preserveAspectRatio": "none"}
    return tag("svg", *children, x=0, y=y, width="100%", height=height, **box)


def _grid(ticks: Iterable[Tick], height: int) -> list[Markup]:
    return [tag("line", x1=f"{tick.place}%", x2=f"{tick.place}%", y1=0, y2=height, class_="grid") for tick in ticks]


def _anchor(place: float) -> str:
    return "start" if place < 4 else "end" if place > 96 else "middle"


def _time_axis(ticks: Sequence[Tick]) -> Markup:
    """Draw the texts of a time axis without overlap; every second one is hidden on a phone (class `spare`)."""
    texts: list[Markup] = []
    wide_end = narrow_end = 0.0
    for index, tick in enumerate(ticks):
        begin, end = _extent(tick, _WIDE_LETTER)
        if begin < wide_end:
            continue
        narrow_begin, narrow = _extent(tick, _NARROW_LETTER)
        is_spare = bool(index % 2) or narrow_begin < narrow_end
        wide_end = end + _WIDE_LETTER
        narrow_end = narrow_end if is_spare else narrow + _NARROW_LETTER
        class_ = "tick spare" if is_spare else "tick"
        texts.append(tag("text", tick.text, x=f"{tick.place}%", y=14, text_anchor=_anchor(tick.place), class_=class_))
    return _svg(_AXIS_HEIGHT, *texts)


def _extent(tick: Tick, letter: float) -> tuple[float, float]:
    """Return where the text of a tick begins and ends, in percent, for a width of a letter."""
    width = letter * len(tick.text)
    before = {"start": 0.0, "middle": width / 2, "end": width}[_anchor(tick.place)]
    return max(0.0, tick.place - before), tick.place - before + width


# ---- amounts ----


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of two parts with a name and a note."""

    name: str
    application: float
    pairing: float
    note: str


def bars(rows: Sequence[Bar]) -> Markup:
    """Draw horizontal bars; the longest fills the width."""
    longest = max((row.application + row.pairing for row in rows), default=0) or 1
    drawn = []
    for row in rows:
        first, second = (round(100 * part / longest, 3) for part in (row.application, row.pairing))
        parts = [
            tag("rect", x=f"{left}%", y=2, width=f"{width}%", height=14, class_=f"bar {class_}")
            for left, width, class_ in ((0, first, "application"), (first, second, "pairing"))
            if width
        ]
        drawn.append(_track(row.name, _svg(_TRACK_HEIGHT, *parts), row.note))
    return tag("div", *drawn, class_="tracks bars")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of two stacked parts."""

    label: str
    application: float
    pairing: float
    title: str


def columns(rows: Sequence[Column], top_text: str) -> Markup:
    """Draw vertical columns, such as days; `top_text` labels the height of the highest."""
    top = max((row.application + row.pairing for row in rows), default=0) or 1
    width = 100 / max(1, len(rows))
    gap = 0.12 * width
    height = _AREA_HEIGHT - _HEADROOM
    drawn = [
        tag("line", x1="0%", x2="100%", y1=_HEADROOM, y2=_HEADROOM, class_="grid"),
        tag("text", top_text, x=0, y=_HEADROOM - 4, class_="tick"),
        tag("line", x1="0%", x2="100%", y1=_AREA_HEIGHT, y2=_AREA_HEIGHT, class_="base"),
    ]
    for index, row in enumerate(rows):
        place = {"x": f"{round(index * width + gap, 3)}%", "width": f"{round(width - 2 * gap, 3)}%"}
        lower, upper = height * row.application / top, height * row.pairing / top
        parts = [
            tag("rect", **place, y=round(y, 2), height=round(size, 2), class_=f"bar {class_}")
            for y, size, class_ in (
                (_AREA_HEIGHT - lower, lower, "application"),
                (_AREA_HEIGHT - lower - upper, upper, "pairing"),
            )
            if size
        ]
        if not parts:
            parts = [tag("rect", **place, y=_HEADROOM, height=height, class_="gap")]
        drawn.append(tag("g", tag("title", row.title), *parts))
    every = -(-len(rows) // 8)
    ticks = [Tick(round((index + 0.5) * width, 3), row.label) for index, row in enumerate(rows) if index % every == 0]
    plot = _svg(_AREA_HEIGHT + 1, *drawn)
    return tag("div", plot, _time_axis(ticks), class_="columns")


@dataclass(frozen=True, slots=True)
class Range:
    """Percentiles of one kind of operation, in microseconds, and the number of operations they stand for."""

    name: str
    count: int
    p50: int
    p90: int
    p99: int
    longest: int

    @property
    def note(self) -> str:
        return f"{short_number(self.count)} · {duration(self.p50)} · {duration(self.p99)}"

    @property
    def title(self) -> str:
        """What each mark stands for."""
        marks = ((0.5, self.p50), (0.9, self.p90), (0.99, self.p99))
        within = ", ".join(f"{number(ceil(part * self.count))} within {duration(value)}" for part, value in marks)
        operations = "1 operation" if self.count == 1 else f"{number(self.count)} operations"
        return f"{operations}: {within}, the slowest {duration(self.longest)}"


def ranges(rows: Sequence[Range]) -> Markup:
    """Draw percentiles on a scale on which each mark is ten times the last."""
    axis = LogAxis.around([value for row in rows for value in (row.p50, row.longest)])
    marks = [(axis.place(mark), duration(mark)) for mark in axis.marks()]
    grid = _grid([Tick(*mark) for mark in marks], _TRACK_HEIGHT)
    drawn = [_track("", Markup(""), "operations · p50 · p99", class_="track track-head")]
    for row in rows:
        p50, p90, p99, longest = (f"{axis.place(value)}%" for value in (row.p50, row.p90, row.p99, row.longest))
        middle = _TRACK_HEIGHT / 2
        shape = tag(
            "g",
            tag("title", row.title),
            tag("rect", x="0%", width="100%", y=0, height=_TRACK_HEIGHT, class_="target"),
            tag("line", x1=p50, x2=longest, y1=middle, y2=middle, class_="reach"),
            tag("line", x1=p50, x2=p99, y1=middle, y2=middle, class_="range"),
            tag("circle", cx=p50, cy=middle, r=5, class_="p50"),
            tag("circle", cx=p90, cy=middle, r=3.5, class_="p90"),
            tag("line", x1=p99, x2=p99, y1=middle - 6, y2=middle + 6, class_="p99"),
        )
        drawn.append(_track(row.name, _svg(_TRACK_HEIGHT, *grid, shape, class_="plot roomy"), row.note))
    texts = [tag("text", text, x=f"{place}%", y=14, text_anchor=_anchor(place), class_="tick") for place, text in marks]
    drawn.append(_track("", _svg(_AXIS_HEIGHT, *texts), class_="track track-axis"))
    return tag("div", *drawn, class_="tracks ranges")
