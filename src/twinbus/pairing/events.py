"""Defines the events of a pairing, and the bus that delivers them."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

logger = logging.getLogger("twinbus.pairing")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events; `at` is in UTC."""

    at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected(Event):
    """A failure that counts has started the failover timer of an entity."""

    entity: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspicionCleared(Event):
    """A suspect entity has accepted a message on the primary, before it failed over."""

    entity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOver(Event):
    """Messages for the entity now go to the backlog. `error` is the last failure, if there was one."""

    entity: str
    error: BaseException | None = None
    forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PingSent(Event):
    """A ping asks whether the primary entity is back."""

    entity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PingFailed(Event):
    """A ping failed. The next one follows in `next_ping_in` seconds."""

    entity: str
    error: BaseException
    next_ping_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """Messages for the entity go to the primary again."""

    entity: str
    forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueRetired(Event):
    """A backlog queue was retired: it has left the rotation."""

    queue: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueRestored(Event):
    """A backlog queue is back in the rotation: its cool-down is over, or it was created or fixed."""

    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverted(Event):
    """Messages for `entity` were accepted by a backlog queue."""

    entity: str
    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Event):
    """The syphon has moved messages from a backlog queue to `entity`."""

    entity: str
    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpStopped(Event):
    """The pump of a backlog queue has stopped for good: its messages stay there until a syphon is started again."""

    queue: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerUnavailable(Event):
    """The ledger takes no rows; `message` says why. Sends go on, and the ledger is retried.

    `stops_syphon`: the hosted syphon moves nothing meanwhile, because `ledger_mode` is "required".
    """

    message: str
    stops_syphon: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAvailable(Event):
    """The ledger takes rows again after a `LedgerUnavailable`, and a hosted syphon goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted(Event):
    """The pairing has faulted for good: every later call raises `PairedClientFaultedError`."""

    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class OversizeWarning(Event):
    """A message to `entity` was sent that would be too large for the backlog. Once per entity."""

    entity: str
    size: int
    limit: int
    overhead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StarvedWarning(Event):
    """This process ran `lag` seconds late: too busy to tell an outage from its own delay. Once per client."""

    lag: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogWarning(Event):
    """A problem of a backlog queue, or of an entity's use of the backlog, that its owner should look at."""

    message: str
    queue: str | None = None
    entity: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogReady(Event):
    """The backlog is ready, after a `BacklogWarning` or `NamespacesLookSwapped` said that it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacesLookSwapped(Event):
    """Primary and secondary look swapped: `queue`, in the primary, is a backlog queue of the secondary.

    No backlog queue was created. `message` says what to do.
    """

    primary: str
    secondary: str
    queue: str
    message: str


Callback = Callable[[Event], None]


def check_callback(callback: Callback) -> None:
    """Raise `TypeError` if a callback is not a plain function; a coroutine would never be awaited."""
    if not callable(callback) or inspect.iscoroutinefunction(callback):
        raise TypeError(f"callback must be a plain function that takes an event, not {callback!r}")


class EventBus:
    """Delivers events to subscribers, in the thread or task that publishes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callback] = {}

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call `callback` with every event from now on; return what unsubscribes it.

        It must not block. Callbacks of the application, which may, go through `Pairing.on_event`.
        """
        subscription = object()
        with self._lock:
            self._callbacks[subscription] = callback

        def unsubscribe() -> None:
            with self._lock:
                self._callbacks.pop(subscription, None)

        return unsubscribe

    @property
    def has_listeners(self) -> bool:
        """Whether there are subscribers: frequent events need not be built without one."""
        return bool(self._callbacks)

    def publish(self, event: Event) -> None:
        """Call all subscribers. One that raises is logged and ignored: sends must go on."""
        with self._lock:
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            try:
                callback(event)
            except Exception:
                logger.exception("An event subscriber raised on %s", type(event).__name__)
