"""Lists every fault of the matrix: where it strikes, the workloads, and what is promised."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from twinbus.pairing.failover.error_classification import FailoverPolicy

from ..breaking_proxy import FaultKind
from ..proxy_frames import FaultPoint
from .cells import WORKS, Cell, Where, Work
from .child_processes import CHILD_SESSIONS, KilledSender, KilledSyphon, StoppedSyphon
from .crowd import CROWD_SESSIONS, BlockedLoop, Crowd, CrowdFault, LastCalls, QueueState, StarvedProcess
from .faults import (
    BrokerFaults,
    ClockJump,
    DeletedEntity,
    ExpiringMessages,
    Flapping,
    FrameFaults,
    IdleSenders,
    Kill,
    LastingFaults,
    MatrixFault,
    SlowReceivers,
    frozen,
    full_disk,
)
from .matrix_bench import ProfileName
from .namespace_processes import faketime_library
from .spark_drains import KilledSpark, has_spark

#: When a fault strikes: while senders send, or while the syphon drains a backlog and senders pause.
Phase = Literal["send", "drain"]
#: Promises beyond those of every cell. stays: no entity fails over and nothing is diverted. errors: nothing is accepted
#: during the fault. diverts: something is diverted. no alarm: nothing is suspected, failed over or retired. calm: as no
#: alarm, and calls without a timeout are sent once, to the primary. takes: no call raises. fails over: during the
#: fault.
Promise = Literal["", "stays", "errors", "diverts", "no alarm", "calm", "takes", "fails over"]

BENCHES: tuple[ProfileName, ...] = ("default", "azure", "impatient", "clock")
BOTH_PROFILES: tuple[ProfileName, ...] = ("default", "azure")
EVERYWHERE: tuple[Where, ...] = ("primary", "secondary", "both")
PRIMARY: tuple[Where, ...] = ("primary",)
SECONDARY: tuple[Where, ...] = ("secondary",)
EITHER: tuple[Where, ...] = ("primary", "secondary")
JUMP = 300  # seconds by which a clock is set, less than the window of duplicate detection
UNSCHEDULED: tuple[Work, ...] = ("single", "batch", "topic", "session")
CROWD_WORKS: tuple[Work, ...] = ("single", "session")
TIME_TO_LIVE = 4.0  # seconds, in cells about expiry


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the catalogue."""

    name: str
    make: Callable[[], MatrixFault]
    where: tuple[Where, ...] = PRIMARY
    phase: Phase = "send"
    promise: Promise = ""
    works: tuple[Work, ...] = WORKS
    profiles: tuple[ProfileName, ...] = BOTH_PROFILES
    policy: Callable[[], FailoverPolicy] = FailoverPolicy.availability
    #: Whether the client of the cell hosts the syphon.
    hosts_syphon: bool = True
    more_sessions: tuple[str, ...] = ()
    #: Whether call timeouts are so short that calls may be diverted.
    has_short_timeouts: bool = False
    #: Pairing options that differ from `traffic.OPTIONS`.
    options: Mapping[str, Any] = field(default_factory=dict)


def _network() -> list[Entry]:
    lasting = [
        Entry("refuse", lambda: LastingFaults(FaultKind.REFUSE), EITHER),
        Entry("refuse", lambda: LastingFaults(FaultKind.REFUSE), ("both",), promise="errors"),
        Entry("black-hole", lambda: LastingFaults(FaultKind.BLACK_HOLE), EITHER),
        Entry("black-hole", lambda: LastingFaults(FaultKind.BLACK_HOLE), ("both",), promise="errors"),
        Entry("answers-lost", lambda: LastingFaults(FaultKind.ANSWERS_LOST), EVERYWHERE),
        Entry("half-open", lambda: LastingFaults(FaultKind.HALF_OPEN), EVERYWHERE),
        Entry("slow", lambda: LastingFaults(FaultKind.SLOW, 0.03), EITHER),
        Entry("too-slow", lambda: LastingFaults(FaultKind.SLOW, 0.7), EVERYWHERE),
        Entry("sliced", lambda: LastingFaults(FaultKind.SLICED), EITHER),
        Entry("flapping", Flapping, PRIMARY),
    ]
    resets = [
        Entry("reset-before-transfer", lambda: FrameFaults(FaultPoint.TRANSFER, "nothing"), EVERYWHERE),
        Entry("reset-mid-frame", lambda: FrameFaults(FaultPoint.TRANSFER, "half"), EVERYWHERE),
        Entry("reset-before-ack", lambda: FrameFaults(FaultPoint.OUTCOME, "nothing"), EVERYWHERE),
        Entry("reset-after-ack", lambda: FrameFaults(FaultPoint.OUTCOME, "all"), EITHER),
        Entry("drain-reset-on-delivery", lambda: FrameFaults(FaultPoint.DELIVERY, "half"), SECONDARY, "drain"),
        Entry("drain-reset-before-complete", lambda: FrameFaults(FaultPoint.SETTLEMENT, "nothing"), SECONDARY, "drain"),
        Entry("drain-reset-after-complete", lambda: FrameFaults(FaultPoint.SETTLEMENT, "all"), SECONDARY, "drain"),
        Entry("drain-reset-mid-move", lambda: FrameFaults(FaultPoint.TRANSFER, "half"), PRIMARY, "drain"),
        Entry("drain-reset-before-accept", lambda: FrameFaults(FaultPoint.OUTCOME, "nothing"), PRIMARY, "drain"),
    ]
    return lasting + resets


def _broker(name: str, kind: str, on: str | None, where: tuple[Where, ...], **fault_options: object) -> Entry:
    phase: Phase = "drain" if name.startswith("drain") else "send"
    works = WORKS
    if on == "management":
        works = ("scheduled",)
    elif on == "send" and kind == "detach":
        works = UNSCHEDULED
    # Scheduling is a request to $management, whose link is never detached by a fault.
    operations = ("send", "management") if on == "send" and kind != "detach" else (on,) if on else ()
    return Entry(name, lambda: BrokerFaults(kind, operations, **fault_options), where, phase, works=works)  # type: ignore[arg-type]


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
        Entry("kill-before-commit", lambda: Kill(FaultPoint.TRANSFER), EITHER),
        Entry("kill-after-commit", lambda: Kill(FaultPoint.OUTCOME), EITHER),
        Entry("torn-log", lambda: Kill(FaultPoint.OUTCOME, tear_log=True), EITHER),
        Entry("disk-full", full_disk, PRIMARY),
        Entry("frozen", frozen, PRIMARY),
        Entry("frozen", frozen, ("both",), promise="errors"),
        Entry("entity-deleted", DeletedEntity, works=UNSCHEDULED),
        Entry(
            "entity-deleted-and-diverted",
            DeletedEntity,
            promise="diverts",
            works=UNSCHEDULED,
            policy=FailoverPolicy.documented,
        ),
        Entry("kill-sender", KilledSender, works=("single", "session"), more_sessions=CHILD_SESSIONS),
        Entry(
            "kill-syphon", KilledSyphon, SECONDARY, "drain", works=("single", "session", "topic"), hosts_syphon=False
        ),
        Entry("stop-syphon", StoppedSyphon, PRIMARY, "drain", works=("single", "session", "topic"), hosts_syphon=False),
        Entry(
            "idle-detach", lambda: IdleSenders(3.0), promise="stays", works=("single", "batch"), profiles=("impatient",)
        ),
        Entry("lock-expiry", SlowReceivers, works=("single", "topic")),
        Entry("expiry-in-backlog", lambda: ExpiringMessages(TIME_TO_LIVE), promise="diverts", works=("single",)),
    ]


def _crowd(name: str, crowd: Crowd, where: tuple[Where, ...] = PRIMARY, **entry_options: Any) -> Entry:
    settings: dict[str, Any] = {
        "promise": "calm",
        "works": CROWD_WORKS,
        "make": lambda: CrowdFault(crowd),
        **entry_options,
    }
    return Entry(
        name,
        where=where,
        more_sessions=CROWD_SESSIONS,
        has_short_timeouts=crowd.timeouts is not None,
        # Longer than the delays of a busy machine: speed is not under test.
        options=settings.pop("options", {"attempt_timeout": 5.0}),
        **settings,
    )


def _crowds() -> list[Entry]:
    """One sender with many callers. While the namespaces are healthy, callers must not cause alarms."""
    short_timeouts, longer_timeouts = (0.001, 0.05), (0.1, 0.5)
    short_attempts = {"attempt_timeout": 2.0}
    return [
        _crowd("callers-8-30ms", Crowd(8, 0.03), EITHER),
        _crowd("callers-8-200ms", Crowd(8, 0.2), EITHER),
        _crowd("callers-64-30ms", Crowd(64, 0.03), EITHER),
        _crowd("callers-64-200ms", Crowd(64, 0.2), EITHER),
        _crowd("callers-8-cancelled", Crowd(8, 0.2, cancelled=0.5), EITHER),
        _crowd("callers-64-cancelled", Crowd(64, 0.2, cancelled=0.5), EITHER),
        _crowd("callers-8-impatient", Crowd(8, 0.03, timeouts=short_timeouts), EITHER, options=short_attempts),
        _crowd("callers-64-impatient", Crowd(64, 0.2, timeouts=longer_timeouts), EITHER, options=short_attempts),
        _crowd(
            "callers-blocked", Crowd(8), make=lambda: BlockedLoop(Crowd(8)), promise="no alarm", options=short_attempts
        ),
        _crowd(
            "callers-starved",
            Crowd(8),
            make=lambda: StarvedProcess(Crowd(8)),
            promise="no alarm",
            options=short_attempts,
        ),
        _outage("outage-64-callers", Crowd(64, 0.03), FaultKind.REFUSE, "diverts"),
        _outage("outage-64-cancelled", Crowd(64, 0.03, cancelled=0.5), FaultKind.REFUSE, "diverts"),
        _outage("black-hole-64-callers", Crowd(64, 0.03), FaultKind.BLACK_HOLE, "diverts"),
        _outage("black-hole-8-impatient", Crowd(8, 0.03, timeouts=longer_timeouts), FaultKind.BLACK_HOLE, "fails over"),
        _crowd(
            "black-hole-last-calls",
            Crowd(8),
            make=lambda: LastCalls(Crowd(8), FaultKind.BLACK_HOLE),
            promise="fails over",
            works=("single",),
            options=short_attempts,
        ),
    ]


def _outage(name: str, crowd: Crowd, kind: FaultKind, promise: Promise) -> Entry:
    return _crowd(name, crowd, make=lambda: CrowdFault(crowd, kind), promise=promise, options={})


def _queue_states() -> list[Entry]:
    """One of two backlog queues is broken during an outage of the primary. The other one accepts messages."""
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
            # A session stays with the queue that holds its messages: an error is better than disorder.
            Entry(f"queue-{name}-in-order", make, SECONDARY, works=("session",)),
        )
    ]


def _clocks() -> list[Entry]:
    """Clock jumps, if libfaketime is installed, which is not a Python package."""
    if faketime_library() is None:
        return []
    return [
        Entry("clock-forward", lambda: ClockJump(JUMP), EVERYWHERE, profiles=("clock",)),
        # Scheduled messages would be due five minutes later, correctly.
        Entry("clock-back", lambda: ClockJump(-JUMP), EVERYWHERE, works=UNSCHEDULED, profiles=("clock",)),
    ]


def _spark() -> list[Entry]:
    """Killed Spark processes, if the extra `spark` is installed."""
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
    """Cells that run together: the same fault in the same place."""

    entry: Entry
    cells: tuple[Cell, ...]


def plans(patterns: Sequence[str] = ("*",), seed: int = 0) -> Iterator[Plan]:
    """Yield all rounds, reduced to the cells whose name matches one of the patterns.

    About half of the cells have duplicate detection; with the next seed the other half does.
    """
    for profile, entry in itertools.product(BENCHES, CATALOGUE):
        for where in entry.where if profile in entry.profiles else ():
            cells = [
                Cell(entry.name, where, work, _detects(f"{profile}/{entry.name}/{where}/{work}", seed), profile, seed)
                for work in entry.works
            ]
            chosen = tuple(cell for cell in cells if any(fnmatchcase(cell.name, pattern) for pattern in patterns))
            if chosen:
                yield Plan(entry, chosen)


def _detects(name: str, seed: int) -> bool:
    """Pseudo-random, but stable for a cell whatever other cells exist."""
    return bool((zlib.crc32(name.encode()) + seed) % 2)
