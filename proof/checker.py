"""Checks a history against Jepsen's queue criteria. Pure, and independent of the ledger.

    history.drained(left={})
    verdict = check(history)
    assert verdict.is_clean, verdict.describe()

The words: *attempted* and *acknowledged* are what senders tried, and what was confirmed to them; *ok* is attempted
and arrived; *lost* is acknowledged and did not arrive; *unexpected* arrived but was never sent; *duplicated* arrived
more than once; *recovered* arrived although its sender got an error; *dead_lettered* was acknowledged, did not arrive,
and is a dead letter because it expired; *deleted* was acknowledged, did not arrive, and was in a queue that its owner
deleted, which had the only copy; *altered* arrived with another session or content; *outlived* may live longer
than its sender allowed; *unexplained* is a duplicate of a message of which no answer was lost; an *order violation* is
a message that arrived after one of its session whose send began only after this one was acknowledged, and was never
deleted with its queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields

from .history import Arrival, History, Id, Sent

#: Seconds by which a message may outlive its time to live: brokers count in milliseconds.
TOLERANCE = 0.05
#: Message ids listed in a report before "and N more".
SHOWN = 5


class NotDrainedError(Exception):
    """The history cannot be checked yet: messages may still be in transit."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The messages in each category, in the order in which they were sent or arrived."""

    attempted: tuple[Id, ...]
    acknowledged: tuple[Id, ...]
    ok: tuple[Id, ...]
    lost: tuple[Id, ...]
    unexpected: tuple[Id, ...]
    duplicated: tuple[Id, ...]
    recovered: tuple[Id, ...]
    dead_lettered: tuple[Id, ...]
    deleted: tuple[Id, ...]
    altered: tuple[Id, ...]
    outlived: tuple[Id, ...]
    unexplained: tuple[Id, ...]
    order_violations: tuple[Id, ...]

    @property
    def is_safe(self) -> bool:
        """Whether nothing was lost and nothing wrong arrived, regardless of order and duplicates."""
        return not (self.lost or self.unexpected or self.altered or self.outlived)

    @property
    def is_clean(self) -> bool:
        """Whether the guarantees of `order="session"` hold."""
        return self.is_safe and not self.order_violations

    def counts(self) -> dict[str, int]:
        return {field.name: len(getattr(self, field.name)) for field in fields(self)}

    def describe(self) -> str:
        """The counts, and some ids for each category that should be empty."""
        lines = [", ".join(f"{word} {count}" for word, count in self.counts().items())]
        for word in ("lost", "unexpected", "altered", "outlived", "order_violations", "unexplained"):
            ids: tuple[Id, ...] = getattr(self, word)
            if ids:
                shown = ", ".join(f"{message.entity}:{message.message_id}" for message in ids[:SHOWN])
                lines.append(f"{word}: {shown}" + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""))
        return "\n".join(lines)


def check(history: History, *, tolerance: float = TOLERANCE) -> Verdict:
    """Return the verdict on a finished run. A message may outlive its time to live by `tolerance` seconds.

    Raises:
        NotDrainedError: `drained()` was not called last, or messages are left.
    """
    if history.left is None:
        raise NotDrainedError("the history has no end: call drained() when no message is in transit")
    left = {place: count for place, count in history.left.items() if count}
    if left:
        raise NotDrainedError("messages are left: " + ", ".join(f"{count} in {place}" for place, count in left.items()))
    sent = history.sent
    acknowledged = [key for key, message in sent.items() if message.acknowledged is not None]
    missing = [key for key in acknowledged if not all(history.arrived(key))]
    expired = {key for key in missing if _has_expired(history, key)}
    deleted = {key for key in missing if sent[key].is_deleted} - expired
    duplicated = [key for key in sent if any(len(arrivals) > 1 for arrivals in history.arrived(key))]
    return Verdict(
        attempted=tuple(sent),
        acknowledged=tuple(acknowledged),
        ok=tuple(key for key in sent if all(history.arrived(key))),
        lost=tuple(key for key in missing if key not in expired and key not in deleted),
        unexpected=tuple(_unexpected(history)),
        duplicated=tuple(duplicated),
        recovered=tuple(
            key for key, message in sent.items() if message.acknowledged is None and any(history.arrived(key))
        ),
        dead_lettered=tuple(key for key in missing if key in expired),
        deleted=tuple(key for key in missing if key in deleted),
        altered=tuple(
            key
            for key, message in sent.items()
            if any(_is_altered(message, arrival) for arrival in _all_arrivals(history, key))
        ),
        outlived=tuple(
            key
            for key, message in sent.items()
            if any(_outlives(message, arrival, tolerance) for arrival in _all_arrivals(history, key))
        ),
        unexplained=tuple(key for key in duplicated if not sent[key].is_doubtful),
        order_violations=tuple(dict.fromkeys(_out_of_order(history))),
    )


def _all_arrivals(history: History, message: Id) -> Iterable[Arrival]:
    return (arrival for arrivals in history.arrived(message) for arrival in arrivals)


def _has_expired(history: History, message: Id) -> bool:
    """Whether a message that has not arrived was dead-lettered after its time to live."""
    dead_letter, sent = history.dead_letters.get(message), history.sent[message]
    if dead_letter is None or sent.time_to_live is None or dead_letter.at is None or sent.attempted_at is None:
        return False
    return dead_letter.at >= sent.attempted_at + sent.time_to_live - TOLERANCE


def _unexpected(history: History) -> Iterable[Id]:
    entities = {place: entity for entity, places in history.places.items() for place in places}
    for place, message_id in history.arrivals:
        message = Id(entities.get(place, place), message_id)
        if message not in history.sent:
            yield message


def _is_altered(sent: Sent, arrival: Arrival) -> bool:
    if sent.content is None and arrival.content is None:
        return False
    return (sent.session, sent.content) != (arrival.session, arrival.content)


def _outlives(sent: Sent, arrival: Arrival, tolerance: float) -> bool:
    """Whether it may live longer than if it had been stored when it was acknowledged. Ignores late copies."""
    if sent.time_to_live is None or sent.acknowledged_at is None or sent.is_doubtful or arrival.expires_at is None:
        return False
    return arrival.expires_at > sent.acknowledged_at + sent.time_to_live + tolerance


def _out_of_order(history: History) -> Iterable[Id]:
    """Messages that arrived after one of their session whose send began after they were acknowledged."""
    by_session: dict[tuple[str, str], list[tuple[int, Id]]] = defaultdict(list)
    for key, sent in history.sent.items():
        if sent.session is not None:
            for place in history.places_of(key.entity):
                arrivals = history.arrivals.get((place, key.message_id))
                if arrivals:
                    by_session[place, sent.session].append((arrivals[0].moment, key))
    for arrived in by_session.values():
        newest = 0
        for _, key in sorted(arrived):
            sent = history.sent[key]
            if sent.acknowledged is not None and sent.acknowledged < newest and not sent.was_deleted:
                yield key
            newest = max(newest, sent.attempted)
