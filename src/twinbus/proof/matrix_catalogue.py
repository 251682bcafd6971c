"""Every fault of the matrix: where it strikes, what runs meanwhile, and what is promised of it."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from twinbus.pairing.policy import FailoverPolicy

from .matrix_bench import ProfileName
from .matrix_cells import WORKS, Cell, Where, Work
from .matrix_children import CHILD_SESSIONS, KilledSender, KilledSyphon, StoppedSyphon
from .matrix_crowd import CROWD_SESSIONS, Blocked, Crowd, Crowds, LastCalls, QueueState, Spinning
from .matrix_processes import faketime_library
from .matrix_spark import KilledSpark, has_spark
from .matrix_troubles import (
    Ambushes,
    BrokerFaults,
    ClockJump,
    Dawdling,
    Deleted,
    ExpiringBacklog,
    Flapping,
    Idle,
    Kill,
    Spells,
    Trouble,
    frozen,
    full_disk,
)
from .proxy import Weather
from .proxy_frames import Point

#: When a fault strikes: while senders send, or while the syphon brings a backlog home and senders pause.
Phase = Literal["send", "drain"]
#: Beyond what holds for every cell. stays: no entity fails over and nothing is diverted. errors: nothing is accepted
#: while it lasts. diverts: something is. no alarm: nothing is suspected, failed over or retired. calm: the same, and
#: calls without a timeout are sent once, to the primary. takes: no call raises. fails over: it does, while it lasts.
Promise = Literal["", "stays", "errors", "diverts", "no alarm", "calm", "takes", "fails over"]

BENCHES: tuple[ProfileName, ...] = ("default", "azure", "impatient", "clock")
BOTH_PROFILES: tuple[ProfileName, ...] = ("default", "azure")
EVERYWHERE: tuple[Where, ...] = ("primary", "secondary", "both")
PRIMARY: tuple[Where, ...] = ("primary",)
SECONDARY: tuple[Where, ...] = ("secondary",)
EITHER: tuple[Where, ...] = ("primary", "secondary")
JUMP = 300  # seconds by which a clock is set, less than the window of duplicate detection
AT_ONCE: tuple[Work, ...] = ("single", "batch", "topic", "session")
IN_CROWDS: tuple[Work, ...] = ("single", "session")
LIFE = 4.0  # seconds a message may live where that is the point


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the catalogue."""

    name: str
    make: Callable[[], Trouble]
    where: tuple[Where, ...] = PRIMARY
    phase: Phase = "send"
    promise: Promise = ""
    works: tuple[Work, ...] = WORKS
    profiles: tuple[ProfileName, ...] = BOTH_PROFILES
    policy: Callable[[], FailoverPolicy] = FailoverPolicy.availability
    #: Whether the client of the cell hosts the syphon.
    hosts_syphon: bool = True
    more_sessions: tuple[str, ...] = ()
    #: Whether calls have timeouts so short that they may rightly be diverted.
    is_impatient: bool = False
    #: Options of the pairing that differ from those of other cells.
    options: Mapping[str, Any] = field(default_factory=dict)


def _network() -> list[Entry]:
    weather = [
        Entry("refuse", lambda: Spells(Weather.REFUSE), EITHER),
        Entry("refuse", lambda: Spells(Weather.REFUSE), ("both",), promise="errors"),
        Entry("black-hole", lambda: Spells(Weather.BLACK_HOLE), EITHER),
        Entry("black-hole", lambda: Spells(Weather.BLACK_HOLE), ("both",), promise="errors"),
        Entry("answers-lost", lambda: Spells(Weather.ANSWERS_LOST), EVERYWHERE),
        Entry("half-open", lambda: Spells(Weather.HALF_OPEN), EVERYWHERE),
        Entry("slow", lambda: Spells(Weather.SLOW, 0.03), EITHER),
        Entry("too-slow", lambda: Spells(Weather.SLOW, 0.7), EVERYWHERE),
        Entry("sliced", lambda: Spells(Weather.SLICED), EITHER),
        Entry("flapping", Flapping, PRIMARY),
    ]
    resets = [
        Entry("reset-before-transfer", lambda: Ambushes(Point.TRANSFER, "nothing"), EVERYWHERE),
        Entry("reset-mid-frame", lambda: Ambushes(Point.TRANSFER, "half"), EVERYWHERE),
        Entry("reset-before-ack", lambda: Ambushes(Point.OUTCOME, "nothing"), EVERYWHERE),
        Entry("reset-after-ack", lambda: Ambushes(Point.OUTCOME, "all"), EITHER),
        Entry("drain-reset-on-delivery", lambda: Ambushes(Point.DELIVERY, "half"), SECONDARY, "drain"),
        Entry("drain-reset-before-complete", lambda: Ambushes(Point.SETTLEMENT, "nothing"), SECONDARY, "drain"),
        Entry("drain-reset-after-complete", lambda: Ambushes(Point.SETTLEMENT, "all"), SECONDARY, "drain"),
        Entry("drain-reset-mid-move", lambda: Ambushes(Point.TRANSFER, "half"), PRIMARY, "drain"),
        Entry("drain-reset-before-accept", lambda: Ambushes(Point.OUTCOME, "nothing"), PRIMARY, "drain"),
    ]
    return weather + resets


def _broker(name: str, kind: str, on: str | None, where: tuple[Where, ...], **more: object) -> Entry:
    phase: Phase = "drain" if name.startswith("drain") else "send"
    works = WORKS
    if on == "management":
        works = ("scheduled",)
    elif on == "send" and kind == "detach":
        works = AT_ONCE
    # Scheduling is a request to $management; its link is never detached on purpose.
    operations = ("send", "management") if on == "send" and kind != "detach" else (on,) if on else ()
    return Entry(name, lambda: BrokerFaults(kind, operations, **more), where, phase, works=works)  # type: ignore[arg-type]


def _namespace() -> list[Entry]:
    internal = {"condition": "amqp:internal-error"}
    return [
        _broker("send-rejected", "reject", "send", EVERYWHERE, **internal),
        _broker("send-detached", "detach", "send", EVERYWHERE),
        _broker("send-closed", "close", "send", EVERYWHERE),
        _broker("send-busy", "throttle", "send", EITHER, count=6),
        _broker("throttle-storm", "throttle", "send", PRIMARY, probability=0.6),
        _broker("send-ack-dropped", "drop_ack", "send", EVERYWHERE, count=3),
        _broker("send-ack-dropped-reset", "drop_ack", "send", EITHER, count=3, then_reset=True),
        _broker("quota-full", "fill", None, EITHER),
        _broker("entity-disabled", "disable", None, EITHER),
        _broker("token-expired", "expire", None, EITHER),
        _broker("token-refused", "reject", "token", EITHER, reconnect=True, condition="amqp:unauthorized-access"),
        _broker("attach-refused", "reject", "attach", EITHER, reconnect=True, **internal),
        _broker("receive-detached", "detach", "receive", PRIMARY, count=3),
        _broker("receive-closed", "close", "receive", PRIMARY, count=3),
        _broker("settle-rejected", "reject", "settle", PRIMARY, count=3, **internal),
        _broker("settle-ack-dropped", "drop_ack", "settle", PRIMARY, count=2),
        _broker("management-rejected", "reject", "management", PRIMARY, **internal),
        _broker("management-busy", "throttle", "management", PRIMARY, count=3),
        _broker("management-ack-dropped", "drop_ack", "management", PRIMARY, count=2),
        _broker("drain-receive-detached", "detach", "receive", SECONDARY, count=2),
        _broker("drain-receive-closed", "close", "receive", SECONDARY, count=2),
        _broker("drain-settle-rejected", "reject", "settle", SECONDARY, count=3, **internal),
        _broker("drain-settle-busy", "throttle", "settle", SECONDARY, count=3),
        _broker("drain-settle-ack-dropped", "drop_ack", "settle", SECONDARY, count=2),
        _broker("drain-settle-detached", "detach", "settle", SECONDARY, count=2),
        _broker("drain-send-rejected", "reject", "send", PRIMARY, count=3, **internal),
        _broker("drain-send-busy", "throttle", "send", PRIMARY, count=3),
        _broker("drain-send-ack-dropped", "drop_ack", "send", PRIMARY, count=2),
        _broker("drain-send-disabled", "disable", "send", PRIMARY, count=3),
        _broker("drain-send-full", "fill", "send", PRIMARY, count=3),
    ]


def _processes() -> list[Entry]:
    return [
        Entry("kill", Kill, EITHER),
        Entry("kill", Kill, ("both",), promise="errors"),
        Entry("kill-before-commit", lambda: Kill(Point.TRANSFER), EITHER),
        Entry("kill-after-commit", lambda: Kill(Point.OUTCOME), EITHER),
        Entry("torn-log", lambda: Kill(Point.OUTCOME, tear_log=True), EITHER),
        Entry("disk-full", full_disk, PRIMARY),
        Entry("frozen", frozen, PRIMARY),
        Entry("frozen", frozen, ("both",), promise="errors"),
        Entry("entity-deleted", Deleted, works=AT_ONCE),
        Entry(
            "entity-deleted-and-diverted",
            Deleted,
            promise="diverts",
            works=AT_ONCE,
            policy=FailoverPolicy.documented,
        ),
        Entry("kill-sender", KilledSender, works=("single", "session"), more_sessions=CHILD_SESSIONS),
        Entry(
            "kill-syphon", KilledSyphon, SECONDARY, "drain", works=("single", "session", "topic"), hosts_syphon=False
        ),
        Entry("stop-syphon", StoppedSyphon, PRIMARY, "drain", works=("single", "session", "topic"), hosts_syphon=False),
        Entry("idle-detach", lambda: Idle(3.0), promise="stays", works=("single", "batch"), profiles=("impatient",)),
        Entry("lock-expiry", Dawdling, works=("single", "topic")),
        Entry("expiry-in-backlog", lambda: ExpiringBacklog(LIFE), promise="diverts", works=("single",)),
    ]


def _crowd(name: str, crowd: Crowd, where: tuple[Where, ...] = PRIMARY, **more: Any) -> Entry:
    given: dict[str, Any] = {"promise": "calm", "works": IN_CROWDS, "make": lambda: Crowds(crowd), **more}
    return Entry(
        name,
        where=where,
        more_sessions=CROWD_SESSIONS,
        is_impatient=crowd.timeouts is not None,
        # Longer than a busy machine is late: what is tried is not how fast it is.
        options=given.pop("options", {"attempt_timeout": 5.0}),
        **given,
    )


def _crowds() -> list[Entry]:
    """One sender and many callers. Where nothing is wrong with a namespace, nothing may come of what they do."""
    impatient, brief = (0.001, 0.05), (0.1, 0.5)
    short = {"attempt_timeout": 2.0}
    return [
        _crowd("callers-8-30ms", Crowd(8, 0.03), EITHER),
        _crowd("callers-8-200ms", Crowd(8, 0.2), EITHER),
        _crowd("callers-64-30ms", Crowd(64, 0.03), EITHER),
        _crowd("callers-64-200ms", Crowd(64, 0.2), EITHER),
        _crowd("callers-8-cancelled", Crowd(8, 0.2, cancelled=0.5), EITHER),
        _crowd("callers-64-cancelled", Crowd(64, 0.2, cancelled=0.5), EITHER),
        _crowd("callers-8-impatient", Crowd(8, 0.03, timeouts=impatient), EITHER, options=short),
        _crowd("callers-64-impatient", Crowd(64, 0.2, timeouts=brief), EITHER, options=short),
        _crowd("callers-blocked", Crowd(8), make=lambda: Blocked(Crowd(8)), promise="no alarm", options=short),
        _crowd("callers-starved", Crowd(8), make=lambda: Spinning(Crowd(8)), promise="no alarm", options=short),
        _outage("outage-64-callers", Crowd(64, 0.03), Weather.REFUSE, "diverts"),
        _outage("outage-64-cancelled", Crowd(64, 0.03, cancelled=0.5), Weather.REFUSE, "diverts"),
        _outage("black-hole-64-callers", Crowd(64, 0.03), Weather.BLACK_HOLE, "diverts"),
        _outage("black-hole-8-impatient", Crowd(8, 0.03, timeouts=brief), Weather.BLACK_HOLE, "fails over"),
        _crowd(
            "black-hole-last-calls",
            Crowd(8),
            make=lambda: LastCalls(Crowd(8), Weather.BLACK_HOLE),
            promise="fails over",
            works=("single",),
            options=short,
        ),
    ]


def _outage(name: str, crowd: Crowd, weather: Weather, promise: Promise) -> Entry:
    return _crowd(name, crowd, make=lambda: Crowds(crowd, weather), promise=promise, options={})


def _queue_states() -> list[Entry]:
    """One of two backlog queues is in a bad state during an outage of the primary. The other one takes messages."""
    states = {
        "full": lambda: QueueState("fill"),
        "disabled": lambda: QueueState("disable"),
        "deleted": lambda: QueueState("reject", ("attach", "send"), condition="amqp:not-found"),
        "forbidden": lambda: QueueState("reject", ("attach", "send"), condition="amqp:unauthorized-access"),
        "slow": lambda: QueueState("slow", ("send",), delay=3.0),
    }
    return [
        entry
        for name, make in states.items()
        for entry in (
            Entry(f"queue-{name}", make, SECONDARY, promise="takes", works=("single", "batch")),
            # A session stays with the queue that has its messages: rather an error than out of order.
            Entry(f"queue-{name}-in-order", make, SECONDARY, works=("session",)),
        )
    ]


def _clocks() -> list[Entry]:
    """Clocks are set only where there is a library for it, which is no package of Python."""
    if faketime_library() is None:
        return []
    return [
        Entry("clock-forward", lambda: ClockJump(JUMP), EVERYWHERE, profiles=("clock",)),
        # What is scheduled would be due five minutes later, rightly.
        Entry("clock-back", lambda: ClockJump(-JUMP), EVERYWHERE, works=AT_ONCE, profiles=("clock",)),
    ]


def _spark() -> list[Entry]:
    """Where the extra `spark` is installed."""
    if not has_spark():
        return []
    works: tuple[Work, ...] = ("single", "session")
    return [
        Entry("kill-spark-driver", lambda: KilledSpark("driver"), SECONDARY, "drain", works=works, hosts_syphon=False),
        Entry("kill-spark-worker", lambda: KilledSpark("worker"), SECONDARY, "drain", works=works, hosts_syphon=False),
    ]


CATALOGUE: list[Entry] = [
    *_network(),
    *_namespace(),
    *_crowds(),
    *_queue_states(),
    *_processes(),
    *_spark(),
    *_clocks(),
]


@dataclass(frozen=True, slots=True)
class Plan:
    """Cells that run together: the same fault at the same place."""

    entry: Entry
    cells: tuple[Cell, ...]


def plans(patterns: Sequence[str] = ("*",), seed: int = 0) -> Iterator[Plan]:
    """All rounds with a cell whose name fits one of the patterns; of each round only those cells.

    About half of the cells have duplicate detection; with the next seed the others have.
    """
    for profile, entry in itertools.product(BENCHES, CATALOGUE):
        for where in entry.where if profile in entry.profiles else ():
            cells = [
                Cell(entry.name, where, work, _detects(f"{profile}/{entry.name}/{where}/{work}", seed), profile, seed)
                for work in entry.works
            ]
            chosen = tuple(one for one in cells if any(fnmatchcase(one.name, pattern) for pattern in patterns))
            if chosen:
                yield Plan(entry, chosen)


def _detects(name: str, seed: int) -> bool:
    """By lot, but always the same for a cell, whatever other cells there are."""
    return bool((zlib.crc32(name.encode()) + seed) % 2)
