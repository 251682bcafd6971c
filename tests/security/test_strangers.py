"""What strangers can do: nothing. Frame by frame, so that no client is too polite to try; counted at the namespace."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from tests.broker.raw_client import Delivery, RawClient, Refused, encoded_message
from tests.security.conftest import OWN, QUEUE, ROOT, SESSIONS, SUBSCRIPTION, TOPIC, Stranger, key_of

from twinbus.amqp.types import Timestamp
from twinbus.broker import Namespace
from twinbus.broker.security import Right

pytestmark = pytest.mark.asyncio(loop_scope="module")

NO_RIGHTS = (
    Stranger("a wrong key", key="d3Jvbmc="),
    Stranger("an unknown policy", policy="nobody", key=key_of(ROOT)),
    Stranger("an expired token", expires_in=-60),
    Stranger("a token for another entity", path=OWN),
    Stranger("the owner of another entity", policy="neighbour"),
)
SENDER = Stranger("who may only send", policy="sender")
LISTENER = Stranger("who may only listen", policy="listener")


@dataclass
class Treasure:
    """What is there to be taken: a message that somebody has locked, one that is deferred, and one of a session."""

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
        got: list[Delivery] = []
        receiver = await owner.receiver(QUEUE, got.append)
        receiver.grant(2)
        while len(got) < 2:
            await owner.manage(QUEUE, "peek-message", {"from-sequence-number": 0, "message-count": 1})
        first, second = (uuid.UUID(bytes_le=one.tag) for one in got)
        await owner.manage(QUEUE, "update-disposition", {"disposition-status": "defered", "lock-tokens": [second]})
        yield Treasure(first, got[1].sequence_number, owner)


Try = Callable[[RawClient, Treasure], Awaitable[Any]]


def _manage(path: str, operation: str, body: Callable[[Treasure], dict[str, Any]]) -> Try:
    return lambda client, treasure: client.manage(path, operation, body(treasure))


def _receive(path: str, **options: Any) -> Try:
    return lambda client, _: client.receiver(path, lambda delivery: None, **options)


def _settle(status: str) -> Try:
    return _manage(QUEUE, "update-disposition", lambda one: {"disposition-status": status, "lock-tokens": [one.lock]})


_SOON = [{"message-id": "forged", "message": encoded_message("forged", due_at=time.time() + 3600)}]
_RULE = {"rule-name": "all", "rule-description": {"sql-filter": {"expression": "1=1"}}}
#: What can be tried, with the right that it takes.
TRIES: dict[str, tuple[Right, Try]] = {
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
    "renew": (Right.LISTEN, _manage(QUEUE, "renew-lock", lambda one: {"lock-tokens": [one.lock]})),
    "fetch deferred": (
        Right.LISTEN,
        _manage(
            QUEUE,
            "receive-by-sequence-number",
            lambda one: {"sequence-numbers": [one.deferred], "receiver-settle-mode": 1},
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
    *((stranger, what) for stranger in NO_RIGHTS for what in TRIES),
    *((SENDER, what) for what, (right, _) in TRIES.items() if right is Right.LISTEN),
    *((LISTENER, what) for what, (right, _) in TRIES.items() if right is Right.SEND),
]


def holdings(namespace: Namespace) -> dict[str, Any]:
    """Everything about what is protected that a stranger could change or take."""
    found: dict[str, Any] = {}
    for path in (QUEUE, SESSIONS, TOPIC, SUBSCRIPTION):
        node = namespace.entities.resolve(path)
        assert node is not None
        queue = node.queue
        found[path] = (
            queue.counters.active,
            queue.counters.deferred,
            queue.counters.scheduled,
            queue.locked,
            queue.activity.received,
            queue.activity.delivered,
            queue.activity.completed,
        )
    return found


@pytest.mark.parametrize(("stranger", "what"), CASES, ids=[f"{one.name}: {what}" for one, what in CASES])
async def test_a_stranger_is_refused_and_nothing_changes(
    namespace: Namespace, treasure: Treasure, stranger: Stranger, what: str
) -> None:
    before = holdings(namespace)
    async with RawClient(namespace.connection_string) as client:
        await stranger.show_tokens(client, QUEUE, SESSIONS, TOPIC, SUBSCRIPTION)
        with pytest.raises(Refused) as refused:
            await TRIES[what][1](client, treasure)
    assert refused.value.condition == "amqp:unauthorized-access"
    assert holdings(namespace) == before


async def test_whoever_shows_no_token_gets_nothing(namespace: Namespace, treasure: Treasure) -> None:
    before = holdings(namespace)
    async with RawClient(namespace.connection_string) as client:
        for _, attempt in TRIES.values():
            with pytest.raises(Refused, match="unauthorized-access"):
                await attempt(client, treasure)
    assert holdings(namespace) == before


async def test_the_tries_would_succeed_with_the_right_they_take(namespace: Namespace, treasure: Treasure) -> None:
    """Else the tests above would prove nothing: no try is refused for being wrong in itself."""
    async with RawClient(namespace.connection_string) as client:
        for path in (QUEUE, SESSIONS, TOPIC):
            await client.put_token(path)
        for what in ("send", "schedule", "listen", "take a session", "peek", "renew", "list rules"):
            await TRIES[what][1](client, treasure)


NEXT_DOOR: dict[str, tuple[str, Callable[[Treasure], dict[str, Any]]]] = {
    "complete": (
        "update-disposition",
        lambda one: {"disposition-status": "completed", "lock-tokens": [one.lock]},
    ),
    "dead-letter": (
        "update-disposition",
        lambda one: {"disposition-status": "suspended", "lock-tokens": [one.lock]},
    ),
    "renew": ("renew-lock", lambda one: {"lock-tokens": [one.lock]}),
    "fetch deferred": (
        "receive-by-sequence-number",
        lambda one: {"sequence-numbers": [one.deferred], "receiver-settle-mode": 1},
    ),
}


@pytest.mark.parametrize("what", NEXT_DOOR)
async def test_locks_and_numbers_of_one_entity_are_of_no_use_at_the_management_node_of_another(
    namespace: Namespace, treasure: Treasure, what: str
) -> None:
    operation, body = NEXT_DOOR[what]
    before = holdings(namespace)
    async with RawClient(namespace.connection_string) as client:
        await Stranger("the owner of another entity", policy="neighbour").show_tokens(client, OWN)
        with pytest.raises(Refused) as refused:
            await client.manage(OWN, operation, body(treasure))
    assert refused.value.condition in ("com.microsoft:message-lock-lost", "com.microsoft:message-not-found")
    assert holdings(namespace) == before
