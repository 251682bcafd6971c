"""Tracks whether the ledger takes rows, and publishes changes as events."""

from __future__ import annotations

import logging
import threading

from .events import EventBus, LedgerAvailable, LedgerUnavailable

logger = logging.getLogger("twinbus.pairing")

WRITER = ""


class LedgerHealth:
    """Ledger problems of a pairing, reported by the ledger's writer and the pumps. Thread-safe.

    Reporters are the writer (`WRITER`) and the pumps, by their queues. A pump reports only problems that stop it.
    """

    def __init__(self, events: EventBus) -> None:
        self._events = events
        self._lock = threading.Lock()
        self._messages: dict[str, str] = {}

    @property
    def error(self) -> str | None:
        """Why the ledger takes no rows; None if it does."""
        with self._lock:
            return next(iter(self._messages.values()), None)

    @property
    def syphon_error(self) -> str | None:
        """Why pumps wait for the ledger; None if none does."""
        with self._lock:
            return self._stopping()

    def _stopping(self) -> str | None:
        return next((message for reporter, message in self._messages.items() if reporter != WRITER), None)

    def failed(self, reporter: str, message: str) -> None:
        """Record that the ledger takes no rows of this reporter."""
        with self._lock:
            before = bool(self._messages), self._stopping() is not None
            self._messages[reporter] = message
            after = True, self._stopping() is not None
            message = self._messages.get(WRITER, message)  # its error is the most precise
        if after != before:
            effect = "the syphon waits for it" if after[1] else "rows may be missing"
            logger.warning("The ledger takes no rows, %s: %s", effect, message)
            self._events.publish(LedgerUnavailable(message=message, stops_syphon=after[1]))

    def works(self, reporter: str) -> None:
        """Record that the ledger takes rows of this reporter."""
        with self._lock:
            is_news = self._messages.pop(reporter, None) is not None and not self._messages
        if is_news:
            logger.warning("The ledger takes rows again")
            self._events.publish(LedgerAvailable())
