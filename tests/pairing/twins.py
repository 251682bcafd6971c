"""Two embedded namespaces on the test's event loop, and helpers for a pairing of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tests.namespace_internals import Queue
from tests.sdk_connection import client_options, reachable

from twinbus.emulator import (
    DEFAULT,
    Fault,
    FaultKind,
    Namespace,
    NamespaceConfig,
    PolicyConfig,
    Profile,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.ledger.recorder import MemoryRecorder, Operation, OperationKind
from twinbus.pairing.background import Background
from twinbus.pairing.events import Event
from twinbus.pairing.namespace import Namespace as Side
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.pairing_state import Pairing
from twinbus.servicebus.access_rights import Right

PATIENCE = 60.0  # seconds for something that should come at once
USER = "user"  # may send and listen, and not manage

_E = TypeVar("_E", bound=Event)


class Events:
    """Collects the events of a pairing; `await events.next(Recovered)` waits for the next of a kind."""

    def __init__(self, pairing: Pairing) -> None:
        self.seen: list[Event] = []
        self._taken: dict[type[Event], int] = {}
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        pairing.events.subscribe(self._take)

    def _take(self, event: Event) -> None:
        self.seen.append(event)
        self._loop.call_soon_threadsafe(self._changed.set)

    def all(self, kind: type[_E]) -> list[_E]:
        return [one for one in self.seen if isinstance(one, kind)]

    async def next(self, kind: type[_E], seconds: float = PATIENCE) -> _E:
        number = self._taken.get(kind, 0)
        self._taken[kind] = number + 1
        async with asyncio.timeout(seconds):
            while len(self.all(kind)) <= number:
                self._changed.clear()
                await self._changed.wait()
        return self.all(kind)[number]


class Twins:
    """A primary called contoso, a secondary, and pairings of the two."""

    def __init__(self, primary: Namespace, secondary: Namespace) -> None:
        self.primary = primary
        self.secondary = secondary

    @classmethod
    @asynccontextmanager
    async def running(cls, profile: Profile = DEFAULT) -> AsyncIterator[Twins]:
        policies = (PolicyConfig(USER, frozenset({Right.SEND, Right.LISTEN})),)
        configs = [NamespaceConfig(name, port=0, policies=policies) for name in ("contoso", "standby")]
        async with (
            reachable(configs[0], profile=profile) as primary,
            reachable(configs[1], profile=profile) as secondary,
        ):
            yield cls(primary, secondary)

    def sides(self, policy: str | None = None, **options: Any) -> tuple[Side, Side]:
        texts = (
            side.connection_string if policy is None else side.connection_string_for(policy)
            for side in (self.primary, self.secondary)
        )
        # Both have the same authority, if they speak TLS.
        options = {**client_options(self.primary), **options}
        primary, secondary = (Side.from_connection_string(text, **options) for text in texts)
        return primary, secondary

    def pairing(self, name: str = "contoso", clock: Callable[[], float] | None = None, **options: Any) -> Pairing:
        given = {"backlog_queue_count": 2, "attempt_timeout": 5, "ping_primary_interval": 1, **options}
        more = {} if clock is None else {"clock": clock}
        return Pairing(SendAvailabilityOptions(**given), name, recorder=MemoryRecorder(), **more)

    def background(self, pairing: Pairing, policy: str | None = None) -> Background:
        return Background(pairing, *self.sides(policy))

    # ---- what is there ----

    async def queue(self, path: str, **properties: Any) -> Queue:
        return (await self.primary.create(QueueDescription(path, **properties))).queue

    async def topic(self, path: str, *, requires_session: bool = False) -> tuple[Queue, Queue]:
        """A topic with a subscription; the queues that count what arrived at each."""
        topic = await self.primary.create(TopicDescription(path))
        description = SubscriptionDescription(path, "all", requires_session=requires_session)
        return topic.queue, (await self.primary.create_subscription(description)).queue

    def backlog(self, index: int) -> Queue:
        found = self.secondary.find(f"contoso/x-servicebus-transfer/{index}")
        assert found is not None, f"there is no backlog queue {index}"
        return found.queue

    # ---- outages ----

    def primary_down(self) -> None:
        down(self.primary)

    def primary_up(self) -> None:
        self.primary.faults.clear()


def down(namespace: Namespace) -> None:
    """Refuse connections, and cut existing ones."""
    namespace.faults.add(Fault(FaultKind.REFUSE))
    namespace.faults.add(Fault(FaultKind.RESET))


def operations(pairing: Pairing, *kinds: OperationKind) -> list[Operation]:
    """Return the recorded operations of these kinds."""
    recorder = pairing.recorder
    assert isinstance(recorder, MemoryRecorder)
    return [one for one in recorder.operations if one.operation in kinds]


async def eventually(holds: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Poll until the condition holds."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
