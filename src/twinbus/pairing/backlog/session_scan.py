"""Scans the backlog queues to release sessions whose messages have all been moved.

Usually every few seconds; while a send is held for its session, more often.

A deleted queue has lost its messages, so its sessions are released. But one answer "not found" does not prove that: a
namespace may give it for a moment, after an upgrade or failover, and still have the queue. A session released then
would overtake its messages. So a queue counts as deleted when every look for a second did not find it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import NamedTuple

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from twinbus.envelope import aliases
from twinbus.ledger.recorder import NamespaceRole, OperationKind, Stage
from twinbus.servicebus.entity_paths import entity_key

from ..events import BacklogWarning
from ..failover.entity_failover import FailedOver
from ..failover.error_classification import Cause, cause_of
from ..operation_recording import recorded
from ..pairing_state import Entity, Pairing
from ..sdk import internals
from ..sending.diverted_sessions import DivertedSessions, Scan, Session

logger = logging.getLogger("twinbus.pairing")

SCAN_MIN = 1.0
SCAN_MAX = 30.0
#: Seconds between two scans while a send is held: after one that released a session, and at most.
HELD_MIN, HELD_MAX = 0.02, 0.5
#: Seconds to keep a receiver for the next held send: opening one can take longer than a caller's timeout.
KEEP_RECEIVER = 5.0
CLOSE_TIMEOUT = 5.0
#: Seconds after a look that did not find a queue in which a second one proves that it was deleted: from, and up to.
#: Much less than a send is held.
CONFIRM_DELETED = 1.0
CONFIRM_WITHIN = 10.0
PAGE = 250
#: Pages per scan; messages behind them wait until the syphon has moved earlier ones.
MAX_PAGES = 200
# Queues to scan at the same time.
_AT_ONCE = 4

_PATH, _SESSION = aliases.PATH.encode(), aliases.SESSION_ID.encode()


class _NotFound(NamedTuple):
    """The first of successive scans that did not find a queue, and when it was answered."""

    scan: Scan
    at: float


class SessionScanner:
    """Finds which sessions still need the backlog, and releases the others."""

    def __init__(self, pairing: Pairing, sessions: DivertedSessions, client: ServiceBusClient) -> None:
        self._pairing = pairing
        self._sessions = sessions
        self._client = client
        self._delay = SCAN_MIN
        # Queues not scanned yet since the start.
        self._unknown = set(range(pairing.options.backlog_queue_count))
        self._not_found: dict[int, _NotFound] = {}
        self._woken = asyncio.Event()
        self._woken_for_held = [asyncio.Event() for _ in self._unknown]

    async def find_all(self) -> None:
        """Scan each queue once, to find sessions that an earlier process diverted.

        A queue that does not answer is left for the next call: it must not prevent the start.
        """
        await _for_each_queue(self._find, sorted(self._unknown))

    async def _find(self, index: int) -> None:
        seen: dict[Session, float] = {}
        try:
            async with self._receiver(index) as receiver:
                scan = await self._scan(index, receiver, seen, lambda: False)
        except Exception as error:
            logger.info("Scanning backlog queue %d failed: %s", index, type(error).__name__)
            return
        self._unknown.discard(index)
        for session, stored_at in seen.items():
            self._sessions.record_found(*session, index, stored_at)
        if scan is None:
            message = f"more than {MAX_PAGES * PAGE} messages: sessions behind them may be sent out of order"
            self._pairing.publish(BacklogWarning(queue=self._pairing.queue_path(index), message=message))

    def wake(self) -> None:
        """Scan soon: a send is held, or the syphon has moved messages. Call it on the event loop."""
        for woken in (self._woken, *self._woken_for_held):
            woken.set()

    async def run(self) -> None:
        """Scan repeatedly, until cancelled."""
        async with asyncio.TaskGroup() as scans:
            scans.create_task(self._scan_regularly())
            # One task per queue: a queue that does not answer must not block the sessions of others.
            for index, woken in enumerate(self._woken_for_held):
                scans.create_task(self._scan_while_held(index, woken))

    async def _scan_regularly(self) -> None:
        delay = SCAN_MIN
        while True:
            await _pause(self._woken, delay)
            delay = await self.scan_again()

    async def _scan_while_held(self, index: int, woken: asyncio.Event) -> None:
        """Scan a queue while a send is held for a session in it."""
        while True:
            pause = HELD_MIN
            is_woken = False
            while index in self._sessions.held():
                try:
                    async with self._receiver(index) as receiver:
                        while candidates := await self._next_held(index, woken):
                            is_news = await self._release(index, receiver, candidates) > 0 or is_woken
                            pause = HELD_MIN if is_news else min(2 * pause, HELD_MAX)
                            is_woken = await _pause(woken, pause)
                except Exception as error:
                    logger.info("Scanning backlog queue %d failed: %s", index, type(error).__name__)
                    pause = min(2 * pause, HELD_MAX)
                    is_woken = await _pause(woken, pause)
            await _pause(woken, None)

    async def _next_held(self, index: int, woken: asyncio.Event) -> set[Session] | None:
        """Return the sessions of a queue with a held send, waiting a few seconds for one; None if there is none."""
        clock = asyncio.get_running_loop().time
        ends = clock() + KEEP_RECEIVER
        while (held := self._sessions.held().get(index)) is None and clock() < ends:
            await _pause(woken, ends - clock())
        return held

    async def scan_again(self) -> float:
        """Release the sessions that have left the backlog; return after how many seconds to scan again.

        The delay grows while sessions wait and none is released.
        """
        if self._unknown:
            await self.find_all()
        queues = self._sessions.queues([entity.path for entity in self._pairing.entities() if self._is_back(entity)])
        queues = sorted(set(queues) - set(self._sessions.held()))  # those are scanned continuously
        released = await self._release_all(queues)
        is_confirming = not self._not_found.keys().isdisjoint({*queues, *self._unknown})
        is_waiting = bool(queues or self._unknown) and not released and not is_confirming
        self._delay = min(2 * self._delay, SCAN_MAX) if is_waiting else SCAN_MIN
        return self._delay

    async def _release_all(self, queues: list[int]) -> int:
        released = 0

        async def scan(index: int) -> None:
            nonlocal released
            try:
                async with self._receiver(index) as receiver:
                    released += await self._release(index, receiver)
            except Exception as error:
                logger.info("Scanning backlog queue %d failed: %s", index, type(error).__name__)

        await _for_each_queue(scan, queues)
        return released

    def _is_back(self, entity: Entity) -> bool:
        """Return whether the entity is not failed over; while it is, its sessions use the backlog anyway."""
        return not isinstance(self._pairing.state_of(entity), FailedOver)

    async def _release(
        self, index: int, receiver: ServiceBusReceiver, candidates: Collection[Session] | None = None
    ) -> int:
        """Scan a queue for sessions that are no longer there; return how many were released.

        The scan ends early once all of its sessions, or all `candidates`, were seen.
        """
        seen: dict[Session, float] = {}
        begun = self._sessions.begin_scan(index)
        scan = await self._scan(index, receiver, seen, lambda: not self._sessions.is_awaited(begun, seen, candidates))
        if scan is None:
            return 0
        released = self._sessions.end_scan(scan, seen)
        for session in released:
            logger.info("Released a session of %s: none of its messages is left in the backlog", session.entity)
        return len(released)

    @contextlib.asynccontextmanager
    async def _receiver(self, index: int) -> AsyncIterator[ServiceBusReceiver]:
        receiver = self._client.get_queue_receiver(self._pairing.queue_path(index))
        try:
            yield receiver
        finally:
            await _close(receiver)

    async def _scan(
        self, index: int, receiver: ServiceBusReceiver, seen: dict[Session, float], is_enough: Callable[[], bool]
    ) -> Scan | None:
        """Add the sessions in a queue to `seen`, with the time of their newest message.

        Returns the scan to end; None if the queue has more messages than were read. Raises what `peek_messages` raises,
        also "not found" until that is confirmed: then the queue was deleted, and its messages with it.
        """
        clock = asyncio.get_running_loop().time
        began, scan = clock(), self._sessions.begin_scan(index)
        try:
            is_whole = await self._read(index, receiver, seen, is_enough)
        except Exception as error:
            if cause_of(error) is not Cause.NOT_FOUND:
                self._not_found.pop(index, None)
                raise
            first = self._not_found.get(index)
            if first is None or began - first.at > CONFIRM_WITHIN:
                self._not_found[index] = _NotFound(scan, clock())
                raise
            if began - first.at < CONFIRM_DELETED:
                raise
            del self._not_found[index]
            return first.scan  # what was sent since then may be in a queue that was created again
        self._not_found.pop(index, None)
        return scan if is_whole else None

    async def _read(
        self, index: int, receiver: ServiceBusReceiver, seen: dict[Session, float], is_enough: Callable[[], bool]
    ) -> bool:
        path, seconds = self._pairing.queue_path(index), self._pairing.options.attempt_timeout
        number = 1  # for the SDK 0 means: continue after this receiver's last peek
        for _ in range(MAX_PAGES):
            with recorded(self._pairing, OperationKind.PEEK, Stage.BACKLOG_RECEIVE, NamespaceRole.SECONDARY, path):
                async with asyncio.timeout(seconds):
                    page = await receiver.peek_messages(PAGE, sequence_number=number, timeout=seconds)
            if not page:
                return True
            for message in page:
                session = session_of(message)
                if session is not None:
                    seen[session] = max(seen.get(session, 0.0), _stored_at(message))
            if is_enough():
                return False
            number = (page[-1].sequence_number or 0) + 1
        return False


async def _for_each_queue(scan: Callable[[int], Awaitable[None]], queues: Collection[int]) -> None:
    """Scan the queues, a few at the same time."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(index: int) -> None:
        async with turns:
            await scan(index)

    await asyncio.gather(*map(in_turn, queues))


async def _pause(woken: asyncio.Event, seconds: float | None) -> bool:
    """Wait until woken, for at most some seconds; return whether it was."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await woken.wait()
    is_woken = woken.is_set()
    woken.clear()
    return is_woken


async def _close(receiver: ServiceBusReceiver) -> None:
    """Close the receiver, and cut its connection if that takes too long."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await receiver.close()
    except Exception as error:
        logger.debug("Closing a receiver failed: %s", type(error).__name__)
    finally:
        internals.cut(internals.connection(receiver))


def session_of(message: ServiceBusReceivedMessage) -> Session | None:
    """Return the session of a backlog message at its destination; None if it has none."""
    properties = message.application_properties or {}
    path, session = properties.get(_PATH), properties.get(_SESSION)
    if not isinstance(path, bytes) or not isinstance(session, bytes):
        return None
    return Session(entity_key(path.decode("utf-8", "replace")), session.decode("utf-8", "replace"))


def _stored_at(message: ServiceBusReceivedMessage) -> float:
    """Return when the queue stored the message, by the broker's clock."""
    stored = message.enqueued_time_utc
    return 0.0 if stored is None else stored.timestamp()
