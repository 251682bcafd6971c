"""Records what senders were told and what receivers got.

Knows nothing of the ledger, nor of how messages travel. A test writes the history, `checker.py` reads it. Entries are
kept in the order in which they are recorded; the caller passes times, all from the same clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Id(NamedTuple):
    """A message id, unique per entity."""

    entity: str
    message_id: str


class Arrival(NamedTuple):
    """One arrival at a receiver. `expires_at` is its expiry time there: infinity for never, `None` if unknown."""

    moment: int
    number: int
    session: str | None = None
    content: Hashable = None
    expires_at: float | None = None


class DeadLetter(NamedTuple):
    """A dead-lettered message and its reason."""

    reason: str
    at: float | None = None


@dataclass(slots=True)
class Sent:
    """A message as its sender knows it."""

    session: str | None
    content: Hashable
    time_to_live: float | None
    attempted_at: float | None
    #: Logical times of the first attempt and of the acknowledgement, `None` if there was none.
    attempted: int
    acknowledged: int | None = None
    acknowledged_at: float | None = None
    #: Where it was accepted: primary or backlog.
    route: str | None = None
    #: An answer about it was lost, so the client had to retry something that was already done.
    is_doubtful: bool = False
    #: Its queue was deleted with the only copy, and none was stored since.
    is_deleted: bool = False
    #: The same, even if a syphon that had received it stored another copy later. Its place in a session is lost.
    was_deleted: bool = False


@dataclass(slots=True)
class History:
    """Recorded as things happen. A place is where messages of an entity arrive: by default the entity itself, for a
    topic each subscription in `places`."""

    places: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sent: dict[Id, Sent] = field(default_factory=dict)
    #: By place and message id.
    arrivals: dict[tuple[str, str], list[Arrival]] = field(default_factory=dict)
    dead_letters: dict[Id, DeadLetter] = field(default_factory=dict)
    #: Messages left per place after the drain; `None` until `drained` is called.
    left: Mapping[str, int] | None = None
    _moment: int = 0

    # ---- senders ----

    def attempt(
        self,
        entity: str,
        message_id: str,
        *,
        session: str | None = None,
        content: Hashable = None,
        time_to_live: float | None = None,
        at: float | None = None,
    ) -> None:
        """Record that a sender is about to send. The same id again is another attempt of the same message.

        `content` is compared with what arrives, and so is `session` if either side has content.
        """
        moment = self._next()
        sent = self.sent.get(Id(entity, message_id))
        if sent is None:
            self.sent[Id(entity, message_id)] = Sent(session, content, time_to_live, at, moment)

    def acknowledge(self, entity: str, message_id: str, route: str = "primary", *, at: float | None = None) -> None:
        """Record that the message was accepted. Raises `KeyError` if it was never attempted."""
        sent = self.sent[Id(entity, message_id)]
        if sent.acknowledged is None:
            sent.acknowledged, sent.acknowledged_at, sent.route = self._next(), at, route

    def doubt(self, entity: str, message_id: str) -> None:
        """Record that an answer was lost, so the message may arrive twice. For runs that track every answer."""
        sent = self.sent.get(Id(entity, message_id))
        if sent is not None:
            sent.is_doubtful = True

    # ---- namespaces ----

    def delete(self, entity: str, message_id: str) -> None:
        """Record that a queue, of the backlog or the entity itself, was deleted with the only copy of a message."""
        sent = self.sent.get(Id(entity, message_id))
        if sent is not None:
            sent.is_deleted = sent.was_deleted = True

    def store(self, entity: str, message_id: str) -> None:
        """Record that a queue stored a copy: an earlier deletion excuses nothing any more."""
        sent = self.sent.get(Id(entity, message_id))
        if sent is not None:
            sent.is_deleted = False

    # ---- receivers ----

    def receive(
        self,
        place: str,
        message_id: str,
        number: int,
        *,
        session: str | None = None,
        content: Hashable = None,
        expires_at: float | None = None,
    ) -> None:
        """Record an arrival. A redelivery with the same sequence number does not count again."""
        arrivals = self.arrivals.setdefault((place, message_id), [])
        moment = self._next()
        if all(arrival.number != number for arrival in arrivals):
            arrivals.append(Arrival(moment, number, session, content, expires_at))

    def dead_letter(self, entity: str, message_id: str, reason: str, *, at: float | None = None) -> None:
        """Record a dead letter of a backlog queue or of the entity."""
        self._next()
        self.dead_letters[Id(entity, message_id)] = DeadLetter(reason, at)

    def sort_by_sequence_number(self, entities: Iterable[str]) -> None:
        """Sort the arrivals at some entities by sequence number, the order in which the entity stored them.

        A receiver that is cut off gets messages again, so the order it sees says nothing about the senders.
        """
        places = {place for entity in entities for place in self.places_of(entity)}
        keys = [key for key in self.arrivals if key[0] in places]
        in_order = sorted((arrival.number, *key, arrival) for key in keys for arrival in self.arrivals.pop(key))
        for number, place, message_id, arrival in in_order:
            moved = arrival._replace(moment=self._next(), number=number)
            self.arrivals.setdefault((place, message_id), []).append(moved)

    def drained(self, left: Mapping[str, int] | None = None) -> None:
        """Record that sending and receiving have ended, and what is left in which place."""
        self.left = dict(left or {})

    # ---- reading ----

    def places_of(self, entity: str) -> Sequence[str]:
        return self.places.get(entity) or (entity,)

    def arrived(self, message: Id) -> Iterator[list[Arrival]]:
        """The arrivals of a message, for each of its places."""
        for place in self.places_of(message.entity):
            yield self.arrivals.get((place, message.message_id), [])

    def missing(self) -> int:
        """Number of acknowledged messages that have not arrived in all of their places."""
        return sum(sent.acknowledged is not None and not all(self.arrived(key)) for key, sent in self.sent.items())

    def _next(self) -> int:
        # An entry after the drain shows that the drain was not complete.
        self.left = None
        self._moment += 1
        return self._moment
