"""Auto-forwarding: what arrives at one entity, or in its dead-letter queue, goes on to another of the namespace.

A forwarder is one more receiver of its queue. It moves each message in one commit, so that a message is never in both
places and never in neither.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from .descriptions import AnyDescription, InvalidDescription, SubscriptionDescription, TopicDescription
from .errors import NOT_FOUND, QUOTA_EXCEEDED, SERVER_BUSY, BrokerError, not_found
from .inbox import RETRY_SECONDS
from .locks import Lock
from .message import Arrival, Message
from .queue import Queue
from .security import Right
from .session_queue import Session, SessionQueue
from .store import StoreError

if TYPE_CHECKING:
    from .entities import AnyEntity, Node

logger = logging.getLogger("twinbus.broker.forwarding")

MAX_HOPS = 4
MAX_MOVING = 256
WAIT_SECONDS = 3600.0
_REASONS = {NOT_FOUND: "DestinationNotFound", QUOTA_EXCEEDED: "DestinationQuotaExceeded"}
_TOO_MANY_HOPS = "MaxTransferHopCountExceeded"


def targets_of(description: AnyDescription) -> list[str]:
    """The paths that messages or dead letters of an entity are forwarded to."""
    if isinstance(description, TopicDescription):
        return []
    targets = (description.forward_to, description.forward_dead_lettered_messages_to)
    return [target for target in targets if target is not None]


def check_forwarding(description: AnyDescription, find: Callable[[str], AnyEntity | None]) -> None:
    """Raise `InvalidDescription` if messages of an entity with this description could come back from another one.

    An entity may name itself, as on the service: the number of hops ends that.
    """
    own = description.topic if isinstance(description, SubscriptionDescription) else description.path
    targets = [target for target in targets_of(description) if target.lower() != own.lower()]
    seen: set[str] = set()
    while targets:
        target = targets.pop().lower()
        if target == own.lower():
            message = f"'{description.path}' cannot forward messages that would come back to it."
            raise InvalidDescription("forward_to", message)
        entity = find(target)
        if target not in seen and entity is not None:
            seen.add(target)
            targets += targets_of(entity.description)
            for subscription in getattr(entity, "subscriptions", {}).values():
                targets += targets_of(subscription.description)


class Forwarder:
    """Takes the messages of a queue and puts them where they are forwarded to.

    What cannot be put there goes to `given_up`, with the reason.
    """

    deletes = False

    def __init__(
        self,
        queue: Queue,
        target: str,
        resolve: Callable[[str], Node | None],
        given_up: Callable[[], Queue],
        dead_letters_of: str | None = None,
    ) -> None:
        self.queue = queue
        self.target = target
        self._resolve = resolve
        self._given_up = given_up
        self._dead_letters_of = dead_letters_of
        self._moving = 0

    def start(self) -> None:
        """Forward what is there, and what comes."""
        self.queue.attach(self)
        self.queue.wake(self)

    def stop(self) -> None:
        self.queue.detach(self)

    # ---- what the queue asks of a receiver ----

    def can_take(self) -> bool:
        return self._moving < MAX_MOVING

    def reserve(self) -> None:
        self._moving += 1

    def unreserve(self) -> None:
        self._moving -= 1

    def session_lost(self) -> None:
        """Only one that takes sessions can lose them."""

    def deliver(self, message: Message, lock: Lock | None) -> None:
        assert lock is not None
        queue, token, now = self.queue, lock.token, self.queue.env.now_ms()
        queue.accessed_at = now / 1000
        arrival = Arrival.forwarded(message, now, self._dead_letters_of)

        def move() -> None:
            destination = self._destination(arrival)
            queue.complete(token, _ignore)
            destination.take([arrival], _ignore)

        try:
            queue.env.store.atomically(move, partial(self._moved, token))
        except BrokerError as error:
            if error.condition == SERVER_BUSY:
                self._moved(token, error)
                return
            reason = _TOO_MANY_HOPS if arrival.hops > MAX_HOPS else _REASONS.get(error.condition, "ForwardingFailed")
            self._give_up(token, reason, error.description)
        except Exception:
            # One message must not keep those behind it, whatever is wrong with it.
            logger.exception("a message of %s could not be forwarded", queue.path)
            self._give_up(token, "ForwardingFailed", f"'{self.target}' could not take the message.")

    def _give_up(self, token: bytes, reason: str, description: str) -> None:
        why = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        self.queue.give_up(token, why, self._given_up(), partial(self._moved, token))

    def _destination(self, arrival: Arrival) -> Queue:
        """The queue or topic that takes the message; raises `BrokerError` if none does."""
        if arrival.hops > MAX_HOPS:
            message = f"The maximum of {MAX_HOPS} hops between entities is exceeded on the way to '{self.target}'."
            raise BrokerError(QUOTA_EXCEEDED, message)
        node = self._resolve(self.target)
        if node is None:
            raise not_found(self.target)
        node.require_active(Right.SEND)
        refusal = node.queue.env.forwarding_refused(node.path)
        if refusal is not None:
            raise refusal
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
            self.queue.release(token, _ignore)
        if self in self.queue.receivers:
            self.queue.wake(self)


class SessionForwarder(Forwarder):
    """The same for a queue with sessions: it takes one session after the other."""

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
            self.queue.detach(self)  # the session is free, for whatever comes for it later
            self.start()


def _ignore(error: BrokerError | None) -> None:
    """What became of it is told to whoever moves the message."""
