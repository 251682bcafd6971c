"""A history: what senders were told, and what receivers got.

It knows nothing of the ledger, nor of how messages travel. Whoever runs a test writes it, `checker.py` reads it.
Everything is kept in the order in which it was told; where times matter the caller gives them, by any one clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Id(NamedTuple):
    """A message: ids are told apart by the entity they were sent to."""

    entity: str
    message_id: str


class Arrival(NamedTuple):
    """A message that a receiver got. `expires_at` is when it would have expired there: infinity for never, None if
    nobody looked."""

    moment: int
    number: int
    session: str | None = None
    content: Hashable = None
    expires_at: float | None = None


class DeadLetter(NamedTuple):
    """A message that was given up on, where its reason can be read."""

    reason: str
    at: float | None = None


@dataclass(slots=True)
class Sent:
    """One message as its sender knows it."""

    session: str | None
    content: Hashable
    time_to_live: float | None
    attempted_at: float | None
    #: The moments of the first attempt and of the acknowledgement, None if there was none.
    attempted: int
    acknowledged: int | None = None
    acknowledged_at: float | None = None
    #: Where it was accepted: primary or backlog.
    route: str | None = None
    #: An answer about it was lost on the way, so that somebody had to try again what was done already.
    is_doubtful: bool = False


@dataclass(slots=True)
class History:
    """Written as things happen. A place is where messages of an entity arrive: the queue itself unless `places` says
    otherwise, or each subscription of a topic."""

    places: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sent: dict[Id, Sent] = field(default_factory=dict)
    #: By place and message id.
    arrivals: dict[tuple[str, str], list[Arrival]] = field(default_factory=dict)
    dead_letters: dict[Id, DeadLetter] = field(default_factory=dict)
    #: How many messages were left where, when the drain had ended; None as long as it has not.
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
        """A sender is about to send a message. To send the same id again is the same message, attempted again.

        `content` is compared with what arrives, `session` too if one of them has a content.
        """
        moment = self._next()
        known = self.sent.get(Id(entity, message_id))
        if known is None:
            self.sent[Id(entity, message_id)] = Sent(session, content, time_to_live, at, moment)

    def acknowledge(self, entity: str, message_id: str, route: str = "primary", *, at: float | None = None) -> None:
        """The sender was told that the message is accepted. Raises `KeyError` if it was never attempted."""
        one = self.sent[Id(entity, message_id)]
        if one.acknowledged is None:
            one.acknowledged, one.acknowledged_at, one.route = self._next(), at, route

    def doubt(self, entity: str, message_id: str) -> None:
        """An answer about the message was lost: it may rightly arrive twice. For runs that know of each answer."""
        one = self.sent.get(Id(entity, message_id))
        if one is not None:
            one.is_doubtful = True

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
        """A receiver got a message. One that comes again under the same sequence number is no second message."""
        arrivals = self.arrivals.setdefault((place, message_id), [])
        moment = self._next()
        if all(one.number != number for one in arrivals):
            arrivals.append(Arrival(moment, number, session, content, expires_at))

    def dead_letter(self, entity: str, message_id: str, reason: str, *, at: float | None = None) -> None:
        """The message was found among the dead letters of a backlog queue, or of its entity."""
        self._next()
        self.dead_letters[Id(entity, message_id)] = DeadLetter(reason, at)

    def put_in_order(self, entities: Iterable[str]) -> None:
        """Let arrivals at some entities stand in the order of their sequence numbers, which is the one in which the
        entity got them: a receiver that was cut off gets the rest again, and that says nothing about the senders."""
        places = {place for entity in entities for place in self.places_of(entity)}
        keys = [key for key in self.arrivals if key[0] in places]
        found = sorted((one.number, *key, one) for key in keys for one in self.arrivals.pop(key))
        for number, place, message_id, one in found:
            again = one._replace(moment=self._next(), number=number)
            self.arrivals.setdefault((place, message_id), []).append(again)

    def drained(self, left: Mapping[str, int] | None = None) -> None:
        """The run is over: nothing sends any more, and receivers got all there was, except for what is left where."""
        self.left = dict(left or {})

    # ---- reading ----

    def places_of(self, entity: str) -> Sequence[str]:
        return self.places.get(entity) or (entity,)

    def arrived(self, message: Id) -> Iterator[list[Arrival]]:
        """What arrived of a message, for each of its places."""
        for place in self.places_of(message.entity):
            yield self.arrivals.get((place, message.message_id), [])

    def missing(self) -> int:
        """How many acknowledged messages have not arrived at all of their places."""
        return sum(one.acknowledged is not None and not all(self.arrived(key)) for key, one in self.sent.items())

    def _next(self) -> int:
        # Whatever is told after the drain shows that it was none.
        self.left = None
        self._moment += 1
        return self._moment
