"""What a pool of links tells the pairing about the place it leads to: an entity of the primary, or a backlog queue."""

from __future__ import annotations

from ..core import Attempt, Entity, Pairing
from ..errors import AttemptTimeoutError, HungCallsError
from ..failover import Healthy
from ..policy import Cause, cause_of, retires_queue

#: Links of one pool that open at the same time while all is well.
MAX_OPENING = 4


class EntityPlace:
    """A queue or topic of the primary."""

    def __init__(self, pairing: Pairing, entity: Entity) -> None:
        self._pairing = pairing
        self._entity = entity
        self._counts = pairing.counts

    def openings_at_once(self, live: int) -> int:
        """One while the entity is suspect; after a recovery 1, 2, 4."""
        state = self._entity.machine.state
        if not isinstance(state, Healthy):
            return 1
        return MAX_OPENING if state.probation_until is None else min(MAX_OPENING, max(1, live))

    def begin(self) -> Attempt:
        return self._pairing.begin(self._entity)

    def answered(self) -> None:
        self._pairing.answered(self._entity)

    def failed(self, error: Exception, attempt: Attempt, *, is_conclusive: bool) -> None:
        """An attempt failed, whether in a way that counts or not."""
        pairing, entity = self._pairing, self._entity
        if not self._counts(error):
            if cause_of(error) is not Cause.UNAVAILABLE:
                pairing.answered(entity)
        elif not is_conclusive or is_late_timeout(pairing, error, attempt):
            pairing.sent_unclear(entity, attempt)
        else:
            pairing.sent_failed(entity, attempt, error)


class QueuePlace:
    """A backlog queue."""

    def __init__(self, pairing: Pairing, index: int) -> None:
        self._pairing = pairing
        self._index = index

    def openings_at_once(self, live: int) -> int:
        return MAX_OPENING

    def begin(self) -> Attempt:
        return self._pairing.begin()

    def answered(self) -> None:
        self._pairing.queue_answered(self._index)

    def failed(self, error: Exception, attempt: Attempt, *, is_conclusive: bool) -> None:
        """An attempt failed, whether the queue is to blame or not."""
        pairing, index = self._pairing, self._index
        if not retires_queue(error):
            pairing.queue_answered(index)
        elif cause_of(error) is not Cause.UNAVAILABLE:
            pairing.queue_failed(index, error)  # it has answered, and does not take messages
        elif not is_conclusive or is_late_timeout(pairing, error, attempt):
            pairing.queue_unclear(index, attempt)
        else:
            pairing.queue_failed(index, error, attempt)


def is_late_timeout(pairing: Pairing, error: Exception, attempt: Attempt) -> bool:
    """Whether an attempt got no answer while this process itself ran late, or hung in the SDK: that proves nothing."""
    if isinstance(error, HungCallsError):
        return True
    return isinstance(error, AttemptTimeoutError) and pairing.was_late(attempt)
