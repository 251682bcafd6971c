"""Implements auto-forwarding: moves messages from a queue or dead-letter queue to another entity.

A forwarder is a receiver of its queue. It moves each message in one commit, so that a message is always in exactly one
of the two entities.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.entity_descriptions import (
    AnyDescription,
    InvalidDescriptionError,
    SubscriptionDescription,
    TopicDescription,
)

from ..protocol.error_conditions import NOT_FOUND, QUOTA_EXCEEDED, SERVER_BUSY, BrokerError, not_found
from ..storage.store import StoreError
from .inbox import RETRY_SECONDS
from .locks import Lock
from .message import Arrival, Message
from .queue import Queue
from .session_queue import Session, SessionQueue

if TYPE_CHECKING:
    from .entity_directory import AnyEntity, Node

logger = logging.getLogger("twinbus.emulator.entities.forwarding")

MAX_HOPS = 4
MAX_MOVING = 256
WAIT_SECONDS = 3600.0
_REASONS = {NOT_FOUND: "DestinationNotFound", QUOTA_EXCEEDED: "DestinationQuotaExceeded"}
_TOO_MANY_HOPS = "MaxTransferHopCountExceeded"


def targets_of(description: AnyDescription) -> list[str]:
    """The paths that an entity forwards its messages and dead letters to."""
    if isinstance(description, TopicDescription):
        return []
    targets = (description.forward_to, description.forward_dead_lettered_messages_to)
    return [target for target in targets if target is not None]


def check_forwarding(description: AnyDescription, find: Callable[[str], AnyEntity | None]) -> None:
    """Raise `InvalidDescriptionError` if forwarding could return messages to an entity with this description.

    An entity may forward to itself, as on the service: the hop limit ends that loop.
    """
    own = description.topic if isinstance(description, SubscriptionDescription) else description.path
    targets = [target for target in targets_of(description) if target.lower() != own.lower()]
    seen: set[str] = set()
    while targets:
        target = targets.pop().lower()
        if target == own.lower():
            message = f"'{description.path}' cannot forward messages that would come back to it."
            raise InvalidDescriptionError("forward_to", message)
        entity = find(target)
        if target not in seen and entity is not None:
            seen.add(target)
            targets += targets_of(entity.description)
            for subscription in getattr(entity, "subscriptions", {}).values():
                targets += targets_of(subscription.description)


class Forwarder:
    """Moves the messages of a queue to its forwarding target.

    Messages that cannot be moved go to the transfer dead-letter queue, with the reason.
    """

    deletes = False

    def __init__(
        self,
        queue: Queue,
        target: str,
        resolve: Callable[[str], Node | None],
        transfer_queue: Callable[[], Queue],
        dead_letters_of: str | None = None,
    ) -> None:
        self.queue = queue
        self.target = target
        self._resolve = resolve
        self._transfer_queue = transfer_queue
        self._dead_letters_of = dead_letters_of
        self._moving = 0

    def start(self) -> None:
        """Forward the messages that are in the queue, and new ones as they arrive."""
        self.queue.attach(self)
        self.queue.wake(self)

    def stop(self) -> None:
        self.queue.detach(self)

    # ---- the `Receiver` interface ----

    def can_take(self) -> bool:
        return self._moving < MAX_MOVING

    def reserve(self) -> None:
        self._moving += 1

    def unreserve(self) -> None:
        self._moving -= 1

    def session_lost(self) -> None:
        """Never called: this forwarder takes no sessions."""

    def deliver(self, message: Message, lock: Lock | None) -> None:
        assert lock is not None
        queue, token, now = self.queue, lock.token, self.queue.env.now_ms()
        queue.accessed_at = now / 1000
        arrival = Arrival.forwarded(message, now, self._dead_letters_of)

        def move() -> None:
            destination = self._destination(arrival)
            queue.complete(token, _ignore_result)
            destination.take([arrival], _ignore_result)

        try:
            queue.env.store.atomically(move, partial(self._moved, token))
        except BrokerError as error:
            if error.condition == SERVER_BUSY:
                self._moved(token, error)
                return
            reason = _TOO_MANY_HOPS if arrival.hops > MAX_HOPS else _REASONS.get(error.condition, "ForwardingFailed")
            self._give_up(token, reason, error.description)
        except Exception:
            # One bad message must not block those behind it.
            logger.exception("forwarding a message of %s to %s failed", queue.path, self.target)
            self._give_up(token, "ForwardingFailed", f"'{self.target}' could not take the message.")

    def _give_up(self, token: bytes, reason: str, description: str) -> None:
        properties = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        self.queue.dead_letter_to(token, properties, self._transfer_queue(), partial(self._moved, token))

    def _destination(self, arrival: Arrival) -> Queue:
        """The queue or topic to move the message to; raises `BrokerError` if it cannot take it."""
        if arrival.hops > MAX_HOPS:
            message = f"The maximum of {MAX_HOPS} hops between entities is exceeded on the way to '{self.target}'."
            raise BrokerError(QUOTA_EXCEEDED, message)
        node = self._resolve(self.target)
        if node is None:
            raise not_found(self.target)
        node.require_active(Right.SEND)
        fault = node.queue.env.forwarding_refused(node.path)
        if fault is not None:
            raise fault
        node.queue.check([arrival])
        return node.queue

    def _moved(self, token: bytes, error: StoreError | BrokerError | None) -> None:
        self._moving -= 1
        if error is None:
            if self in self.queue.receivers:
                self.queue.wake(self)
        else:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._try_again, token)

    def _try_again(self, token: bytes) -> None:
        if self.queue.is_closed:
            return
        if self.queue.holds(token):
            self.queue.release(token, _ignore_result)
        if self in self.queue.receivers:
            self.queue.wake(self)


class SessionForwarder(Forwarder):
    """Forwards a queue with sessions, one session at a time."""

    queue: SessionQueue
    session_id: str | None = None

    def start(self) -> None:
        self.queue.attach(self)
        self._next_session()

    def _next_session(self) -> None:
        self.session_id = None
        self.queue.accept(None, self, WAIT_SECONDS, self._granted)

    def _granted(self, result: Session | BrokerError) -> None:
        if isinstance(result, BrokerError):
            self._next_session()
        else:
            self.session_id = result.id
            self.queue.wake(self)

    def session_lost(self) -> None:
        self._next_session()

    def _moved(self, token: bytes, error: StoreError | BrokerError | None) -> None:
        super()._moved(token, error)
        if not self._moving and error is None and self in self.queue.receivers:
            self.queue.detach(self)  # unlock the session, so that its later messages can be accepted again
            self.start()


def _ignore_result(error: BrokerError | None) -> None:
    """The commit of the whole move reports the result."""
