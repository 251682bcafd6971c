"""Find outages in the tables `activity` and `backlog_time`. Pure: needs no Spark.

An outage of an entity begins with the first failed send that led to something: a message was diverted, or the entity
was pinged. It is over when a ping gets through and calm follows. What the syphon moves from then on, until the next
outage of the entity begins, is the drain.
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

#: After a ping that got through: clients learn of it one after the other, each with its own pings.
CALM_US = 5 * MINUTE_US
#: Without one: twice the longest interval between two pings, and a little.
SILENCE_US = 65 * MINUTE_US
#: A failed attempt ends shortly before its message is diverted, at most as long as an attempt may take.
ATTEMPT_US = 2 * MINUTE_US
#: From the first failure to the first ping, at most: the longest failover interval.
SUSPICION_US = 60 * MINUTE_US

#: What shows that an entity was away.
_SIGNS = frozenset({ActivityKind.DIVERTED, ActivityKind.FAILED_DIVERT, ActivityKind.PING, ActivityKind.FAILED_PING})
_DRAIN = frozenset({ActivityKind.MOVED, ActivityKind.COMPLETED, ActivityKind.EXPIRED, ActivityKind.POISON})


#: Events at the same moment are taken in the order of the kinds.
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
    """What an outage did to one entity. Times are microseconds since the epoch, UTC; None: not yet."""

    pairing: str
    entity: str
    #: The first failure, of any client.
    suspected_at: int
    #: From then on messages went to the backlog at once; None if it did not come to that.
    failed_over_at: int | None
    #: When the last client had a ping get through; without pings, when the last message was diverted.
    recovered_at: int | None
    #: When the last diverted message had left the backlog.
    drained_at: int | None
    diverted: int
    moved: int
    expired: int
    poison: int
    pings: int
    failed_sends: int
    #: Time in the backlog of what was moved; None if nothing was.
    backlog_seconds_p50: float | None
    backlog_seconds_p99: float | None
    backlog_seconds_max: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def outages_of(activity: pa.Table, backlog_time: pa.Table | None = None) -> list[Outage]:
    """The outages in these tables, in the order of their beginning. Kinds of a later release are left out.

    Args:
        activity: The table, from an hour before the first outage to be found.
        backlog_time: The table of the same days; without it there are no times in the backlog.
    """
    by_entity: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
    for pairing, entity, event in events_of(activity):
        by_entity[pairing, entity].append(event)
    waited = _Waits(backlog_time)
    found = [
        outage
        for (pairing, entity), events in by_entity.items()
        for outage in _outages(pairing, entity, events, waited)
    ]
    return sorted(found, key=lambda one: (one.suspected_at, one.pairing, one.entity))


def events_of(activity: pa.Table) -> Iterator[tuple[str, str, Event]]:
    """The rows of `activity` with pairing and entity. Kinds of a later release are left out."""
    kinds = {kind.value: kind for kind in ActivityKind}
    columns = [activity["pairing"], activity["entity"], activity["kind"], activity["count"]]
    columns += [micros(activity["first_time"]), micros(activity["last_time"])]
    for pairing, entity, word, count, first, last in zip(*(one.to_pylist() for one in columns), strict=True):
        kind = kinds.get(word)
        if kind is not None:
            yield pairing, entity, Event(first, last, kind, count)


def _outages(pairing: str, entity: str, events: Iterable[Event], waited: _Waits) -> Iterator[Outage]:
    listed = sorted(events, key=lambda one: one.order)
    times = [one.first_us for one in listed]
    windows = list(_windows([one for one in listed if one.kind in _SIGNS]))
    failures = [one for one in listed if one.kind == ActivityKind.FAILED_SEND]
    starts = [_suspected(window, failures) for window in windows]
    for number, window in enumerate(windows):
        start = starts[number]
        end = bisect_left(times, starts[number + 1]) if number + 1 < len(windows) else len(listed)
        own = listed[bisect_left(times, start) : end]
        yield _outage(pairing, entity, start, window, own, waited)


def _windows(signs: Sequence[Event]) -> Iterator[list[Event]]:
    """The signs of each outage: a new one begins after calm, or after a silence that no ping explains."""
    window: list[Event] = []
    last = 0
    for one in signs:
        silence = one.first_us - last
        if window and (silence > SILENCE_US or (silence > CALM_US and _is_recovered(window))):
            yield window
            window = []
        last = max(last, one.last_us) if window else one.last_us
        window.append(one)
    if window:
        yield window


def _is_recovered(window: Sequence[Event]) -> bool:
    """Whether the last ping got through."""
    through = max((one.last_us for one in window if one.kind == ActivityKind.PING), default=None)
    failed = max((one.last_us for one in window if one.kind == ActivityKind.FAILED_PING), default=None)
    return through is not None and (failed is None or through > failed)


def _suspected(window: Sequence[Event], failures: Sequence[Event]) -> int:
    """When the first failure was that led to the outage."""
    first = window[0]
    if first.kind in (ActivityKind.DIVERTED, ActivityKind.FAILED_DIVERT):
        # A diverted message follows on its own failed attempt.
        near = [one for one in failures if first.first_us - ATTEMPT_US <= one.first_us <= first.first_us]
        return near[-1].first_us if near else first.first_us
    # Nothing was diverted while the entity was suspected: failures follow each other until the first ping.
    start = first.first_us
    for one in reversed(failures):
        if one.first_us > start:
            continue
        if first.first_us - one.first_us > SUSPICION_US or start - one.last_us > CALM_US:
            break
        start = one.first_us
    return start


def _outage(
    pairing: str, entity: str, start: int, window: Sequence[Event], own: Sequence[Event], waited: _Waits
) -> Outage:
    counts: Counter[ActivityKind] = Counter()
    for one in own:
        counts[one.kind] += one.number
    end = max(one.last_us for one in window)
    failures = [one for one in own if one.kind == ActivityKind.FAILED_SEND and one.first_us <= end]
    gone = counts[ActivityKind.EXPIRED] + counts[ActivityKind.POISON]
    diverted = counts[ActivityKind.DIVERTED]
    # When a syphon is killed rows of completes may be lost, those of its sends are not. A message may be sent twice.
    moved = max(counts[ActivityKind.COMPLETED], min(counts[ActivityKind.MOVED], diverted - gone))
    recovered = _recovered_at(window)
    drained = max((one.last_us for one in own if one.kind in _DRAIN), default=recovered)
    last_divert = max((one.last_us for one in own if one.kind == ActivityKind.DIVERTED), default=None)
    times = dict(_NO_TIMES) if last_divert is None else waited.of(entity, start, last_divert)
    return Outage(
        pairing=pairing,
        entity=entity,
        suspected_at=start,
        failed_over_at=_failed_over_at(window, failures),
        recovered_at=recovered,
        drained_at=drained if moved + gone >= diverted else None,
        diverted=diverted,
        moved=moved,
        expired=counts[ActivityKind.EXPIRED],
        poison=counts[ActivityKind.POISON],
        pings=counts[ActivityKind.PING] + counts[ActivityKind.FAILED_PING],
        failed_sends=sum(one.number for one in failures),
        **times,
    )


def _failed_over_at(window: Sequence[Event], failures: Sequence[Event]) -> int | None:
    pings = [one.first_us for one in window if one.kind in (ActivityKind.PING, ActivityKind.FAILED_PING)]
    if pings:
        return min(pings)
    # Links are opened instead of pings (`probe="link"`), of which there are no rows: then messages are diverted
    # without an attempt that failed.
    if not failures:
        return window[0].first_us
    last = max(one.last_us for one in failures)
    return last if any(one.last_us > last + ATTEMPT_US for one in window) else None


def _recovered_at(window: Sequence[Event]) -> int | None:
    if any(one.kind in (ActivityKind.PING, ActivityKind.FAILED_PING) for one in window):
        through = max((one.last_us for one in window if one.kind == ActivityKind.PING), default=None)
        return through if _is_recovered(window) else None
    return max(one.last_us for one in window)


class _Waits:
    """Times in the backlog of messages that were moved, by entity and hour of diverting."""

    def __init__(self, table: pa.Table | None) -> None:
        self._hours: defaultdict[str, dict[int, list[tuple[int, int, int]]]] = defaultdict(dict)
        if table is None:
            return
        moved = table.filter(pc.equal(table["state"], "moved"))
        columns = moved["entity"], micros(moved["hour"]), moved["bucket"], moved["count"], moved["max_us"]
        for entity, hour, *times in zip(*(one.to_pylist() for one in columns), strict=True):
            self._hours[entity].setdefault(hour, []).append((times[0], times[1], times[2]))

    def of(self, entity: str, since: int, until: int) -> dict[str, float | None]:
        """Percentiles of the messages that were diverted in the hours of these times."""
        buckets: Counter[int] = Counter()
        longest = 0
        for hour, found in self._hours[entity].items():
            if since - HOUR_US < hour <= until:
                for bucket, count, most in found:
                    buckets[bucket] += count
                    longest = max(longest, most)
        if not buckets:
            return dict(_NO_TIMES)
        parts = (min(percentile(buckets, part), longest) / 1e6 for part in (0.5, 0.99))
        return dict(zip(_NO_TIMES, (*(round(one, 3) for one in parts), longest / 1e6), strict=True))


_NO_TIMES: Mapping[str, float | None] = {
    "backlog_seconds_p50": None,
    "backlog_seconds_p99": None,
    "backlog_seconds_max": None,
}
