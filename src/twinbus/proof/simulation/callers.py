"""Adds to a plain run: many callers at a time, impatient, cancelled, far away or starved; backlog queues in bad states.

Drawn from random numbers of their own, so that everything else about a run is the same with and without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from random import Random

from twinbus.pairing.policy import FailoverPolicy

from .network import LATENCY, Fault, Weather
from .scenario import PRIMARY, SECONDARY, BusySession, Deed, PlannedDeed, PlannedSend, Scenario, plain_scenario

#: What leaves an entity available: it asks for patience, or detaches links that no one uses.
HARMLESS = frozenset({Weather.BUSY, Weather.IDLE})
#: The same, unless the policy says that it counts.
_REFUSES = frozenset({Weather.QUOTA, Weather.DISABLED})
#: What can be wrong with a backlog queue, besides the weather of its namespace.
QUEUE_STATES = (Weather.QUOTA, Weather.DISABLED, Weather.DELETED, Weather.FORBIDDEN, Weather.SLOW)
#: The most seconds that a request, or an answer, is on its way: 200 ms for both.
MAX_LATENCY = 0.1
#: The same of a primary that takes a message much sooner than the next one is sent.
NEAR = 0.001, 0.005
#: How many callers a burst has, and how often.
BURSTS = {8: 7, 64: 3}
#: Seconds that a turn of the event loop takes while the process is starved.
TURN_COSTS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
#: The longest time that a process is starved.
MAX_STARVED = 10.0
SHORTEST_TIMEOUT = 0.001


class Kind(Enum):
    """What a run is about."""

    PLAIN = "plain"
    #: Many callers in any weather.
    CROWD = "crowd"
    #: Many callers while nothing is wrong with the primary.
    CALM = "calm"
    #: The primary falls silent, and no caller waits long enough to notice.
    SILENT = "silent"
    #: Sessions in order that are used without pause, while the primary fails and is back.
    BUSY = "busy sessions"


_KINDS = {Kind.PLAIN: 40, Kind.CROWD: 20, Kind.CALM: 20, Kind.SILENT: 8, Kind.BUSY: 12}


def scenario_of(seed: int) -> Scenario:
    """The same for the same seed, everywhere."""
    plain = plain_scenario(seed)
    random = Random(f"callers {seed}")
    kind = random.choices(list(_KINDS), list(_KINDS.values()))[0]
    if kind is Kind.PLAIN:
        return plain
    run = _with_links(plain, random)
    if kind is Kind.SILENT:
        return _silent(run, random)
    if kind is Kind.BUSY:
        return _busy(run, random)
    if kind is Kind.CALM:
        run = _calmed(run)
    if random.random() < 0.5:
        run = _with_queue_states(run, random, needs_backlog=kind is Kind.CROWD)
    if random.random() < 0.35:
        run = _starved(run, random)
    if random.random() < 0.3:
        at = random.uniform(0.0, run.duration)
        run = replace(run, faults=(*run.faults, Fault(Weather.IDLE, random.choice([PRIMARY, SECONDARY]), None, at, at)))
    return _with_bursts(run, random)


def makes_unavailable(fault: Fault, policy: FailoverPolicy) -> bool:
    """Whether an entity that the fault strikes may rightly be taken for unavailable."""
    harmless = HARMLESS | _REFUSES if policy == FailoverPolicy.availability() else HARMLESS
    return fault.weather not in harmless


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
    deeds = [deed for deed in run.deeds if deed.deed is not Deed.FAIL_OVER]
    return replace(run, faults=tuple(faults), deeds=tuple(deeds))


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
        weather = random.choice([Weather.REFUSE, Weather.BLACK_HOLE])
        faults.append(Fault(weather, PRIMARY, None, start, min(run.duration, start + random.uniform(5.0, 30.0))))
    return replace(run, faults=tuple(faults))


def _starved(run: Scenario, random: Random) -> Scenario:
    deeds = [
        PlannedDeed(
            random.uniform(0.0, run.duration),
            Deed.STARVE,
            random.randrange(len(TURN_COSTS)),
            random.uniform(0.5, MAX_STARVED),
        )
        for _ in range(random.randint(1, 2))
    ]
    return replace(run, deeds=tuple(sorted((*run.deeds, *deeds), key=lambda deed: deed.at)))


def _with_bursts(run: Scenario, random: Random) -> Scenario:
    """Many calls of one sender at the same time, near something that goes wrong or at any moment."""
    marks = [one.start for one in run.faults] + [one.at for one in run.deeds]
    sends, deeds = list(run.sends), list(run.deeds)
    for number in range(random.randint(1, 3)):
        at = random.uniform(0.0, run.duration * 0.9)
        if marks and random.random() < 0.6:
            at = min(max(0.0, random.choice(marks) + random.uniform(-0.5, 2.0)), run.duration * 0.95)
        callers = random.choices(list(BURSTS), list(BURSTS.values()))[0]
        burst = list(_burst(run, random, number, at, callers))
        sends += burst
        if random.random() < 0.15:
            deeds.append(PlannedDeed(at + random.uniform(0.0, 0.5), Deed.CLOSE_SENDER, burst[0].sender, 0.0))
    return replace(
        run,
        sends=tuple(sorted(sends, key=lambda send: send.at)),
        deeds=tuple(sorted(deeds, key=lambda deed: deed.at)),
    )


def _burst(run: Scenario, random: Random, number: int, at: float, callers: int) -> Iterator[PlannedSend]:
    sender = random.randrange(len(run.senders))
    sessions = [f"s{index}" for index in range(random.choice([1, 4]))]
    has_sessions = run.senders[sender].requires_session or random.random() < 0.4
    spread = random.choice([0.0, 0.05, 1.0])
    patience = random.choice(["all", "none", "some"])
    # Not at all, some of them at any moment, or most of them at once.
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
    """A timeout between the shortest and the longest, the shorter the more often."""
    return SHORTEST_TIMEOUT * math.pow(longest / SHORTEST_TIMEOUT, random.random())


def _silent(run: Scenario, random: Random) -> Scenario:
    """Links are open when the primary falls silent; then there are a few impatient calls, and perhaps no more."""
    duration = max(run.duration, 50.0)
    start = random.uniform(4.0, 8.0)
    path = random.choice([None, random.choice(run.queues).path])
    faults = [fault for fault in run.faults if fault.namespace != PRIMARY]
    faults.append(Fault(Weather.BLACK_HOLE, PRIMARY, path, start, duration))
    sends: list[PlannedSend] = []
    for sender, queue in enumerate(run.senders):
        session = "s0" if queue.requires_session else None
        times = [start - random.uniform(0.6, 1.5), start + random.uniform(0.5, 4.0)]
        if random.random() < 0.5:
            times += [random.uniform(times[-1], duration) for _ in range(4)]
        for number, at in enumerate(times):
            timeout = None if number == 0 else _short(random, 0.3)
            sends.append(PlannedSend(at, sender, (f"{sender}-{number}-0",), session, None, None, timeout))
    deeds = tuple(deed for deed in run.deeds if deed.deed in (Deed.KILL_SYPHON, Deed.EXPIRE_LOCKS, Deed.STALL_LEDGER))
    return replace(
        run,
        sends=tuple(sorted(sends, key=lambda send: send.at)),
        faults=tuple(faults),
        deeds=deeds,
        duration=duration,
    )


def _busy(run: Scenario, random: Random) -> Scenario:
    """The primary is away until the end of the faults, and comes back while sessions are sent to without pause."""
    since = run.duration - random.uniform(1.0, 6.0)
    weather = random.choice([Weather.REFUSE, Weather.BLACK_HOLE, Weather.CRASH, Weather.RESET_AFTER])
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
        # The drain must be faster than the senders, or it would never end: there is no limit to its rate, and the
        # primary is near.
        latencies=(NEAR, run.latencies[1]),
        options=replace(run.options, order="session", syphon=replace(run.options.syphon, rate=None)),
        faults=(*run.faults, Fault(weather, PRIMARY, None, since, run.duration)),
        busy_sessions=tuple(sessions),
        syphon_at=min(run.syphon_at, run.duration),
    )
