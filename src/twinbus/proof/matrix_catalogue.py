"""Every fault of the matrix: where it strikes, what runs meanwhile, and what is promised of it."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from twinbus.pairing.policy import FailoverPolicy

from .matrix_bench import ProfileName
from .matrix_cells import WORKS, Cell, Where, Work
from .matrix_children import CHILD_SESSIONS, KilledSender, KilledSyphon, StoppedSyphon
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
#: while it lasts. diverts: something is.
Promise = Literal["", "stays", "errors", "diverts"]

BENCHES: tuple[ProfileName, ...] = ("default", "azure", "impatient", "clock")
BOTH_PROFILES: tuple[ProfileName, ...] = ("default", "azure")
EVERYWHERE: tuple[Where, ...] = ("primary", "secondary", "both")
PRIMARY: tuple[Where, ...] = ("primary",)
SECONDARY: tuple[Where, ...] = ("secondary",)
EITHER: tuple[Where, ...] = ("primary", "secondary")
JUMP = 300  # seconds by which a clock is set, less than the window of duplicate detection
AT_ONCE: tuple[Work, ...] = ("single", "batch", "topic", "session")
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


CATALOGUE: list[Entry] = [*_network(), *_namespace(), *_processes(), *_spark(), *_clocks()]


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
