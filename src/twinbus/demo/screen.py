"""Renders the demo: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from twinbus.client.pairing_status import EntityState, PairingStatus

from .tally import Tally

_STYLES = {
    EntityState.HEALTHY: "green",
    EntityState.PROBATION: "green",
    EntityState.SUSPECT: "yellow",
    EntityState.FAILED_OVER: "red",
}


@dataclass(slots=True)
class Scene:
    """The state that the live table shows."""

    status: Callable[[], PairingStatus]
    tally: Tally
    phase: str = ""
    pings: int = 0
    #: Number of messages in the backlog: diverted, and not moved yet.
    backlog: Callable[[], int] = lambda: 0
    #: Shown below the table, such as the progress of the drain.
    below: RenderableType | None = None
    _last: dict[str, tuple[float, int]] = field(default_factory=dict)

    def render(self, now: float) -> RenderableType:
        status = self.status()
        entities = {entity.path: entity for entity in status.entities}
        table = Table(box=None, pad_edge=False)
        for name in ("entity", "state"):
            table.add_column(name)
        for name in ("sends/s", "by contoso", "by the backlog", "received"):
            table.add_column(name, justify="right")
        for path in self.tally.receiving_paths:
            entity = entities.get(path)
            state = entity.state if entity is not None else EntityState.HEALTHY
            routes = self.tally.by_route[path]
            sent = routes.total()
            cells = (f"{self._rate(path, sent, now):.0f}", f"{routes['primary']:,}", f"{routes['backlog']:,}")
            table.add_row(path, Text(state.value, _STYLES[state]), *cells, f"{self.tally.received(path):,}")
        footer = Text(f"{self.backlog():,} messages in the backlog, {self.pings:,} pings", "dim")
        parts: list[RenderableType] = [Text(self.phase, "bold"), table, footer]
        return Group(*parts, *([] if self.below is None else [self.below]))

    def _rate(self, entity: str, sent: int, now: float) -> float:
        """Return sends per second over the last second or two."""
        earlier, sent_earlier = self._last.setdefault(entity, (now, sent))
        if now - earlier > 2:
            self._last[entity] = (now - 1, sent - round((sent - sent_earlier) / (now - earlier)))
        return (sent - sent_earlier) / (now - earlier) if now > earlier else 0.0


class Screen:
    """Prints events as lines; in a terminal the live table stays below them."""

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
        """Announce the next phase of the demo."""
        if self.scene is not None:
            self.scene.phase = text
        self.say(f"\n{text}", "bold")
