"""What a queue delivers to."""

from __future__ import annotations

from typing import Protocol

from .locks import Lock
from .message import Message


class Receiver(Protocol):
    """A link with credit, or a forwarder."""

    deletes: bool

    def can_take(self) -> bool:
        """Whether one more message may be sent now."""

    def reserve(self) -> None:
        """Count a message against the credit before it is sent."""

    def deliver(self, message: Message, lock: Lock | None) -> None:
        """Send a reserved message."""

    def unreserve(self) -> None:
        """A reserved message will not be sent after all."""

    def session_lost(self) -> None:
        """The lock of the receiver's session has run out."""
