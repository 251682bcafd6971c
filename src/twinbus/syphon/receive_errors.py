"""Reports non-retryable receive errors of a backlog queue, each once."""

from __future__ import annotations

import logging

from twinbus.amqp.client.errors import AmqpError
from twinbus.pairing.events import BacklogWarning, EventBus

from .delivery.send_failures import NOT_FOUND

logger = logging.getLogger("twinbus.syphon")

_NEEDS_OWNER = frozenset(
    {NOT_FOUND, "amqp:unauthorized-access", "com.microsoft:auth-failed", "com.microsoft:entity-disabled"}
)


class ReceiveErrors:
    """The receive errors of one backlog queue."""

    def __init__(self, queue: str, events: EventBus) -> None:
        self._queue = queue
        self._events = events
        self._reported: str | None = None

    def add(self, error: AmqpError) -> None:
        """Log an error. One that only the queue's owner can fix is also an event, until the condition changes."""
        logger.warning("Receiving from %s failed: %s", self._queue, error)
        if error.condition in _NEEDS_OWNER and error.condition != self._reported:
            self._reported = error.condition
            self._events.publish(BacklogWarning(queue=self._queue, message=f"receiving from it failed: {error}"))

    def clear(self) -> None:
        """Receiving works again."""
        self._reported = None
