"""Adds concurrent, impatient or cancelled callers, latency, starvation and broken backlog queues to a plain scenario.

Uses its own random numbers, so that the rest of a run is the same with and without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from random import Random

from twinbus.pairing.failover.error_classification import FailoverPolicy

from .network import LATENCY, Fault, FaultKind
from .scenario import PRIMARY, SECONDARY, Action, BusySession, PlannedAction, PlannedSend, Scenario, plain_scenario

#: Faults that leave an entity available: throttling, and detaching idle links.
HARMLESS = frozenset({FaultKind.BUSY, FaultKind.IDLE})
#: Also harmless, unless the failover policy counts them.
_REFUSES = frozenset({FaultKind.QUOTA, FaultKind.DISABLED})
#: Faults of a single backlog queue.
QUEUE_STATES = (FaultKind.QUOTA, FaultKind.DISABLED, FaultKind.DELETED, FaultKind.FORBIDDEN, FaultKind.SLOW)
#: Longest one-way latency in seconds: 200 ms for a round trip.
MAX_LATENCY = 0.1
#: One-way latency of a primary that accepts a message well before the next one is sent.
LOW_LATENCY = 0.001, 0.005
#: Callers per burst, with relative frequency.
BURSTS = {8: 7, 64: 3}
#: Seconds per event loop iteration while the process is starved.
TURN_COSTS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
#: Longest starvation in seconds.
MAX_STARVED = 10.0
SHORTEST_TIMEOUT = 0.001
#: Seconds for which an existing queue is not found: shorter than `CONFIRM_DELETED` of the product.
MOMENT = 0.05, 0.95
#: Seconds for which a queue is deleted while it is in use.
DELETED_FOR = 0.5, 15.0


class RunKind(Enum):
    """The theme of a run."""

    PLAIN = "plain"
    #: Many callers with any faults.
    CROWD = "crowd"
    #: Many callers while the primary is healthy.
    CALM = "calm"
    #: The primary stops answering, and no caller waits long enough to notice.
    SILENT = "silent"
    #: Ordered sessions in continuous use while the primary fails and recovers.
    BUSY = "busy sessions"


_KINDS = {RunKind.PLAIN: 40, RunKind.CROWD: 20, RunKind.CALM: 20, RunKind.SILENT: 8, RunKind.BUSY: 12}


def scenario_of(seed: int) -> Scenario:
    """The scenario of a seed. Depends on the seed only."""
    return _with_missing_queues(_with_callers(seed), Random(f"missing backlog queues {seed}"))


def _with_missing_queues(run: Scenario, random: Random) -> Scenario:
    """Add backlog queues that are deleted while in use, or not found for a moment, mostly around a recovery."""
    kind = random.choices([None, FaultKind.NOT_FOUND, FaultKind.DELETED], [80, 14, 6])[0]
    if kind is None:
        return run
    recoveries = [fault.end for fault in run.faults if fault.namespace == PRIMARY and fault.end < run.duration]
    faults = list(run.faults)
    for index in range(run.options.backlog_queue_count):
        if random.random() < 0.3:
            continue
        start = random.uniform(0.0, run.duration * 0.95)
        if recoveries and random.random() < 0.7:
            start = min(random.choice(recoveries) + random.uniform(-1.0, 6.0), run.duration * 0.95)
        end = min(run.duration, start + random.uniform(*(MOMENT if kind is FaultKind.NOT_FOUND else DELETED_FOR)))
        faults.append(Fault(kind, SECONDARY, f"{PRIMARY}/x-servicebus-transfer/{index}", max(0.0, start), end))
    return replace(run, faults=tuple(faults))


def _with_callers(seed: int) -> Scenario:
    plain = plain_scenario(seed)
    random = Random(f"callers {seed}")
    kind = random.choices(list(_KINDS), list(_KINDS.values()))[0]
    if kind is RunKind.PLAIN:
        return plain
    run = _with_links(plain, random)
    if kind is RunKind.SILENT:
        return _silent(run, random)
    if kind is RunKind.BUSY:
        return _busy(run, random)
    if kind is RunKind.CALM:
        run = _calmed(run)
    if random.random() < 0.5:
        run = _with_queue_states(run, random, needs_backlog=kind is RunKind.CROWD)
    if random.random() < 0.35:
        run = _starved(run, random)
    if random.random() < 0.3:
        at = random.uniform(0.0, run.duration)
        run = replace(
            run, faults=(*run.faults, Fault(FaultKind.IDLE, random.choice([PRIMARY, SECONDARY]), None, at, at))
        )
    return _with_bursts(run, random)


def makes_unavailable(fault: Fault, policy: FailoverPolicy) -> bool:
    """Whether an entity with this fault may be considered unavailable."""
    harmless = HARMLESS | _REFUSES if policy == FailoverPolicy.availability() else HARMLESS
    return fault.kind not in harmless


def _with_links(run: Scenario, random: Random) -> Scenario:
    options = replace(
        run.options,
        max_links=random.choice([1, 2, 4, 16, 16]),
        max_connections=random.choice([200, 200, 4, 2]),
    )
    first, second = _latencies(random), _latencies(random)
    return replace(run, options=options, latencies=(first, second))


def _latencies(random: Random) -> tuple[float, float]:
    if random.random() < 0.4:
        return LATENCY
    least = random.uniform(0.0, MAX_LATENCY)
    return least, random.uniform(least, MAX_LATENCY)


def _calmed(run: Scenario) -> Scenario:
    faults = [
        fault for fault in run.faults if fault.namespace != PRIMARY or not makes_unavailable(fault, run.options.policy)
    ]
    actions = [action for action in run.actions if action.action is not Action.FAIL_OVER]
    return replace(run, faults=tuple(faults), actions=tuple(actions))


def _with_queue_states(run: Scenario, random: Random, *, needs_backlog: bool) -> Scenario:
    faults = list(run.faults)
    for index in range(run.options.backlog_queue_count):
        if random.random() < 0.5:
            path = f"{PRIMARY}/x-servicebus-transfer/{index}"
            start = random.choice([0.0, random.uniform(0.0, run.duration * 0.7)])
            end = random.choice([math.inf, min(run.duration, start + random.uniform(1.0, 25.0))])
            faults.append(Fault(random.choice(QUEUE_STATES), SECONDARY, path, start, end))
    if needs_backlog and random.random() < 0.6:
        start = random.uniform(0.0, run.duration / 2)
        kind = random.choice([FaultKind.REFUSE, FaultKind.BLACK_HOLE])
        faults.append(Fault(kind, PRIMARY, None, start, min(run.duration, start + random.uniform(5.0, 30.0))))
    return replace(run, faults=tuple(faults))


def _starved(run: Scenario, random: Random) -> Scenario:
    actions = [
        PlannedAction(
            random.uniform(0.0, run.duration),
            Action.STARVE,
            random.randrange(len(TURN_COSTS)),
            random.uniform(0.5, MAX_STARVED),
        )
        for _ in range(random.randint(1, 2))
    ]
    return replace(run, actions=tuple(sorted((*run.actions, *actions), key=lambda action: action.at)))


def _with_bursts(run: Scenario, random: Random) -> Scenario:
    """Add concurrent calls of one sender, near a fault or at any time."""
    times_of_interest = [fault.start for fault in run.faults] + [action.at for action in run.actions]
    sends, actions = list(run.sends), list(run.actions)
    for number in range(random.randint(1, 3)):
        at = random.uniform(0.0, run.duration * 0.9)
        if times_of_interest and random.random() < 0.6:
            at = min(max(0.0, random.choice(times_of_interest) + random.uniform(-0.5, 2.0)), run.duration * 0.95)
        callers = random.choices(list(BURSTS), list(BURSTS.values()))[0]
        burst = list(_burst(run, random, number, at, callers))
        sends += burst
        if random.random() < 0.15:
            actions.append(PlannedAction(at + random.uniform(0.0, 0.5), Action.CLOSE_SENDER, burst[0].sender, 0.0))
    return replace(
        run,
        sends=tuple(sorted(sends, key=lambda send: send.at)),
        actions=tuple(sorted(actions, key=lambda action: action.at)),
    )


def _burst(run: Scenario, random: Random, number: int, at: float, callers: int) -> Iterator[PlannedSend]:
    sender = random.randrange(len(run.senders))
    sessions = [f"s{index}" for index in range(random.choice([1, 4]))]
    has_sessions = run.senders[sender].requires_session or random.random() < 0.4
    spread = random.choice([0.0, 0.05, 1.0])
    patience = random.choice(["all", "none", "some"])
    # Cancel no calls, some at any time, or most at the same time.
    cancelling = random.choice(["no", "no", "some", "most"])
    cancelled_at = random.uniform(0.0, 0.5)
    for caller in range(callers):
        is_patient = patience == "all" or (patience == "some" and random.random() < 0.5)
        begins = random.uniform(0.0, spread)
        cancelled_after = None
        if cancelling == "some" and random.random() < 0.3:
            cancelled_after = random.uniform(0.0, 0.5)
        elif cancelling == "most" and random.random() < 0.8:
            cancelled_after = max(0.0, cancelled_at - begins)
        yield PlannedSend(
            at + begins,
            sender,
            (f"{sender}-burst{number}-{caller}",),
            random.choice(sessions) if has_sessions else None,
            time_to_live=None,
            scheduled_in=None,
            timeout=None if is_patient else _short(random, 10.0),
            is_in_burst=True,
            cancelled_after=cancelled_after,
        )


def _short(random: Random, longest: float) -> float:
    """A timeout up to `longest`; short ones are more frequent."""
    return SHORTEST_TIMEOUT * math.pow(longest / SHORTEST_TIMEOUT, random.random())


def _silent(run: Scenario, random: Random) -> Scenario:
    """The primary stops answering on open links; a few impatient calls follow, and perhaps more later."""
    duration = max(run.duration, 50.0)
    start = random.uniform(4.0, 8.0)
    path = random.choice([None, random.choice(run.queues).path])
    faults = [fault for fault in run.faults if fault.namespace != PRIMARY]
    faults.append(Fault(FaultKind.BLACK_HOLE, PRIMARY, path, start, duration))
    sends: list[PlannedSend] = []
    for sender, queue in enumerate(run.senders):
        session = "s0" if queue.requires_session else None
        times = [start - random.uniform(0.6, 1.5), start + random.uniform(0.5, 4.0)]
        if random.random() < 0.5:
            times += [random.uniform(times[-1], duration) for _ in range(4)]
        for number, at in enumerate(times):
            timeout = None if number == 0 else _short(random, 0.3)
            sends.append(PlannedSend(at, sender, (f"{sender}-{number}-0",), session, None, None, timeout))
    actions = tuple(
        action
        for action in run.actions
        if action.action in (Action.KILL_SYPHON, Action.EXPIRE_LOCKS, Action.STALL_LEDGER)
    )
    return replace(
        run,
        sends=tuple(sorted(sends, key=lambda send: send.at)),
        faults=tuple(faults),
        actions=actions,
        duration=duration,
    )


def _busy(run: Scenario, random: Random) -> Scenario:
    """The primary fails until the end of the faults, and recovers while sessions are sent to continuously."""
    since = run.duration - random.uniform(1.0, 6.0)
    kind = random.choice([FaultKind.REFUSE, FaultKind.BLACK_HOLE, FaultKind.CRASH, FaultKind.RESET_AFTER])
    sessions = [
        BusySession(
            random.randrange(len(run.senders)),
            f"s{number}",
            since - random.uniform(0.0, 1.0),
            random.uniform(0.05, 0.2),
            random.choice([None, random.uniform(5.0, 30.0)]),
        )
        for number in range(random.randint(1, 3))
    ]
    return replace(
        run,
        # The drain must be faster than the senders, or it would never end: no rate limit, and low latency.
        latencies=(LOW_LATENCY, run.latencies[1]),
        options=replace(run.options, order="session", syphon=replace(run.options.syphon, rate=None)),
        faults=(*run.faults, Fault(kind, PRIMARY, None, since, run.duration)),
        busy_sessions=tuple(sessions),
        syphon_at=min(run.syphon_at, run.duration),
    )
