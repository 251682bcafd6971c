"""Looks through the backlog queues for sessions that still have messages there, where their order is kept.

Usually every few seconds; while a send is held until its session is out of the backlog, as often as that makes sense.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Stage

from .core import Entity, Pairing
from .events import BacklogWarning
from .failover import FailedOver
from .naming import entity_key
from .recording import recorded
from .sdk import internals
from .sessions import DivertedSessions, Session

logger = logging.getLogger("twinbus.pairing")

SCAN_MIN = 1.0
SCAN_MAX = 30.0
#: Seconds between two looks while a send is held: after one that has released a session, and at most.
HELD_MIN, HELD_MAX = 0.02, 0.5
CLOSE_TIMEOUT = 5.0
PAGE = 250
#: At most so many pages a look; what lies behind them has to wait until the syphon has come closer.
MAX_PAGES = 200
# Queues that are looked through at the same time.
_AT_ONCE = 4

_PATH, _SESSION = b"x-ms-path", b"x-ms-sessionid"


class SessionScanner:
    """Finds out which sessions must go on through the backlog, and releases those that need not."""

    def __init__(self, pairing: Pairing, sessions: DivertedSessions, client: ServiceBusClient) -> None:
        self._pairing = pairing
        self._sessions = sessions
        self._client = client
        self._delay = SCAN_MIN
        # The queues that were not looked through since the start.
        self._unknown = set(range(pairing.options.backlog_queue_count))
        self._woken = asyncio.Event()
        # Kept open while sends are held.
        self._receivers: dict[int, ServiceBusReceiver] = {}

    async def find_all(self) -> None:
        """Look once through each queue: what an earlier process diverted is still under way.

        A queue that cannot be asked is left for the next call: order is no reason not to start.
        """
        turns = asyncio.Semaphore(_AT_ONCE)

        async def in_turn(index: int) -> None:
            async with turns:
                await self._find(index)

        await asyncio.gather(*map(in_turn, sorted(self._unknown)))

    async def _find(self, index: int) -> None:
        seen: dict[Session, float] = {}
        try:
            is_whole = await self._look(index, seen, lambda: False)
        except Exception as error:
            logger.info("Backlog queue %d was not looked through: %s", index, type(error).__name__)
            return
        self._unknown.discard(index)
        for session, stored_at in seen.items():
            self._sessions.found(*session, index, stored_at)
        if not is_whole:
            message = f"more than {MAX_PAGES * PAGE} messages: sessions behind them may be sent out of order"
            self._pairing.publish(BacklogWarning(queue=self._pairing.queue_path(index), message=message))

    def wake(self) -> None:
        """A send is held, or the syphon has moved messages: look soon. On the event loop."""
        self._woken.set()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        delay = SCAN_MIN
        try:
            while True:
                await self._pause(delay)
                await self._look_while_held()
                delay = await self.look_again()
        finally:
            await self._close_receivers()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    async def _look_while_held(self) -> None:
        """Look as long as a send is held: it waits for its session to be released."""
        pause = HELD_MIN
        while held := self._sessions.held():
            released = 0
            for index, wanted in held.items():
                try:
                    released += await self._release(index, wanted)
                except Exception as error:
                    logger.info("Looking through backlog queue %d failed: %s", index, type(error).__name__)
            pause = HELD_MIN if released else min(2 * pause, HELD_MAX)
            await self._pause(pause)
        if not self._sessions.count:
            await self._close_receivers()

    async def look_again(self) -> float:
        """Release the sessions that have left the backlog; returns after how many seconds to look again.

        Ever later while sessions wait to be released and none was.
        """
        if self._unknown:
            await self.find_all()
        queues = self._sessions.queues([one.path for one in self._pairing.entities() if self._is_back(one)])
        released = await self._release_all(queues)
        is_waiting = bool(queues or self._unknown) and not released
        self._delay = min(2 * self._delay, SCAN_MAX) if is_waiting else SCAN_MIN
        return self._delay

    async def _release_all(self, queues: list[int]) -> int:
        released = 0
        try:
            for index in queues:
                released += await self._release(index)
        except Exception as error:
            logger.info("A backlog queue was not looked through: %s", type(error).__name__)
        return released

    def _is_back(self, entity: Entity) -> bool:
        """While an entity is failed over its sessions go to the backlog anyway."""
        return not isinstance(self._pairing.state_of(entity), FailedOver)

    async def _release(self, index: int, wanted: Collection[Session] | None = None) -> int:
        """Look through a queue for sessions that are no longer there; returns how many were released.

        The look is over as soon as all of its sessions were seen, or all of `wanted`.
        """
        scan = self._sessions.begin_scan(index)
        seen: dict[Session, float] = {}
        if not await self._look(index, seen, lambda: not self._sessions.is_awaited(scan, seen, wanted)):
            return 0
        released = self._sessions.end_scan(scan, seen)
        for session in released:
            logger.info("A session of %s is out of the backlog", session.entity)
        return len(released)

    async def _look(self, index: int, seen: dict[Session, float], is_enough: Callable[[], bool]) -> bool:
        """Add the sessions of the messages in a queue to `seen`, each with the time when the newest of its messages was
        stored there; true if the end was reached."""
        path, seconds = self._pairing.queue_path(index), self._pairing.options.attempt_timeout
        receiver = self._receivers.pop(index, None) or self._client.get_queue_receiver(path)
        is_in_order = False
        try:
            is_whole = await self._read(receiver, path, seconds, seen, is_enough)
            is_in_order = True
            return is_whole
        finally:
            if is_in_order and self._sessions.held():
                self._receivers[index] = receiver
            else:
                await _close(receiver)

    async def _read(
        self,
        receiver: ServiceBusReceiver,
        path: str,
        seconds: float,
        seen: dict[Session, float],
        is_enough: Callable[[], bool],
    ) -> bool:
        number = 1  # to the SDK 0 means: go on where the last peek of this receiver ended
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

    async def _close_receivers(self) -> None:
        while self._receivers:
            await _close(self._receivers.popitem()[1])


async def _close(receiver: ServiceBusReceiver) -> None:
    """Take leave of the peer, and if that takes too long, go without."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await receiver.close()
    except Exception as error:
        logger.debug("A receiver did not close: %s", type(error).__name__)
    finally:
        internals.cut(internals.connection(receiver))


def session_of(message: ServiceBusReceivedMessage) -> Session | None:
    """The session that a message of the backlog belongs to at its destination; None if it has none."""
    properties = message.application_properties or {}
    path, session = properties.get(_PATH), properties.get(_SESSION)
    if not isinstance(path, bytes) or not isinstance(session, bytes):
        return None
    return Session(entity_key(path.decode("utf-8", "replace")), session.decode("utf-8", "replace"))


def _stored_at(message: ServiceBusReceivedMessage) -> float:
    """When the queue took it, by the broker's clock."""
    stored = message.enqueued_time_utc
    return 0.0 if stored is None else stored.timestamp()
