"""What a pairing tells about itself while it runs."""

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
    """Something that happened; `at` is in UTC."""

    at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected(Event):
    """A failure that counts has started the timer of an entity."""

    entity: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspicionCleared(Event):
    """The primary has accepted a message for an entity that was suspect, before it failed over."""

    entity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOver(Event):
    """Messages for the entity go to the backlog from now on. `error` is the last failure, if any was seen."""

    entity: str
    error: BaseException | None = None
    forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PingSent(Event):
    """The primary entity is being asked whether it is back."""

    entity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PingFailed(Event):
    """A ping did not get through. The next one follows in `next_ping_in` seconds."""

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
    """A backlog queue has left the rotation."""

    queue: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueRestored(Event):
    """A backlog queue is back in the rotation: its cool-down is over, or it was created or corrected."""

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
    """The pump of a backlog queue has stopped for good: its messages stay there until a syphon is started anew."""

    queue: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerUnavailable(Event):
    """The ledger takes no rows; `message` says why. Sends go on. It is tried again until a `LedgerAvailable`.

    `stops_syphon`: the hosted syphon moves nothing meanwhile, because `ledger_mode` is "required".
    """

    message: str
    stops_syphon: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAvailable(Event):
    """The ledger takes rows again after a `LedgerUnavailable`, and a hosted syphon goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted(Event):
    """The pairing is out of order for good: every later call raises `PairedClientFaultedError`."""

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
    """This process ran `lag` seconds late: it is too busy to tell an outage from its own delay. Once per client."""

    lag: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogWarning(Event):
    """Something about a backlog queue, or about an entity's use of the backlog, that its owner should look at."""

    message: str
    queue: str | None = None
    entity: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogReady(Event):
    """The backlog is ready after a `BacklogWarning` or `NamespacesLookSwapped` said that it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacesLookSwapped(Event):
    """Primary and secondary seem to be exchanged: `queue`, in the primary, is a backlog queue of the secondary.

    No backlog queue was created. `message` says what to do.
    """

    primary: str
    secondary: str
    queue: str
    message: str


Callback = Callable[[Event], None]


def check_callback(callback: Callback) -> None:
    """Raise `TypeError` if a callback is not a plain function; nobody would await a coroutine."""
    if not callable(callback) or inspect.iscoroutinefunction(callback):
        raise TypeError(f"callback must be a plain function that takes an event, not {callback!r}")


class EventBus:
    """Brings events to whoever asked for them, in the thread or task where they happen. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callback] = {}

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call `callback` with every event from now on; returns the function that ends it.

        It must not wait. `Pairing.on_event` is for functions of the application, which may.
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
        """Whether there is anybody to tell: where events are many they need not be made for nobody."""
        return bool(self._callbacks)

    def publish(self, event: Event) -> None:
        """Tell everybody. A subscriber that raises is logged and changes nothing: sends must go on."""
        with self._lock:
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            try:
                callback(event)
            except Exception:
                logger.exception("A subscriber failed for the event %s", type(event).__name__)
