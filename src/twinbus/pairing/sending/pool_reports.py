"""Reports what a link pool learns about its entity or backlog queue to the pairing."""

from __future__ import annotations

from ..failover.entity_failover import Healthy
from ..failover.error_classification import Cause, cause_of, retires_queue
from ..pairing_errors import AttemptTimeoutError, HungCallsError
from ..pairing_state import Attempt, Entity, Pairing

#: Links of one pool that may open at the same time in normal operation.
MAX_OPENING = 4


class EntityTarget:
    """A queue or topic of the primary."""

    def __init__(self, pairing: Pairing, entity: Entity) -> None:
        self._pairing = pairing
        self._entity = entity
        self._counts = pairing.counts

    def openings_at_once(self, live: int) -> int:
        """Return 1 while the entity is suspect; 1, 2, 4, … after a recovery."""
        state = self._entity.machine.state
        if not isinstance(state, Healthy):
            return 1
        return MAX_OPENING if state.probation_until is None else min(MAX_OPENING, max(1, live))

    def begin(self, *, is_opening: bool = False) -> Attempt:
        return self._pairing.begin(self._entity, is_opening=is_opening)

    def opened(self) -> None:
        self._pairing.answered(self._entity, is_opening=True)

    def failed(self, error: Exception, attempt: Attempt, *, is_conclusive: bool) -> None:
        """Report a failed attempt, whether the failure counts or not."""
        pairing, entity = self._pairing, self._entity
        if not self._counts(error):
            if cause_of(error) is not Cause.UNAVAILABLE:
                pairing.answered(entity, is_opening=attempt.is_opening)
        elif not is_conclusive or is_late_timeout(pairing, error, attempt):
            pairing.sent_unclear(entity, attempt)
        else:
            pairing.sent_failed(entity, attempt, error)


class QueueTarget:
    """A backlog queue."""

    def __init__(self, pairing: Pairing, index: int) -> None:
        self._pairing = pairing
        self._index = index

    def openings_at_once(self, live: int) -> int:
        return MAX_OPENING

    def begin(self, *, is_opening: bool = False) -> Attempt:
        return self._pairing.begin(is_opening=is_opening)

    def opened(self) -> None:
        self._pairing.queue_answered(self._index, is_opening=True)

    def failed(self, error: Exception, attempt: Attempt, *, is_conclusive: bool) -> None:
        """Report a failed attempt, whether the queue is at fault or not."""
        pairing, index = self._pairing, self._index
        if not retires_queue(error):
            pairing.queue_answered(index, is_opening=attempt.is_opening)
        elif cause_of(error) is not Cause.UNAVAILABLE:
            pairing.queue_failed(index, error)  # it answered, but does not accept messages
        elif not is_conclusive or is_late_timeout(pairing, error, attempt):
            pairing.queue_unclear(index, attempt)
        else:
            pairing.queue_failed(index, error, attempt)


def is_late_timeout(pairing: Pairing, error: Exception, attempt: Attempt) -> bool:
    """Return whether an unanswered attempt proves nothing: this process ran late, or a call hung in the SDK."""
    if isinstance(error, HungCallsError):
        return True
    return isinstance(error, AttemptTimeoutError) and pairing.was_late(attempt)
