"""The soak: mixed load and random faults for a long time, and nothing may be lost or grow.

`python -m twinbus.proof soak --seconds 3600`
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from twinbus.pairing.backlog import PROPERTIES
from twinbus.pairing.naming import backlog_path

from .checker import NotDrainedError, Verdict, check
from .history import History
from .matrix_bench import Bench, ProfileName, until
from .matrix_processes import ChildProcess
from .matrix_traffic import BACKLOG_QUEUES, LOCK, OPTIONS, SUBSCRIPTIONS
from .proxy import Spell, Weather
from .soak_client import KINDS, TWINS, Kind, Orders, Twin, content_of, entity_of, pairing_of
from .soak_faults import spates
from .soak_samples import Course, Sample, courses_of, look_at

FAILED = 1
SAMPLES = 360  # in a soak of any length, but no more than one a second
STARTING = 60.0  # seconds until every sender has got through
ENDING = 60.0  # seconds until every call has ended
DRAINING = 240.0  # seconds until nothing is left
PROGRESS = 60.0  # seconds between two lines
#: Longer than any fault and the drain after it, and short enough to be full within the first third of an hour.
DETECTION_WINDOW = timedelta(minutes=5)
DETECTS: tuple[Kind, ...] = ("single", "topic")
SESSION_LOCK = timedelta(seconds=15)
#: Connections that break while messages are locked count as deliveries.
DELIVERIES = 10_000


@dataclass(slots=True)
class Report:
    """What came of a soak."""

    seed: int
    seconds: float = 0.0
    verdict: Verdict | None = None
    courses: list[Course] = field(default_factory=list)
    #: How many faults were drawn, and how many of them really struck something.
    faults: int = 0
    fired: int = 0
    diverted: int = 0
    #: Calls that raised, by the name of the error.
    refused: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.problems

    def judge(self) -> None:
        """Note what is not as promised."""
        if self.verdict is not None:
            if not self.verdict.is_clean:
                self.problems.append(self.verdict.describe())
            detecting = {entity_of(twin, kind) for twin in TWINS for kind in DETECTS}
            copies = sum(one.entity in detecting for one in self.verdict.duplicated)
            if copies:
                self.problems.append(f"{copies} duplicated, though their entities detect duplicates")
        self.problems += [
            f"{one.measure} of {one.process} grew from {one.middle:.1f} to {one.last:.1f}"
            for one in self.courses
            if not one.is_flat
        ]

    def to_json(self) -> dict[str, Any]:
        counts = self.verdict.counts() if self.verdict is not None else {}
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "faults": self.faults,
            "fired": self.fired,
            **counts,
            "diverted": self.diverted,
            "refused": dict(sorted(self.refused.items())),
            "courses": [one.to_json() for one in self.courses],
            "problems": self.problems,
        }

    def table(self) -> str:
        """The figures in Markdown, which is also good to read in a terminal."""
        lines = [
            "| process | measure | first third | middle | last | most | allowed | flat |",
            "|---|---|---:|---:|---:|---:|---:|---|",
        ]
        for one in self.courses:
            figures = " | ".join(f"{value:.1f}".removesuffix(".0") for value in (*one[2:], one.allowed))
            lines.append(f"| {one.process} | {one.measure} | {figures} | {'yes' if one.is_flat else 'NO'} |")
        return "\n".join(lines)


class Soak:
    """One soak: two namespaces and the application as processes, proxies and the history here."""

    def __init__(self, bench: Bench, seed: int, seconds: float) -> None:
        self._bench, self._seconds = bench, seconds
        self.report = Report(seed)
        topics = {entity_of(twin, "topic") for twin in TWINS}
        self._history = History(places={one: [f"{one}/{name}" for name in SUBSCRIPTIONS] for one in topics})
        orders = Orders(bench.primary.connection_string, bench.secondary.connection_string, OPTIONS)
        self._application = ChildProcess("-m", "twinbus.proof.soak_client", environment=orders.as_environment())
        self._is_quiet = asyncio.Event()
        #: By which way the last message for each entity went.
        self._routes: dict[str, str] = {}
        self._samples: dict[str, list[Sample]] = {"application": [], "primary": [], "secondary": []}

    async def run(self) -> Report:
        """Raises `RuntimeError` if the application ends before its time."""
        await self._make_entities()
        await self._application.start()
        listening = asyncio.create_task(self._listen())
        try:
            await self._wear_in(listening)
            began = time.monotonic()
            await self._go_wrong(began + self._seconds, listening)
            self.report.seconds = time.monotonic() - began
            self._application.send_signal(signal.SIGUSR1)
            async with asyncio.timeout(ENDING):
                await self._is_quiet.wait()
            await self._drain()
        finally:
            await self._application.stop()
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        self.report.courses = [one for name, found in self._samples.items() for one in courses_of(name, found)]
        self.report.judge()
        return self.report

    async def _wear_in(self, listening: asyncio.Task[None]) -> None:
        """Have every sender use the primary, the backlog, and the primary again: what opens at the first need is open
        when we begin to look. Raises `RuntimeError` if that does not come."""
        outage = Spell(weather=Weather.REFUSE)
        for route in ("primary", "backlog", "primary"):
            self._routes = {}
            if route == "backlog":
                self._bench.primary.proxy.begin(outage)
            elif outage in self._bench.primary.proxy.spells:
                await self._bench.primary.proxy.end(outage)

            def all_went(route: str = route) -> bool:
                return len(self._routes) == len(TWINS) * len(KINDS) and set(self._routes.values()) == {route}

            await until(lambda: listening.done() or all_went(), STARTING)
            if not all_went():
                raise RuntimeError(f"not every sender of the application got to the {route} within {STARTING:g} s")

    # ---- entities ----

    async def _make_entities(self) -> None:
        primary, secondary = self._bench.primary.administration, self._bench.secondary.administration
        for twin in TWINS:
            for index in range(BACKLOG_QUEUES):
                # As the pairing would make them, but for the lock: a minute of it is long where a connection is lost.
                path = backlog_path(pairing_of(twin), index)
                await secondary.create_queue(path, **{**PROPERTIES, "lock_duration": LOCK})
            for kind in KINDS:
                await self._make_entity(primary, twin, kind)

    async def _make_entity(self, administration: Any, twin: Twin, kind: Kind) -> None:
        path = entity_of(twin, kind)
        detection: dict[str, Any] = {}
        if kind in DETECTS:
            detection["requires_duplicate_detection"] = True
            detection["duplicate_detection_history_time_window"] = DETECTION_WINDOW
        locks = {"lock_duration": SESSION_LOCK if kind == "session" else LOCK, "max_delivery_count": DELIVERIES}
        if kind != "topic":
            await administration.create_queue(path, requires_session=kind == "session", **detection, **locks)
            return
        await administration.create_topic(path, **detection)
        for name in SUBSCRIPTIONS:
            await administration.create_subscription(path, name, **locks)

    # ---- what happens ----

    async def _listen(self) -> None:
        """Write down what the application tells, until it ends."""
        while line := await self._application.line():
            self._note(*json.loads(line))

    def _note(self, word: str, *more: Any) -> None:
        match word, more:
            case "attempt", (entity, message_id, session):
                self._history.attempt(entity, message_id, session=session, content=content_of(message_id))
            case "accepted", (entity, message_id, route):
                self._history.acknowledge(entity, message_id, route)
                self.report.diverted += route == "backlog"
                self._routes[entity] = route
            case "refused", (_, error):
                self.report.refused[error] += 1
            case "received", (place, message_id, number, session, content):
                self._history.receive(place, message_id, number, session=session, content=content)
            case "quiet", ():
                self._is_quiet.set()

    async def _go_wrong(self, ends: float, listening: asyncio.Task[None]) -> None:
        """Fault after fault, and look at the processes meanwhile. Raises `RuntimeError` if the application ends."""
        sampling = asyncio.create_task(self._sample())
        telling = asyncio.create_task(self._tell_progress())
        try:
            for spate in spates(self.report.seed):
                if time.monotonic() + spate.seconds + spate.calm > ends:
                    break
                await spate.begin(self._bench)
                await asyncio.sleep(spate.seconds)
                self.report.fired += await spate.end(self._bench)
                self.report.faults += len(spate.strikes)
                await asyncio.sleep(spate.calm)
                if listening.done():
                    raise RuntimeError(f"the application ended, with {self._application.exit_code}")
            await asyncio.sleep(max(0.0, ends - time.monotonic()))
        finally:
            for task in (sampling, telling):
                task.cancel()
            await asyncio.gather(sampling, telling, return_exceptions=True)

    async def _sample(self) -> None:
        processes = {
            "application": self._application,
            "primary": self._bench.primary.namespace,
            "secondary": self._bench.secondary.namespace,
        }
        while True:
            for name, one in processes.items():
                self._samples[name].append(look_at(one.process.pid))
            await asyncio.sleep(max(1.0, self._seconds / SAMPLES))

    async def _tell_progress(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS)
            sent = len(self._history.sent)
            typer.echo(f"{time.monotonic() - began:,.0f} s: {sent:,} sent, {self.report.faults} faults", err=True)

    # ---- the end of it ----

    async def _left(self) -> dict[str, int]:
        """What is not yet where it belongs, or not yet received, by the word of the namespaces."""
        left: dict[str, int] = {}
        for station in (self._bench.primary, self._bench.secondary):
            found = await station.namespace.control("GET", "entities")
            for path, one in found.items():
                count = sum(one[name] for name in ("active", "deferred", "scheduled", "locked", "dead_letter"))
                if count:
                    left[path] = count
        return left

    async def _drain(self) -> None:
        ends, quiet, left = time.monotonic() + DRAINING, 0, await self._left()
        while time.monotonic() < ends and quiet < 2:
            await asyncio.sleep(1.0)
            left = await self._left()
            quiet = 0 if left else quiet + 1
        self._history.put_in_order(entity_of(twin, "session") for twin in TWINS)
        self._history.drained(left)
        try:
            self.report.verdict = check(self._history)
        except NotDrainedError as error:
            self.report.problems.append(str(error))


async def run_soak(seconds: float, seed: int, profile: ProfileName = "default") -> Report:
    """A soak of so many seconds, and what came of it."""
    with tempfile.TemporaryDirectory(prefix="twinbus-soak-") as folder:
        async with Bench.of(Path(folder), profile) as bench:
            return await Soak(bench, seed, seconds).run()


def soak(
    seconds: Annotated[float, typer.Option(min=10, help="How long to send while things go wrong.")] = 3600,
    seed: Annotated[int, typer.Option(min=0, help="For the faults, when they strike and how long they last.")] = 0,
    azure: Annotated[bool, typer.Option("--azure", help="Namespaces as strict as the service.")] = False,
) -> None:
    """Send and receive for a long time while things go wrong: nothing may be lost, and nothing may grow.

    Both clients, with queues, batches, a topic, sessions and scheduled messages. Prints a table, and the same
    figures as JSON in the last line.

    Example: python -m twinbus.proof soak --seconds 60 --seed 3
    """
    with contextlib.suppress(KeyboardInterrupt):
        report = asyncio.run(run_soak(seconds, seed, "azure" if azure else "default"))
        typer.echo(report.table())
        typer.echo(json.dumps({"soak": report.to_json()}))
        for problem in report.problems:
            typer.echo(f"WRONG: {problem}", err=True)
        if report.is_good:
            return
    raise typer.Exit(FAILED)
