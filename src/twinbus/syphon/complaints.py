"""What keeps a pump from its queue and that no waiting will mend: its owner is told, once."""

from __future__ import annotations

import logging

from twinbus.pairing.events import BacklogWarning, EventBus

from .errors import AmqpError
from .verdicts import NOT_FOUND

logger = logging.getLogger("twinbus.syphon")

_FOR_THE_OWNER = frozenset(
    {NOT_FOUND, "amqp:unauthorized-access", "com.microsoft:auth-failed", "com.microsoft:entity-disabled"}
)


class Complaints:
    """Of one backlog queue."""

    def __init__(self, queue: str, events: EventBus) -> None:
        self._queue = queue
        self._events = events
        self._told: str | None = None

    def add(self, error: AmqpError) -> None:
        """The queue cannot be received from. What its owner must see to is an event, until it is something else."""
        logger.warning("%s is not received from: %s", self._queue, error)
        if error.condition in _FOR_THE_OWNER and error.condition != self._told:
            self._told = error.condition
            self._events.publish(BacklogWarning(queue=self._queue, message=f"it is not received from: {error}"))

    def withdraw(self) -> None:
        """The queue is received from."""
        self._told = None
