"""Runs mixed load with random faults for a long time, and checks for loss and growth.

`python -m proof soak --seconds 3600`
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

from twinbus.pairing.backlog.provisioning import PROPERTIES
from twinbus.servicebus.entity_paths import backlog_path

from ..breaking_proxy import FaultKind, LastingFault
from ..checker import NotDrainedError, Verdict, check
from ..history import History
from ..matrix.matrix_bench import Bench, ProfileName, until
from ..matrix.namespace_processes import ChildProcess
from ..matrix.traffic import BACKLOG_QUEUES, LOCK, OPTIONS, SUBSCRIPTIONS
from .soak_client import KINDS, TWINS, Kind, Orders, Twin, content_of, entity_of, pairing_of
from .soak_faults import fault_groups
from .soak_samples import Course, Sample, courses_of, take_sample

FAILED = 1
SAMPLES = 360  # per soak, but at most one per second
START_SECONDS = 60.0  # until every sender has succeeded
END_SECONDS = 60.0  # until every call has ended
DRAIN_SECONDS = 240.0  # until no message is left
PROGRESS_SECONDS = 60.0  # between two progress lines
#: Longer than any fault with its drain; short enough that memory use is stable within the first third of an hour.
DETECTION_WINDOW = timedelta(minutes=5)
DETECTS: tuple[Kind, ...] = ("single", "topic")
SESSION_LOCK = timedelta(seconds=15)
#: Maximum delivery count. High, because connections that break while messages are locked count as deliveries.
DELIVERIES = 10_000


@dataclass(slots=True)
class Report:
    """The result of a soak."""

    seed: int
    seconds: float = 0.0
    verdict: Verdict | None = None
    courses: list[Course] = field(default_factory=list)
    #: Number of faults, and how many of them really struck.
    faults: int = 0
    fired: int = 0
    diverted: int = 0
    #: Calls that raised, by exception name.
    refused: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.problems

    def judge(self) -> None:
        """Add the broken promises to `problems`."""
        if self.verdict is not None:
            if not self.verdict.is_clean:
                self.problems.append(self.verdict.describe())
            detecting = {entity_of(twin, kind) for twin in TWINS for kind in DETECTS}
            copies = sum(message.entity in detecting for message in self.verdict.duplicated)
            if copies:
                self.problems.append(f"{copies} duplicated despite duplicate detection")
        self.problems += [
            f"{course.measure} of {course.process} grew from {course.middle:.1f} to {course.last:.1f}"
            for course in self.courses
            if not course.is_flat
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
            "courses": [course.to_json() for course in self.courses],
            "problems": self.problems,
        }

    def table(self) -> str:
        """The figures as a Markdown table."""
        lines = [
            "| process | measure | first third | middle | last | most | allowed | flat |",
            "|---|---|---:|---:|---:|---:|---:|---|",
        ]
        for course in self.courses:
            figures = " | ".join(f"{value:.1f}".removesuffix(".0") for value in (*course[2:], course.allowed))
            lines.append(f"| {course.process} | {course.measure} | {figures} | {'yes' if course.is_flat else 'NO'} |")
        return "\n".join(lines)


class Soak:
    """One soak. The namespaces and the application are processes; the proxies and the history live here."""

    def __init__(self, bench: Bench, seed: int, seconds: float) -> None:
        self._bench, self._seconds = bench, seconds
        self.report = Report(seed)
        topics = {entity_of(twin, "topic") for twin in TWINS}
        self._history = History(places={topic: [f"{topic}/{name}" for name in SUBSCRIPTIONS] for topic in topics})
        orders = Orders(bench.primary.connection_string, bench.secondary.connection_string, OPTIONS)
        self._application = ChildProcess("-m", "proof.soak.soak_client", environment=orders.as_environment())
        self._is_quiet = asyncio.Event()
        #: Route of the last message of each entity.
        self._routes: dict[str, str] = {}
        self._samples: dict[str, list[Sample]] = {"application": [], "primary": [], "secondary": []}

    async def run(self) -> Report:
        """Run the soak. Raises `RuntimeError` if the application deadline early."""
        await self._create_entities()
        await self._application.start()
        listening = asyncio.create_task(self._listen())
        try:
            await self._warm_up(listening)
            began = time.monotonic()
            await self._inject_faults(began + self._seconds, listening)
            self.report.seconds = time.monotonic() - began
            self._application.send_signal(signal.SIGUSR1)
            async with asyncio.timeout(END_SECONDS):
                await self._is_quiet.wait()
            await self._drain()
        finally:
            await self._application.stop()
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        self.report.courses = [
            course for name, samples in self._samples.items() for course in courses_of(name, samples)
        ]
        self.report.judge()
        return self.report

    async def _warm_up(self, listening: asyncio.Task[None]) -> None:
        """Make every sender use the primary, the backlog and the primary again, so that everything that opens on demand
        is open before sampling starts. Raises `RuntimeError` if that takes too long."""
        outage = LastingFault(kind=FaultKind.REFUSE)
        for route in ("primary", "backlog", "primary"):
            self._routes = {}
            if route == "backlog":
                self._bench.primary.proxy.begin(outage)
            elif outage in self._bench.primary.proxy.lasting_faults:
                await self._bench.primary.proxy.end(outage)

            def all_went(route: str = route) -> bool:
                return len(self._routes) == len(TWINS) * len(KINDS) and set(self._routes.values()) == {route}

            await until(lambda: listening.done() or all_went(), START_SECONDS)
            if not all_went():
                raise RuntimeError(f"not every sender of the application got to the {route} within {START_SECONDS:g} s")

    # ---- entities ----

    async def _create_entities(self) -> None:
        primary, secondary = self._bench.primary.administration, self._bench.secondary.administration
        for twin in TWINS:
            for index in range(BACKLOG_QUEUES):
                # As the pairing creates them, but with a shorter lock: lost connections leave locks behind.
                path = backlog_path(pairing_of(twin), index)
                await secondary.create_queue(path, **{**PROPERTIES, "lock_duration": LOCK})
            for kind in KINDS:
                await self._create_entity(primary, twin, kind)

    async def _create_entity(self, administration: Any, twin: Twin, kind: Kind) -> None:
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

    # ---- load and faults ----

    async def _listen(self) -> None:
        """Record what the application prints, until it deadline."""
        while line := await self._application.line():
            self._record(*json.loads(line))

    def _record(self, word: str, *values: Any) -> None:
        match word, values:
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

    async def _inject_faults(self, deadline: float, listening: asyncio.Task[None]) -> None:
        """Inject fault groups and sample the processes. Raises `RuntimeError` if the application deadline."""
        sampling = asyncio.create_task(self._sample())
        reporting = asyncio.create_task(self._print_progress())
        try:
            for group in fault_groups(self.report.seed):
                if time.monotonic() + group.seconds + group.pause > deadline:
                    break
                await group.begin(self._bench)
                await asyncio.sleep(group.seconds)
                self.report.fired += await group.end(self._bench)
                self.report.faults += len(group.faults)
                await asyncio.sleep(group.pause)
                if listening.done():
                    raise RuntimeError(f"the application ended early with exit code {self._application.exit_code}")
            await asyncio.sleep(max(0.0, deadline - time.monotonic()))
        finally:
            for task in (sampling, reporting):
                task.cancel()
            await asyncio.gather(sampling, reporting, return_exceptions=True)

    async def _sample(self) -> None:
        processes = {
            "application": self._application,
            "primary": self._bench.primary.namespace,
            "secondary": self._bench.secondary.namespace,
        }
        while True:
            for name, child in processes.items():
                self._samples[name].append(take_sample(child.process.pid))
            await asyncio.sleep(max(1.0, self._seconds / SAMPLES))

    async def _print_progress(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            sent = len(self._history.sent)
            typer.echo(f"{time.monotonic() - began:,.0f} s: {sent:,} sent, {self.report.faults} faults", err=True)

    # ---- drain ----

    async def _left(self) -> dict[str, int]:
        """Messages not yet moved or not yet received, by path, as the namespaces report them."""
        left: dict[str, int] = {}
        for proxied in (self._bench.primary, self._bench.secondary):
            entities = await proxied.namespace.control("GET", "entities")
            for path, counts in entities.items():
                count = sum(counts[name] for name in ("active", "deferred", "scheduled", "locked", "dead_letter"))
                if count:
                    left[path] = count
        return left

    async def _drain(self) -> None:
        deadline, empty_checks, left = time.monotonic() + DRAIN_SECONDS, 0, await self._left()
        while time.monotonic() < deadline and empty_checks < 2:
            await asyncio.sleep(1.0)
            left = await self._left()
            empty_checks = 0 if left else empty_checks + 1
        self._history.sort_by_sequence_number(entity_of(twin, "session") for twin in TWINS)
        self._history.drained(left)
        try:
            self.report.verdict = check(self._history)
        except NotDrainedError as error:
            self.report.problems.append(str(error))


async def run_soak(seconds: float, seed: int, profile: ProfileName = "default") -> Report:
    """Run a soak and return its report."""
    with tempfile.TemporaryDirectory(prefix="twinbus-soak-") as folder:
        async with Bench.of(Path(folder), profile) as bench:
            return await Soak(bench, seed, seconds).run()


def soak(
    seconds: Annotated[float, typer.Option(min=10, help="Seconds to send while faults strike.")] = 3600,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the faults: kind, time and duration.")] = 0,
    azure: Annotated[bool, typer.Option("--azure", help="Use the limits and timeouts of the service.")] = False,
) -> None:
    """Send and receive for a long time while faults strike: nothing may be lost, and no resource may grow.

    Uses both clients, with queues, batches, a topic, sessions and scheduled messages. Prints a table, and the
    same figures as JSON on the last line.

    Example: python -m proof soak --seconds 60 --seed 3
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
