"""What somebody sees who watches: one table that changes, or lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from twinbus.client.status import EntityState, PairingStatus

from .tally import Tally

_STYLES = {
    EntityState.HEALTHY: "green",
    EntityState.PROBATION: "green",
    EntityState.SUSPECT: "yellow",
    EntityState.FAILED_OVER: "red",
}


@dataclass(slots=True)
class Scene:
    """What there is to see now."""

    status: Callable[[], PairingStatus]
    tally: Tally
    phase: str = ""
    pings: int = 0
    #: How many messages wait in the backlog: diverted, and not moved home yet.
    backlog: Callable[[], int] = lambda: 0
    #: What another part of the demo shows below, such as the progress of the drain.
    below: RenderableType | None = None
    _last: dict[str, tuple[float, int]] = field(default_factory=dict)

    def render(self, now: float) -> RenderableType:
        status = self.status()
        states = {one.path: one for one in status.entities}
        table = Table(box=None, pad_edge=False)
        for name in ("entity", "state"):
            table.add_column(name)
        for name in ("sends/s", "by contoso", "by the backlog", "received"):
            table.add_column(name, justify="right")
        for entity in self.tally.places:
            one = states.get(entity)
            state = one.state if one is not None else EntityState.HEALTHY
            routes = self.tally.by_route[entity]
            sent = routes.total()
            cells = (f"{self._rate(entity, sent, now):.0f}", f"{routes['primary']:,}", f"{routes['backlog']:,}")
            table.add_row(entity, Text(state.value, _STYLES[state]), *cells, f"{self.tally.received(entity):,}")
        foot = Text(f"{self.backlog():,} messages in the backlog, {self.pings:,} pings", "dim")
        parts: list[RenderableType] = [Text(self.phase, "bold"), table, foot]
        return Group(*parts, *([] if self.below is None else [self.below]))

    def _rate(self, entity: str, sent: int, now: float) -> float:
        """Over the last second or so."""
        then, before = self._last.setdefault(entity, (now, sent))
        if now - then > 2:
            self._last[entity] = (now - 1, sent - round((sent - before) / (now - then)))
        return (sent - before) / (now - then) if now > then else 0.0


class Screen:
    """Shows a scene, and says what happens. In a terminal the scene stays at the bottom; elsewhere there are lines."""

    def __init__(self, console: Console, now: Callable[[], float]) -> None:
        self._console = console
        self._now = now
        self._live: Live | None = None
        self.scene: Scene | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _render(self) -> RenderableType:
        return self.scene.render(self._now()) if self.scene is not None else Text("")

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style))

    def phase(self, text: str) -> None:
        """A new part of the story begins."""
        if self.scene is not None:
            self.scene.phase = text
        self.say(f"\n{text}", "bold")
