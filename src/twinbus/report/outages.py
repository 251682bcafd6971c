"""Find outages and forced failovers in the tables `activity` and `backlog_time`. Pure: needs no Spark.

An outage of an entity begins with the first failed send after which a message was diverted or the entity was pinged.
It ends with a ping that gets through, if calm follows. What the syphon moves from then on, until the next outage of
the entity begins, is the drain.

A forced failover diverts messages although no send failed and no ping was sent. It is not an outage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from twinbus.ledger.schema import pa, pc
from twinbus.tables.activity import ActivityKind
from twinbus.tables.arrow_schemas import micros

from .percentiles import percentile

MINUTE_US, HOUR_US = 60_000_000, 3_600_000_000

#: Calm after a ping that got through: clients recover one after the other, each with its own pings.
CALM_US = 5 * MINUTE_US
#: Calm without such a ping: twice the longest interval between two pings, and a little more.
SILENCE_US = 65 * MINUTE_US
#: A failed attempt ends at most this long before its message is diverted: the longest time of an attempt.
ATTEMPT_US = 2 * MINUTE_US
#: Longest time from the first failure to the first ping: the longest failover interval.
SUSPICION_US = 60 * MINUTE_US

#: Events that show that an entity was not used or not reachable.
_SIGNS = frozenset({ActivityKind.DIVERTED, ActivityKind.FAILED_DIVERT, ActivityKind.PING, ActivityKind.FAILED_PING})
_PINGS = frozenset({ActivityKind.PING, ActivityKind.FAILED_PING})
_DRAIN = frozenset({ActivityKind.MOVED, ActivityKind.COMPLETED, ActivityKind.EXPIRED, ActivityKind.POISON})

#: Order of events with the same time.
_ORDER = {kind: place for place, kind in enumerate(ActivityKind)}


class Event(NamedTuple):
    """The events of one kind at an entity within a minute: a row of `activity`."""

    first_us: int
    last_us: int
    kind: ActivityKind
    number: int

    @property
    def order(self) -> tuple[int, int, int, int]:
        return self.first_us, self.last_us, _ORDER[self.kind], self.number


@dataclass(frozen=True, slots=True)
class Outage:
    """One outage, or one forced failover, of one entity. Times are microseconds since the epoch, UTC; None: not yet."""

    pairing: str
    entity: str
    #: The first failure of any client; of a forced failover, when the first message was diverted.
    suspected_at: int
    #: From then on messages went straight to the backlog; None if the entity was only suspect.
    failed_over_at: int | None
    #: When the ping of the last client got through; without pings, when the last message was diverted.
    recovered_at: int | None
    #: When the last diverted message left the backlog.
    drained_at: int | None
    diverted: int
    moved: int
    expired: int
    poison: int
    pings: int
    failed_sends: int
    #: Time that moved messages spent in the backlog; None if none was moved.
    backlog_seconds_p50: float | None
    backlog_seconds_p99: float | None
    backlog_seconds_max: float | None
    is_forced: bool = False

    def to_json(self) -> dict[str, Any]:
        """The fields, without `is_forced`: outages and forced failovers are separate lists."""
        return {name: value for name, value in asdict(self).items() if name != "is_forced"}


def outages_of(activity: pa.Table, backlog_time: pa.Table | None = None) -> list[Outage]:
    """Return the outages in these tables by start time. Kinds of a later release are ignored.

    Args:
        activity: The table, from an hour before the first outage to be found.
        backlog_time: The table of the same days; without it the times in the backlog are None.
    """
    return [outage for outage in outages_and_forced_failovers(activity, backlog_time) if not outage.is_forced]


def outages_and_forced_failovers(activity: pa.Table, backlog_time: pa.Table | None = None) -> list[Outage]:
    """Return the outages and the forced failovers (`is_forced`) by start time; arguments as for `outages_of`."""
    by_entity: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
    for pairing, entity, event in events_of(activity):
        by_entity[pairing, entity].append(event)
    backlog_times = _BacklogTimes(backlog_time)
    outages = [
        outage
        for (pairing, entity), events in by_entity.items()
        for outage in _outages(pairing, entity, events, backlog_times)
    ]
    return sorted(outages, key=lambda outage: (outage.suspected_at, outage.pairing, outage.entity))


def events_of(activity: pa.Table) -> Iterator[tuple[str, str, Event]]:
    """Yield the rows of `activity` with pairing and entity. Kinds of a later release are ignored."""
    kinds = {kind.value: kind for kind in ActivityKind}
    columns = [activity["pairing"], activity["entity"], activity["kind"], activity["count"]]
    columns += [micros(activity["first_time"]), micros(activity["last_time"])]
    for pairing, entity, word, count, first, last in zip(*(column.to_pylist() for column in columns), strict=True):
        kind = kinds.get(word)
        if kind is not None:
            yield pairing, entity, Event(first, last, kind, count)


def _outages(pairing: str, entity: str, events: Iterable[Event], backlog_times: _BacklogTimes) -> Iterator[Outage]:
    events = sorted(events, key=lambda event: event.order)
    times = [event.first_us for event in events]
    windows = list(_windows([event for event in events if event.kind in _SIGNS]))
    failures = [event for event in events if event.kind == ActivityKind.FAILED_SEND]
    starts = [_suspected(window, failures) for window in windows]
    for index, window in enumerate(windows):
        start = starts[index]
        end = bisect_left(times, starts[index + 1]) if index + 1 < len(windows) else len(events)
        own = events[bisect_left(times, start) : end]
        yield _outage(pairing, entity, start, window, own, backlog_times)


def _windows(signs: Sequence[Event]) -> Iterator[list[Event]]:
    """Split the signs by outage: a new one begins after calm, or after a silence longer than pings explain."""
    window: list[Event] = []
    last = 0
    for sign in signs:
        silence = sign.first_us - last
        if window and (silence > SILENCE_US or (silence > CALM_US and _is_recovered(window))):
            yield window
            window = []
        last = max(last, sign.last_us) if window else sign.last_us
        window.append(sign)
    if window:
        yield window


def _is_recovered(window: Sequence[Event]) -> bool:
    """Whether the last ping got through."""
    through = max((event.last_us for event in window if event.kind == ActivityKind.PING), default=None)
    failed = max((event.last_us for event in window if event.kind == ActivityKind.FAILED_PING), default=None)
    return through is not None and (failed is None or through > failed)


def _suspected(window: Sequence[Event], failures: Sequence[Event]) -> int:
    """Return the time of the first failure that led to the outage."""
    first = window[0]
    if first.kind not in _PINGS:
        # A message is diverted after its own failed attempt.
        near = _failures_before(first, failures)
        return near[-1].first_us if near else first.first_us
    # Nothing was diverted while the entity was suspect: failures follow each other until the first ping.
    start = first.first_us
    for failure in reversed(failures):
        if failure.first_us > start:
            continue
        if first.first_us - failure.first_us > SUSPICION_US or start - failure.last_us > CALM_US:
            break
        start = failure.first_us
    return start


def _failures_before(divert: Event, failures: Sequence[Event]) -> list[Event]:
    """The failed sends that may be the failed attempt of a diverted message."""
    return [event for event in failures if divert.first_us - ATTEMPT_US <= event.first_us <= divert.first_us]


def _is_forced(window: Sequence[Event], failures: Sequence[Event]) -> bool:
    """Whether messages were diverted although no send had failed; an entity that was failed over by hand is not pinged.

    `twinbus status` uses the same signs.
    """
    return not any(event.kind in _PINGS for event in window) and not _failures_before(window[0], failures)


def _outage(
    pairing: str, entity: str, start: int, window: Sequence[Event], own: Sequence[Event], backlog_times: _BacklogTimes
) -> Outage:
    counts: Counter[ActivityKind] = Counter()
    for event in own:
        counts[event.kind] += event.number
    end = max(event.last_us for event in window)
    failures = [event for event in own if event.kind == ActivityKind.FAILED_SEND and event.first_us <= end]
    is_forced = _is_forced(window, failures)
    gone = counts[ActivityKind.EXPIRED] + counts[ActivityKind.POISON]
    diverted = counts[ActivityKind.DIVERTED]
    # A killed syphon may lose rows of completes, but none of its sends. A message may be sent twice.
    moved = max(counts[ActivityKind.COMPLETED], min(counts[ActivityKind.MOVED], diverted - gone))
    recovered = _recovered_at(window)
    drained = max((event.last_us for event in own if event.kind in _DRAIN), default=recovered)
    last_divert = max((event.last_us for event in own if event.kind == ActivityKind.DIVERTED), default=None)
    times = dict(_NO_TIMES) if last_divert is None else backlog_times.of(entity, start, last_divert)
    return Outage(
        pairing=pairing,
        entity=entity,
        suspected_at=start,
        failed_over_at=start if is_forced else _failed_over_at(window, failures),
        recovered_at=recovered,
        drained_at=drained if moved + gone >= diverted else None,
        diverted=diverted,
        moved=moved,
        expired=counts[ActivityKind.EXPIRED],
        poison=counts[ActivityKind.POISON],
        pings=counts[ActivityKind.PING] + counts[ActivityKind.FAILED_PING],
        failed_sends=sum(event.number for event in failures),
        is_forced=is_forced,
        **times,
    )


def _failed_over_at(window: Sequence[Event], failures: Sequence[Event]) -> int | None:
    pings = [event.first_us for event in window if event.kind in _PINGS]
    if pings:
        return min(pings)
    # With `probe="link"` there are no rows of pings. The entity was failed over if messages were diverted without a
    # failed attempt of their own.
    last = max(event.last_us for event in failures)
    return last if any(event.last_us > last + ATTEMPT_US for event in window) else None


def _recovered_at(window: Sequence[Event]) -> int | None:
    if any(event.kind in _PINGS for event in window):
        through = max((event.last_us for event in window if event.kind == ActivityKind.PING), default=None)
        return through if _is_recovered(window) else None
    return max(event.last_us for event in window)


class _BacklogTimes:
    """Time that moved messages spent in the backlog, by entity and hour of diverting."""

    def __init__(self, table: pa.Table | None) -> None:
        self._hours: defaultdict[str, dict[int, list[tuple[int, int, int]]]] = defaultdict(dict)
        if table is None:
            return
        moved = table.filter(pc.equal(table["state"], "moved"))
        columns = moved["entity"], micros(moved["hour"]), moved["bucket"], moved["count"], moved["max_us"]
        for entity, hour, *times in zip(*(column.to_pylist() for column in columns), strict=True):
            self._hours[entity].setdefault(hour, []).append((times[0], times[1], times[2]))

    def of(self, entity: str, since: int, until: int) -> dict[str, float | None]:
        """Return the percentiles of messages that were diverted from the hour of `since` to that of `until`."""
        buckets: Counter[int] = Counter()
        longest = 0
        for hour, histogram in self._hours[entity].items():
            if since - HOUR_US < hour <= until:
                for bucket, count, max_us in histogram:
                    buckets[bucket] += count
                    longest = max(longest, max_us)
        if not buckets:
            return dict(_NO_TIMES)
        p50, p99 = (round(min(percentile(buckets, part), longest) / 1e6, 3) for part in (0.5, 0.99))
        return dict(zip(_NO_TIMES, (p50, p99, longest / 1e6), strict=True))


_NO_TIMES: Mapping[str, float | None] = {
    "backlog_seconds_p50": None,
    "backlog_seconds_p99": None,
    "backlog_seconds_max": None,
}
