"""Show the progress of a drain in the terminal."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from twinbus.syphon.drain_report import Tally

from .drain_loop import DrainProgress

MAX_DESTINATIONS = 10
REFRESH_A_SECOND = 2
BAR_WIDTH = 60


def line_of(progress: DrainProgress, now: float) -> str:
    """One line: moved, remaining, rate, time left, and the current slice. `now` is the event loop's time."""
    parts = [f"{progress.account.moved:,} moved"] if progress.account.slices or not progress.pumps else []
    if progress.remaining is not None:
        parts.append(f"about {progress.remaining:,} remaining")
    if progress.rate:
        parts.append(f"{progress.rate:,.0f} a second")
    if progress.eta and not progress.is_waiting:
        parts.append(f"{_duration(progress.eta)} left")
    if deferred := sum(progress.account.deferred.values()):
        parts.append(f"{deferred:,} deferred")
    if progress.is_waiting:
        parts.append("waiting for messages")
    elif progress.pumps:
        left = max(0.0, progress.ends_at - now)
        parts.append(f"slice {progress.account.slices + 1}, {progress.pumps} pumps, {left:.0f} s to go")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def table_of(progress: DrainProgress) -> Table:
    """The destinations with the most messages."""
    account = progress.account
    paths = dict.fromkeys([*account.tallies, *account.deferred])
    rows = sorted(
        ((path, account.tallies.get(path, Tally()), account.deferred.get(path, 0)) for path in paths),
        key=lambda row: (-row[1].moved - row[2], row[0]),
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("destination", "moved", "expired", "poison", "deferred"):
        table.add_column(heading, justify="left" if heading == "destination" else "right")
    for path, tally, deferred in rows[:MAX_DESTINATIONS]:
        figures = (tally.moved, tally.expired, tally.poison, deferred)
        table.add_row(Text(path), *(f"{figure:,}" for figure in figures))  # not as markup: a path may hold brackets
    if len(rows) > MAX_DESTINATIONS:
        table.add_row(f"and {len(rows) - MAX_DESTINATIONS:,} more", "", "", "", "")
    return table


def view_of(progress: DrainProgress) -> RenderableType:
    """A progress bar and the table of destinations."""
    done = progress.total - (progress.remaining or 0)
    bar = ProgressBar(total=max(1, progress.total), completed=done, width=BAR_WIDTH)
    return Group(bar, table_of(progress)) if progress.account.slices else bar


class ProgressView:
    """Shows progress on standard error: a live table in a terminal, else one line per slice."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._latest: DrainProgress | None = None
        self._last_line = ""
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render,
                console=self._console,
                refresh_per_second=REFRESH_A_SECOND,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: DrainProgress) -> None:
        self._latest = progress
        line = line_of(progress, self._loop.time())
        if self._live is None and not progress.pumps and line != self._last_line:
            self._last_line = line
            print(line, file=sys.stderr, flush=True)

    def _render(self) -> RenderableType:
        if self._latest is None:
            return Text("looking at the backlog")
        return Group(Text(line_of(self._latest, self._loop.time())), view_of(self._latest))
