"""Clients without the right can do nothing. Sent frame by frame, and checked at the namespace."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from tests.emulator.raw_client import Delivery, RawClient, RefusedError, encoded_message
from tests.security.conftest import OWN, QUEUE, ROOT, SESSIONS, SUBSCRIPTION, TOPIC, Stranger, key_of

from twinbus.amqp.codec.types import Timestamp
from twinbus.emulator import Namespace
from twinbus.servicebus.access_rights import Right

pytestmark = pytest.mark.asyncio(loop_scope="module")

NO_RIGHTS = (
    Stranger("wrong key", key="d3Jvbmc="),
    Stranger("unknown policy", policy="unknown", key=key_of(ROOT)),
    Stranger("expired token", expires_in=-60),
    Stranger("token for another entity", path=OWN),
    Stranger("owner of another entity", policy="neighbour"),
)
SENDER = Stranger("send right only", policy="sender")
LISTENER = Stranger("listen right only", policy="listener")


@dataclass
class Treasure:
    """The protected state: a locked message, a deferred one, and the client that owns them."""

    lock: uuid.UUID
    deferred: int
    owner: RawClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def treasure(namespace: Namespace) -> AsyncIterator[Treasure]:
    async with RawClient(namespace.connection_string) as owner:
        for path in (QUEUE, SESSIONS, TOPIC):
            await owner.put_token(path)
        sender = await owner.sender(QUEUE)
        for number in range(3):
            await sender.send(encoded_message(f"salary-{number}"))
        await (await owner.sender(SESSIONS)).send(encoded_message("shift", session="night"))
        await (await owner.sender(TOPIC)).send(encoded_message("gift"))
        received: list[Delivery] = []
        receiver = await owner.receiver(QUEUE, received.append)
        receiver.grant(2)
        while len(received) < 2:
            await owner.manage(QUEUE, "peek-message", {"from-sequence-number": 0, "message-count": 1})
        first, second = (uuid.UUID(bytes_le=delivery.tag) for delivery in received)
        await owner.manage(QUEUE, "update-disposition", {"disposition-status": "defered", "lock-tokens": [second]})
        yield Treasure(first, received[1].sequence_number, owner)


Attempt = Callable[[RawClient, Treasure], Awaitable[Any]]


def _manage(path: str, operation: str, body: Callable[[Treasure], dict[str, Any]]) -> Attempt:
    return lambda client, treasure: client.manage(path, operation, body(treasure))


def _receive(path: str, **options: Any) -> Attempt:
    return lambda client, _: client.receiver(path, lambda delivery: None, **options)


def _settle(status: str) -> Attempt:
    return _manage(
        QUEUE, "update-disposition", lambda treasure: {"disposition-status": status, "lock-tokens": [treasure.lock]}
    )


_SOON = [{"message-id": "forged", "message": encoded_message("forged", due_at=time.time() + 3600)}]
_RULE = {"rule-name": "all", "rule-description": {"sql-filter": {"expression": "1=1"}}}
#: Operations to attempt, with the right that each requires.
ATTEMPTS: dict[str, tuple[Right, Attempt]] = {
    "send": (Right.SEND, lambda client, _: client.sender(QUEUE)),
    "send to a topic": (Right.SEND, lambda client, _: client.sender(TOPIC)),
    "schedule": (Right.SEND, _manage(QUEUE, "schedule-message", lambda _: {"messages": _SOON})),
    "cancel": (Right.SEND, _manage(QUEUE, "cancel-scheduled-message", lambda _: {"sequence-numbers": [10**9]})),
    "listen": (Right.LISTEN, _receive(QUEUE)),
    "receive and delete": (Right.LISTEN, _receive(QUEUE, deletes=True)),
    "listen to a subscription": (Right.LISTEN, _receive(SUBSCRIPTION)),
    "listen to dead letters": (Right.LISTEN, _receive(f"{QUEUE}/$DeadLetterQueue")),
    "take a session": (Right.LISTEN, _receive(SESSIONS, session="night")),
    "take any session": (Right.LISTEN, _receive(SESSIONS, session="")),
    "peek": (Right.LISTEN, _manage(QUEUE, "peek-message", lambda _: {"from-sequence-number": 0, "message-count": 9})),
    "complete": (Right.LISTEN, _settle("completed")),
    "abandon": (Right.LISTEN, _settle("abandoned")),
    "dead-letter": (Right.LISTEN, _settle("suspended")),
    "renew": (Right.LISTEN, _manage(QUEUE, "renew-lock", lambda treasure: {"lock-tokens": [treasure.lock]})),
    "fetch deferred": (
        Right.LISTEN,
        _manage(
            QUEUE,
            "receive-by-sequence-number",
            lambda treasure: {"sequence-numbers": [treasure.deferred], "receiver-settle-mode": 1},
        ),
    ),
    "delete a batch": (
        Right.LISTEN,
        _manage(
            QUEUE,
            "batch-delete-messages",
            lambda _: {"enqueued-time-utc": Timestamp(int(time.time() * 1000) + 10**7), "message-count": 9},
        ),
    ),
    "list sessions": (
        Right.LISTEN,
        _manage(SESSIONS, "get-message-sessions", lambda _: {"last-updated-time": Timestamp(0), "skip": 0, "top": 9}),
    ),
    "read a session's state": (Right.LISTEN, _manage(SESSIONS, "get-session-state", lambda _: {"session-id": "night"})),
    "set a session's state": (
        Right.LISTEN,
        _manage(SESSIONS, "set-session-state", lambda _: {"session-id": "night", "session-state": b"x"}),
    ),
    "renew a session": (Right.LISTEN, _manage(SESSIONS, "renew-session-lock", lambda _: {"session-id": "night"})),
    "put a rule": (Right.LISTEN, _manage(SUBSCRIPTION, "add-rule", lambda _: _RULE)),
    "remove a rule": (Right.LISTEN, _manage(SUBSCRIPTION, "remove-rule", lambda _: {"rule-name": "$Default"})),
    "list rules": (Right.LISTEN, _manage(SUBSCRIPTION, "enumerate-rules", lambda _: {"top": 9, "skip": 0})),
}
CASES = [
    *((stranger, what) for stranger in NO_RIGHTS for what in ATTEMPTS),
    *((SENDER, what) for what, (right, _) in ATTEMPTS.items() if right is Right.LISTEN),
    *((LISTENER, what) for what, (right, _) in ATTEMPTS.items() if right is Right.SEND),
]


def holdings(namespace: Namespace) -> dict[str, Any]:
    """The state of the protected entities that an operation could change."""
    state: dict[str, Any] = {}
    for path in (QUEUE, SESSIONS, TOPIC, SUBSCRIPTION):
        node = namespace.entities.resolve(path)
        assert node is not None
        queue = node.queue
        state[path] = (
            queue.counters.active,
            queue.counters.deferred,
            queue.counters.scheduled,
            queue.locked,
            queue.activity.received,
            queue.activity.delivered,
            queue.activity.completed,
        )
    return state


@pytest.mark.parametrize(("stranger", "what"), CASES, ids=[f"{stranger.name}: {what}" for stranger, what in CASES])
async def test_unauthorized_client_is_refused_and_nothing_changes(
    namespace: Namespace, treasure: Treasure, stranger: Stranger, what: str
) -> None:
    before = holdings(namespace)
    async with RawClient(namespace.connection_string) as client:
        await stranger.put_tokens(client, QUEUE, SESSIONS, TOPIC, SUBSCRIPTION)
        with pytest.raises(RefusedError) as refused:
            await ATTEMPTS[what][1](client, treasure)
    assert refused.value.condition == "amqp:unauthorized-access"
    assert holdings(namespace) == before


async def test_client_without_a_token_is_refused(namespace: Namespace, treasure: Treasure) -> None:
    before = holdings(namespace)
    async with RawClient(namespace.connection_string) as client:
        for _, attempt in ATTEMPTS.values():
            with pytest.raises(RefusedError, match="unauthorized-access"):
                await attempt(client, treasure)
    assert holdings(namespace) == before


async def test_attempts_succeed_with_the_required_right(namespace: Namespace, treasure: Treasure) -> None:
    """Shows that the attempts above are refused only for the missing right."""
    async with RawClient(namespace.connection_string) as client:
        for path in (QUEUE, SESSIONS, TOPIC):
            await client.put_token(path)
        for what in ("send", "schedule", "listen", "take a session", "peek", "renew", "list rules"):
            await ATTEMPTS[what][1](client, treasure)


OTHER_ENTITY_REQUESTS: dict[str, tuple[str, Callable[[Treasure], dict[str, Any]]]] = {
    "complete": (
        "update-disposition",
        lambda treasure: {"disposition-status": "completed", "lock-tokens": [treasure.lock]},
    ),
    "dead-letter": (
        "update-disposition",
        lambda treasure: {"disposition-status": "suspended", "lock-tokens": [treasure.lock]},
    ),
    "renew": ("renew-lock", lambda treasure: {"lock-tokens": [treasure.lock]}),
    "fetch deferred": (
        "receive-by-sequence-number",
        lambda treasure: {"sequence-numbers": [treasure.deferred], "receiver-settle-mode": 1},
    ),
}


@pytest.mark.parametrize("what", OTHER_ENTITY_REQUESTS)
async def test_lock_tokens_and_sequence_numbers_do_not_work_on_another_entity(
    namespace: Namespace, treasure: Treasure, what: str
) -> None:
    operation, body = OTHER_ENTITY_REQUESTS[what]
    before = holdings(namespace)
    async with RawClient(namespace.connection_string) as client:
        await Stranger("owner of another entity", policy="neighbour").put_tokens(client, OWN)
        with pytest.raises(RefusedError) as refused:
            await client.manage(OWN, operation, body(treasure))
    assert refused.value.condition in ("com.microsoft:message-lock-lost", "com.microsoft:message-not-found")
    assert holdings(namespace) == before
