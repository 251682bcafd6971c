"""Judges a history, in the words of Jepsen's queue checkers and a few of our own. Pure, and independent of the ledger.

    history.drained(left={})
    verdict = check(history)
    assert verdict.is_clean, verdict.describe()

The words: *attempted* and *acknowledged* are what senders did and were told; *ok* is acknowledged and arrived;
*lost* is acknowledged and did not; *unexpected* arrived and was never sent; *duplicated* arrived more than once;
*recovered* arrived though its sender was told of a failure; *dead_lettered* was acknowledged, has not arrived and is
a dead letter because its time was over; *altered* arrived other than it was sent; *outlived* may live longer than its
sender allowed; *unexplained* is a duplicate of a message none of whose answers was lost; and an *order violation* is a
message that arrived behind one of its session that was not even begun when it was acknowledged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields

from .history import Arrival, History, Id, Sent

#: Seconds by which a message may outlive its time: brokers count in milliseconds.
TOLERANCE = 0.05
#: Named in a text, before it says how many more there are.
SHOWN = 5


class NotDrainedError(Exception):
    """The history cannot be judged: messages may still be on their way."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The messages for which each word holds, in the order in which they were sent or arrived."""

    attempted: tuple[Id, ...]
    acknowledged: tuple[Id, ...]
    ok: tuple[Id, ...]
    lost: tuple[Id, ...]
    unexpected: tuple[Id, ...]
    duplicated: tuple[Id, ...]
    recovered: tuple[Id, ...]
    dead_lettered: tuple[Id, ...]
    altered: tuple[Id, ...]
    outlived: tuple[Id, ...]
    unexplained: tuple[Id, ...]
    order_violations: tuple[Id, ...]

    @property
    def is_safe(self) -> bool:
        """Whether nothing was lost, and nothing arrived that should not have; order and copies are not looked at."""
        return not (self.lost or self.unexpected or self.altered or self.outlived)

    @property
    def is_clean(self) -> bool:
        """Whether everything is as promised with `order="session"`."""
        return self.is_safe and not self.order_violations

    def counts(self) -> dict[str, int]:
        return {one.name: len(getattr(self, one.name)) for one in fields(self)}

    def describe(self) -> str:
        """The counts, and some ids for each word that should not hold of any message."""
        lines = [", ".join(f"{word} {count}" for word, count in self.counts().items())]
        for word in ("lost", "unexpected", "altered", "outlived", "order_violations", "unexplained"):
            ids: tuple[Id, ...] = getattr(self, word)
            if ids:
                shown = ", ".join(f"{one.entity}:{one.message_id}" for one in ids[:SHOWN])
                lines.append(f"{word}: {shown}" + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""))
        return "\n".join(lines)


def check(history: History, *, tolerance: float = TOLERANCE) -> Verdict:
    """The verdict on a run that is over. A message may outlive its time by `tolerance` seconds.

    Raises:
        NotDrainedError: nobody has said that the drain has ended, something happened since, or something was left.
    """
    if history.left is None:
        raise NotDrainedError("the history has no end: call drained() when nothing is on its way any more")
    left = {where: count for where, count in history.left.items() if count}
    if left:
        raise NotDrainedError("messages are left: " + ", ".join(f"{count} in {one}" for one, count in left.items()))
    sent = history.sent
    acknowledged = [key for key, one in sent.items() if one.acknowledged is not None]
    missing = [key for key in acknowledged if not all(history.arrived(key))]
    rightly_dead = {key for key in missing if _is_rightly_dead(history, key)}
    absent = set(missing)
    duplicated = [key for key in sent if any(len(one) > 1 for one in history.arrived(key))]
    return Verdict(
        attempted=tuple(sent),
        acknowledged=tuple(acknowledged),
        ok=tuple(key for key in acknowledged if key not in absent),
        lost=tuple(key for key in missing if key not in rightly_dead),
        unexpected=tuple(_unexpected(history)),
        duplicated=tuple(duplicated),
        recovered=tuple(key for key, one in sent.items() if one.acknowledged is None and any(history.arrived(key))),
        dead_lettered=tuple(key for key in missing if key in rightly_dead),
        altered=tuple(key for key, one in sent.items() if any(_is_altered(one, it) for it in _all(history, key))),
        outlived=tuple(
            key for key, one in sent.items() if any(_outlives(one, it, tolerance) for it in _all(history, key))
        ),
        unexplained=tuple(key for key in duplicated if not sent[key].is_doubtful),
        order_violations=tuple(dict.fromkeys(_out_of_order(history))),
    )


def _all(history: History, message: Id) -> Iterable[Arrival]:
    return (one for arrivals in history.arrived(message) for one in arrivals)


def _is_rightly_dead(history: History, message: Id) -> bool:
    """Whether a message that has not arrived is a dead letter whose time to live was really over."""
    dead, one = history.dead_letters.get(message), history.sent[message]
    if dead is None or one.time_to_live is None or dead.at is None or one.attempted_at is None:
        return False
    return dead.at >= one.attempted_at + one.time_to_live - TOLERANCE


def _unexpected(history: History) -> Iterable[Id]:
    entities = {place: entity for entity, places in history.places.items() for place in places}
    for place, message_id in history.arrivals:
        found = Id(entities.get(place, place), message_id)
        if found not in history.sent:
            yield found


def _is_altered(sent: Sent, arrival: Arrival) -> bool:
    if sent.content is None and arrival.content is None:
        return False
    return (sent.session, sent.content) != (arrival.session, arrival.content)


def _outlives(sent: Sent, arrival: Arrival, tolerance: float) -> bool:
    """Whether it may live longer than if it had been stored when it was acknowledged. Late copies are left out."""
    if sent.time_to_live is None or sent.acknowledged_at is None or sent.is_doubtful or arrival.expires_at is None:
        return False
    return arrival.expires_at > sent.acknowledged_at + sent.time_to_live + tolerance


def _out_of_order(history: History) -> Iterable[Id]:
    """Those that arrived behind a message of their session that was begun after they were acknowledged."""
    by_session: dict[tuple[str, str], list[tuple[int, Id]]] = defaultdict(list)
    for key, one in history.sent.items():
        if one.session is not None:
            for place in history.places_of(key.entity):
                arrivals = history.arrivals.get((place, key.message_id))
                if arrivals:
                    by_session[place, one.session].append((arrivals[0].moment, key))
    for arrived in by_session.values():
        newest = 0
        for _, key in sorted(arrived):
            one = history.sent[key]
            if one.acknowledged is not None and one.acknowledged < newest:
                yield key
            newest = max(newest, one.attempted)
