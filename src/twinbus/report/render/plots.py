"""Plots as SVG and HTML that fit any width: places are percentages, and text keeps its size on a phone.

Nothing here is a script, and colours are classes of the page's style sheet: so the same plot is right in light, in
dark and in print. Everything that is not a literal is escaped (`tag`), for names come from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from ..incidents import Depth, Interval, State, highest
from .axes import LogAxis, Tick, TimeAxis, count_ticks
from .formats import duration, moment, number, printable, short_number

#: Steps of an area that are drawn; each shows its highest point, so that no peak is lost.
_DRAWN = 360
#: Columns of an area that tell their value when one points at them.
_TOLD = 72
_AREA_HEIGHT = 132
#: About how wide a letter of a tick is, in percent of a plot on a desktop and on a phone.
_WIDE_LETTER, _NARROW_LETTER = 1.0, 2.1
#: Room above the highest grid line, for its label.
_HEADROOM = 16
_LANE_HEIGHT = 18
_AXIS_HEIGHT = 20
#: So many rows a table has at most.
ROWS = 100
#: Lanes that are drawn even where there is little room.
_NEVER_SPARE = 10
#: States differ in height as well as in colour.
_STATE_BARS = {State.SUSPECT: (5, 8), State.FAILED_OVER: (2, 14), State.DRAINING: (7, 4)}
STATE_TEXTS = {State.SUSPECT: "suspect", State.FAILED_OVER: "failed over", State.DRAINING: "draining the backlog"}


def tag(name: str, *children: str | Markup, **attributes: str | float) -> Markup:
    """An element; what is not `Markup` is escaped. `class_` is written `class`, `text_anchor` is `text-anchor`."""
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, Markup("").join(map(escape, children)))


def _svg(height: int, *children: Markup, class_: str = "plot") -> Markup:
    return tag("svg", *children, class_=class_, height=height, width="100%", aria_hidden="true", focusable="false")


def _lane(name: str, plot: Markup, note: str = "", *, class_: str = "lane", title: str = "") -> Markup:
    shown = printable(name)
    label = tag("span", tag("bdi", shown), class_="lane-name", title=printable(title or name))
    return tag("div", label, plot, tag("span", note, class_="lane-note"), class_=class_)


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with what it shows in words and, for those who cannot see it, in a table."""

    plot: Markup
    label: str
    heads: Sequence[str]
    cells: Sequence[Sequence[str]]
    #: How many rows the table lacks.
    left_out: int = 0
    caption: str = ""


# ---- time ----


@dataclass(frozen=True, slots=True)
class Lane:
    """One entity of a timeline: its states, and a word about it."""

    name: str
    intervals: Sequence[Interval]
    note: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """A count over time, below the timeline."""

    name: str
    series: Sequence[Depth]
    note: str = ""
    class_: str = "depth"


@dataclass(frozen=True, slots=True)
class TimePlot:
    """Lanes and areas over one time axis."""

    axis: TimeAxis
    lanes: Sequence[Lane] = ()
    areas: Sequence[Area] = ()
    #: Written at the head of the right column.
    note: str = ""
    ticks: list[Tick] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ticks", self.axis.ticks())

    def draw(self) -> Markup:
        rows = [self._lane(one, is_spare=index >= _NEVER_SPARE) for index, one in enumerate(self.lanes)]
        if self.note and rows:
            rows.insert(0, _lane("", Markup(""), self.note, class_="lane lane-head"))
        rows.extend(self._area(one) for one in self.areas)
        rows.append(_lane("", _time_axis(self.ticks), class_="lane lane-axis"))
        return tag("div", *rows, class_="lanes")

    def _lane(self, lane: Lane, is_spare: bool) -> Markup:
        middle = _LANE_HEIGHT / 2
        healthy = tag("line", x1="0%", x2="100%", y1=middle, y2=middle, class_="healthy")
        seen = sorted(filter(self._is_seen, lane.intervals), key=lambda one: one.state is State.FAILED_OVER)
        bars = [self._bar(one) for one in seen]  # what matters most is drawn last, on top
        plot = _svg(_LANE_HEIGHT, *_grid(self.ticks, _LANE_HEIGHT), healthy, *bars)
        return _lane(lane.name, plot, lane.note, class_="lane spare" if is_spare else "lane", title=lane.title)

    def _is_seen(self, interval: Interval) -> bool:
        return interval.since < self.axis.until and (interval.until is None or interval.until > self.axis.since)

    def _bar(self, interval: Interval) -> Markup:
        until = self.axis.until if interval.until is None else interval.until
        left, right = self.axis.place(interval.since), self.axis.place(until)
        y, height = _STATE_BARS[interval.state]
        said = tag("title", interval_text(interval))
        width = f"{round(right - left, 3)}%"
        return tag("rect", said, class_=f"state {interval.state.value}", x=f"{left}%", width=width, y=y, height=height)

    def _area(self, area: Area) -> Markup:
        ticks = count_ticks(max((one.depth for one in area.series), default=0))
        top = ticks[-1]
        bottom, height = _AREA_HEIGHT, _AREA_HEIGHT - _HEADROOM
        lines = []
        for tick in ticks:
            y = bottom - height * tick / top
            lines.append(tag("line", x1="0%", x2="100%", y1=y, y2=y, class_="base" if tick == 0 else "grid"))
            if tick:
                lines.append(tag("text", short_number(tick), x=0, y=y - 4, class_="tick"))
        shape = _steps(area.series, self.axis, top)
        told = self._told(area.series, bottom)
        plot = _svg(_AREA_HEIGHT + 1, *_grid(self.ticks, bottom), *lines, _stretched(shape, height, area.class_), told)
        return _lane(area.name, plot, area.note, class_="lane lane-area")

    def _told(self, series: Sequence[Depth], bottom: int) -> Markup:
        """Columns that say their highest value while one points at them; no script is needed for that."""
        width = 100 / _TOLD
        found = []
        for number_of_column, (when, depth) in enumerate(highest(series, self.axis.since, self.axis.until, _TOLD)):
            left = number_of_column * width
            is_left = left < 50
            text = tag(
                "text",
                f"{number(depth)} · {moment(when)}",
                x=f"{round(left if is_left else left + width, 3)}%",
                y=11,
                text_anchor="start" if is_left else "end",
                class_="told",
            )
            hit = tag("rect", x=f"{round(left, 3)}%", width=f"{round(width, 3)}%", y=0, height=bottom)
            found.append(tag("g", hit, text, class_="hit"))
        return tag("g", *found, class_="hits")


def interval_text(interval: Interval) -> str:
    """An interval in words."""
    since = moment(interval.since, seconds=True)
    if interval.until is None:
        return f"{STATE_TEXTS[interval.state]} since {since}, not over"
    length = duration(interval.until - interval.since)
    return f"{STATE_TEXTS[interval.state]} for {length}, {since} to {moment(interval.until, seconds=True)}"


def _steps(series: Sequence[Depth], axis: TimeAxis, top: int) -> str:
    """The outline of an area in a box of _DRAWN by 1000."""
    path = ["M0 1000"]
    last = None
    for column, one in enumerate(highest(series, axis.since, axis.until, _DRAWN)):
        y = round(1000 - 1000 * one.depth / top)
        if y != last:
            path.append(f"H{column}V{y}")
            last = y
    return "".join((*path, f"H{_DRAWN}V1000Z"))


def _stretched(path: str, height: int, class_: str) -> Markup:
    """A path that is as wide as the plot, however wide that is."""
    return tag(
        "svg",
        tag("path", d=path, class_=f"area {class_}"),
        x=0,
        y=_HEADROOM,
        width="100%",
        height=height,
        viewBox=f"0 0 {_DRAWN} 1000",
        preserveAspectRatio="none",
    )


def _grid(ticks: Iterable[Tick], height: int) -> list[Markup]:
    return [tag("line", x1=f"{one.place}%", x2=f"{one.place}%", y1=0, y2=height, class_="grid") for one in ticks]


def _anchor(place: float) -> str:
    return "start" if place < 4 else "end" if place > 96 else "middle"


def _time_axis(ticks: Sequence[Tick]) -> Markup:
    """Where there is little room every second text goes away (class `spare`). None runs into the one before."""
    texts: list[Markup] = []
    wide_end = narrow_end = 0.0
    for index, one in enumerate(ticks):
        begin, end = _extent(one, _WIDE_LETTER)
        if begin < wide_end:
            continue
        narrow_begin, narrow = _extent(one, _NARROW_LETTER)
        is_spare = bool(index % 2) or narrow_begin < narrow_end
        wide_end, narrow_end = end, narrow_end if is_spare else narrow
        class_ = "tick spare" if is_spare else "tick"
        texts.append(tag("text", one.text, x=f"{one.place}%", y=14, text_anchor=_anchor(one.place), class_=class_))
    return _svg(_AXIS_HEIGHT, *texts)


def _extent(tick: Tick, letter: float) -> tuple[float, float]:
    """Where the text of a tick begins and ends, in percent, if a letter is so wide."""
    width = letter * len(tick.text)
    before = {"start": 0.0, "middle": width / 2, "end": width}[_anchor(tick.place)]
    return max(0.0, tick.place - before), tick.place - before + width


# ---- amounts ----


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of two parts with a name, and what stands beside it."""

    name: str
    application: float
    pairing: float
    note: str


def bars(rows: Sequence[Bar]) -> Markup:
    """Horizontal bars, the longest as wide as there is room."""
    longest = max((one.application + one.pairing for one in rows), default=0) or 1
    drawn = []
    for one in rows:
        first, second = (round(100 * part / longest, 3) for part in (one.application, one.pairing))
        parts = [
            tag("rect", x=f"{left}%", y=2, width=f"{width}%", height=14, class_=f"bar {class_}")
            for left, width, class_ in ((0, first, "application"), (first, second, "pairing"))
            if width
        ]
        drawn.append(_lane(one.name, _svg(_LANE_HEIGHT, *parts), one.note))
    return tag("div", *drawn, class_="lanes bars")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of two parts, one upon the other."""

    label: str
    application: float
    pairing: float
    said: str


def columns(rows: Sequence[Column], top_text: str) -> Markup:
    """Vertical columns side by side, such as days; `top_text` says how much the highest is."""
    top = max((one.application + one.pairing for one in rows), default=0) or 1
    width = 100 / max(1, len(rows))
    gap = 0.12 * width
    height = _AREA_HEIGHT - _HEADROOM
    drawn = [
        tag("line", x1="0%", x2="100%", y1=_HEADROOM, y2=_HEADROOM, class_="grid"),
        tag("text", top_text, x=0, y=_HEADROOM - 4, class_="tick"),
        tag("line", x1="0%", x2="100%", y1=_AREA_HEIGHT, y2=_AREA_HEIGHT, class_="base"),
    ]
    for index, one in enumerate(rows):
        place = {"x": f"{round(index * width + gap, 3)}%", "width": f"{round(width - 2 * gap, 3)}%"}
        lower, upper = height * one.application / top, height * one.pairing / top
        parts = [
            tag("rect", **place, y=round(y, 2), height=round(size, 2), class_=f"bar {class_}")
            for y, size, class_ in (
                (_AREA_HEIGHT - lower, lower, "application"),
                (_AREA_HEIGHT - lower - upper, upper, "pairing"),
            )
            if size
        ]
        drawn.append(tag("g", tag("title", one.said), *parts))
    every = -(-len(rows) // 8)
    ticks = [Tick(round((index + 0.5) * width, 3), one.label) for index, one in enumerate(rows) if index % every == 0]
    plot = _svg(_AREA_HEIGHT + 1, *drawn)
    return tag("div", plot, _time_axis(ticks), class_="columns")


@dataclass(frozen=True, slots=True)
class Range:
    """Percentiles of one kind of operation, in microseconds."""

    name: str
    p50: int
    p90: int
    p99: int
    most: int
    note: str


def ranges(rows: Sequence[Range]) -> Markup:
    """Percentiles on a scale on which each mark is ten times the last."""
    axis = LogAxis.around([value for one in rows for value in (one.p50, one.most)])
    marks = [(axis.place(one), duration(one)) for one in axis.marks()]
    grid = _grid([Tick(*one) for one in marks], _LANE_HEIGHT)
    drawn = [_lane("", Markup(""), "p50 · p99", class_="lane lane-head")]
    for one in rows:
        p50, p90, p99, most = (f"{axis.place(value)}%" for value in (one.p50, one.p90, one.p99, one.most))
        middle = _LANE_HEIGHT / 2
        said = f"half within {duration(one.p50)}, 90% within {duration(one.p90)}, 99% within {duration(one.p99)}"
        shape = tag(
            "g",
            tag("title", said),
            tag("line", x1=p50, x2=most, y1=middle, y2=middle, class_="reach"),
            tag("line", x1=p50, x2=p99, y1=middle, y2=middle, class_="range"),
            tag("circle", cx=p50, cy=middle, r=5, class_="p50"),
            tag("circle", cx=p90, cy=middle, r=3.5, class_="p90"),
            tag("line", x1=p99, x2=p99, y1=middle - 6, y2=middle + 6, class_="p99"),
        )
        drawn.append(_lane(one.name, _svg(_LANE_HEIGHT, *grid, shape, class_="plot roomy"), one.note))
    texts = [tag("text", text, x=f"{place}%", y=14, text_anchor=_anchor(place), class_="tick") for place, text in marks]
    drawn.append(_lane("", _svg(_AXIS_HEIGHT, *texts), class_="lane lane-axis"))
    return tag("div", *drawn, class_="lanes ranges")
