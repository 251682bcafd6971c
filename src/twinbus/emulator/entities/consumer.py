"""Defines the receiver interface that queues deliver to."""

from __future__ import annotations

from typing import Protocol

from .locks import Lock
from .message import Message


class Receiver(Protocol):
    """A receiving link or a forwarder."""

    deletes: bool

    def can_take(self) -> bool:
        """Whether one more message may be delivered now."""

    def reserve(self) -> None:
        """Take one credit before a message is delivered."""

    def deliver(self, message: Message, lock: Lock | None) -> None:
        """Deliver a message whose credit was reserved."""

    def unreserve(self) -> None:
        """Return a reserved credit: its message will not be delivered."""

    def session_lost(self) -> None:
        """Called when the lock of the receiver's session has expired."""
