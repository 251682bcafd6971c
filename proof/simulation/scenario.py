"""Draws a complete scenario from a seed: options, sends, faults and actions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from twinbus.pairing.failover.error_classification import FailoverPolicy
from twinbus.pairing.options import SendAvailabilityOptions, SyphonOptions

from .network import LATENCY, Fault, FaultKind

PRIMARY, SECONDARY = "contoso", "standby"
#: Longest duration of faults and traffic, in seconds.
MAX_DURATION = 60.0
MAX_FAULT = 25.0
#: Fault kinds of a whole namespace, and of one entity.
NAMESPACE_FAULTS = (
    FaultKind.REFUSE,
    FaultKind.CRASH,
    FaultKind.BLACK_HOLE,
    FaultKind.SLOW,
    FaultKind.RESET_BEFORE,
    FaultKind.RESET_AFTER,
    FaultKind.LOST_ANSWER,
    FaultKind.BUSY,
    FaultKind.DETACH,
)
ENTITY_FAULTS = (
    FaultKind.BLACK_HOLE,
    FaultKind.SLOW,
    FaultKind.RESET_BEFORE,
    FaultKind.RESET_AFTER,
    FaultKind.LOST_ANSWER,
    FaultKind.BUSY,
    FaultKind.QUOTA,
    FaultKind.DISABLED,
    FaultKind.DETACH,
)


class Action(Enum):
    """What happens in a run besides sending and faults. The values appear in traces and in the JSON summary."""

    KILL_SYPHON = "kill the syphon"
    RESTART_SYPHON = "restart the syphon"
    EXPIRE_LOCKS = "locks run out"
    CLOSE_SENDER = "close a sender"
    FAIL_OVER = "fail over by hand"
    FAIL_BACK = "fail back by hand"
    CLOCK_JUMP = "the clock of the syphon's machine jumps"
    STALL_LEDGER = "the ledger stalls"
    CANCEL_SEND = "a caller cancels its send"
    CLOSE_PARTNER = "one of the two clients is closed"
    STARVE = "the process runs late"


#: Relative frequency of each action. `STARVE` is drawn in `callers.py`.
_WEIGHTS = {
    Action.KILL_SYPHON: 4,
    Action.RESTART_SYPHON: 2,
    Action.EXPIRE_LOCKS: 3,
    Action.CLOSE_SENDER: 2,
    Action.FAIL_OVER: 2,
    Action.FAIL_BACK: 1,
    Action.CLOCK_JUMP: 1,
    Action.STALL_LEDGER: 3,
    Action.CANCEL_SEND: 2,
    Action.CLOSE_PARTNER: 1,
}


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue in the primary."""

    path: str
    requires_session: bool
    duplicate_window: float | None
    shows_pings: bool


@dataclass(frozen=True, slots=True)
class PlannedSend:
    """One planned call of a sender."""

    at: float
    sender: int
    message_ids: tuple[str, ...]
    session: str | None
    time_to_live: float | None
    scheduled_in: float | None
    timeout: float | None
    #: Whether it is one of many concurrent calls. Other calls of a session wait for the previous one.
    is_in_burst: bool = False
    #: Seconds after which the caller cancels it.
    cancelled_after: float | None = None


@dataclass(frozen=True, slots=True)
class BusySession:
    """A session that is sent to continuously, one call after the other, until the end of the run."""

    sender: int
    session: str
    since: float
    #: Seconds between two calls.
    pause: float
    timeout: float | None


@dataclass(frozen=True, slots=True)
class PlannedAction:
    at: float
    action: Action
    #: Index of the sender, entity or side.
    which: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that is planned for a run."""

    seed: int
    options: SendAvailabilityOptions
    queues: tuple[Queue, ...]
    #: The queue of each sender.
    senders: tuple[Queue, ...]
    sends: tuple[PlannedSend, ...]
    faults: tuple[Fault, ...]
    actions: tuple[PlannedAction, ...]
    #: Start time of the first syphon, if it runs in its own process.
    syphon_at: float
    has_ledger: bool
    skews: tuple[float, float]
    duration: float
    #: Least and most one-way latency of each namespace, in seconds.
    latencies: tuple[tuple[float, float], tuple[float, float]] = (LATENCY, LATENCY)
    busy_sessions: tuple[BusySession, ...] = ()


def plain_scenario(seed: int) -> Scenario:
    """A scenario with few callers. Depends on the seed only."""
    random = Random(seed)
    duration = random.uniform(15.0, MAX_DURATION)
    options = _options(random)
    queues = tuple(_queue(random, number) for number in range(random.randint(1, 2)))
    senders = tuple(random.choice(queues) for _ in range(random.randint(1, 3)))
    backlog = [f"{PRIMARY}/x-servicebus-transfer/{index}" for index in range(options.backlog_queue_count)]
    return Scenario(
        seed,
        options,
        queues,
        senders,
        tuple(_sends(random, senders, duration)),
        tuple(_fault(random, duration, [queue.path for queue in queues], backlog) for _ in range(random.randint(1, 4))),
        tuple(sorted(_actions(random, duration), key=lambda action: action.at)),
        random.choice([0.0, random.uniform(0.0, duration), duration + 100.0]),
        random.random() < 0.7,
        (random.choice([0.0, random.uniform(-100.0, 100.0)]), random.choice([0.0, random.uniform(-100.0, 100.0)])),
        duration,
    )


def _options(random: Random) -> SendAvailabilityOptions:
    return SendAvailabilityOptions(
        backlog_queue_count=random.randint(1, 3),
        failover_interval=random.choice([0.0, 1.0, 5.0, 10.0]),
        ping_primary_interval=random.choice([1.0, 2.0, 5.0]),
        attempt_timeout=random.choice([1.0, 2.0, 5.0]),
        backlog_cooldown=random.choice([2.0, 10.0]),
        while_suspect=random.choice(["divert", "divert", "divert", "raise"]),
        probe=random.choice(["ping", "ping", "link"]),
        ttl=random.choice(["remaining", "remaining", "remaining", "restart"]),
        order=random.choice([None, "session"]),
        policy=random.choice([FailoverPolicy.availability(), FailoverPolicy.documented()]),
        enable_syphon=random.random() < 0.5,
        primary_name=PRIMARY,
        syphon=SyphonOptions(poll=30.0, retry_min=1.0, retry_max=8.0, rate=random.choice([None, None, 20.0])),
    )


def _queue(random: Random, number: int) -> Queue:
    return Queue(
        f"orders-{number}",
        requires_session=random.random() < 0.4,
        duplicate_window=600.0 if random.random() < 0.4 else None,
        shows_pings=random.random() < 0.3,
    )


def _sends(random: Random, senders: tuple[Queue, ...], duration: float) -> list[PlannedSend]:
    sends = []
    for sender, queue in enumerate(senders):
        has_sessions = queue.requires_session or random.random() < 0.5
        for number in range(random.randint(4, 12)):
            count = random.choice([1, 1, 1, 1, 3])
            session = f"s{random.randint(0, 1)}" if has_sessions else None
            is_scheduled = random.random() < 0.08 and session is None
            sends.append(
                PlannedSend(
                    random.uniform(0.0, duration),
                    sender,
                    tuple(f"{sender}-{number}-{index}" for index in range(count)),
                    session,
                    None if is_scheduled else random.choice([None, None, None, float(random.randint(5, 90))]),
                    random.uniform(1.0, 30.0) if is_scheduled else None,
                    random.choice([None, None, random.uniform(0.5, 20.0)]),
                )
            )
    return sorted(sends, key=lambda send: send.at)


def _fault(random: Random, duration: float, queues: list[str], backlog: list[str]) -> Fault:
    is_primary = random.random() < 0.7
    entity = random.choice(queues if is_primary else backlog) if random.random() < 0.4 else None
    start = random.uniform(0.0, duration * 0.9)
    end = min(duration, start + random.uniform(0.1, MAX_FAULT))
    kind = random.choice(NAMESPACE_FAULTS if entity is None else ENTITY_FAULTS)
    return Fault(kind, PRIMARY if is_primary else SECONDARY, entity, start, end, random.uniform(0.2, 1.0))


def _actions(random: Random, duration: float) -> list[PlannedAction]:
    names = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=random.randint(0, 3))
    return [
        PlannedAction(random.uniform(0.0, duration), action, random.randint(0, 9), random.uniform(-60.0, 60.0))
        for action in names
    ]
