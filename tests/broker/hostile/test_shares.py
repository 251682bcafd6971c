"""What one connection may hold at the namespace: tokens, and messages whose outcome it has not told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.broker.contract.bus import SettableClock
from tests.broker.faults.bench import PATIENCE, until
from tests.broker.hostile.conftest import QUEUE
from tests.broker.raw_client import Delivery, RawClient, RawReceiver, Refused, encoded_message

from twinbus.amqp import performatives as amqp
from twinbus.amqp.frames import frame
from twinbus.broker import Namespace, QueueDescription, channel, rights
from twinbus.broker.rights import Rights
from twinbus.broker.security import Grant, Right

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("serving")]

FEW = 5
STORED = 4 * FEW
MESSAGE = encoded_message("m")


async def make_queues(namespace: Namespace, test: str, count: int) -> list[str]:
    paths = [f"{test}-{number}" for number in range(count)]
    for path in paths:
        await namespace.create(QueueDescription(path))
    return paths


async def fill(client: RawClient, path: str, count: int = STORED) -> list[str]:
    """Send messages with different ids, which are returned."""
    sender = await client.sender(path)
    names = [f"{path}-{number}" for number in range(count)]
    for name in names:
        await sender.send(encoded_message(name))
    return names


async def settle(receiver: RawReceiver, delivery: Delivery) -> None:
    await asyncio.wait_for(receiver.settled(delivery), PATIENCE)


def held(namespace: Namespace, path: str) -> tuple[int, int]:
    """How many messages a queue has, and how many of them are locked."""
    entity = namespace.find(path)
    assert entity is not None
    return entity.queue.counters.active, entity.queue.locked


# ---- tokens ----


async def test_one_token_too_many_is_refused_and_the_others_stay_good(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights, "MAX_GRANTS", FEW)
    *known, beyond = await make_queues(namespace, "tokens", FEW + 1)
    async with RawClient(namespace.connection_string) as client, RawClient(namespace.connection_string) as other:
        for path in known:
            await client.put_token(path)
        for _ in range(2):
            with pytest.raises(Refused, match=f"400 A connection can hold tokens for {FEW} audiences"):
                await client.put_token(beyond)
        with pytest.raises(Refused, match="unauthorized"):
            await client.sender(beyond)
        await client.put_token(known[0])  # the same again is not one more
        for path in known:
            await (await client.sender(path)).send(MESSAGE)
        await other.put_token(beyond)  # what one connection holds does not count for others
        await (await other.sender(beyond)).send(MESSAGE)


async def test_tokens_that_have_expired_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "MAX_GRANTS", FEW)
    clock = SettableClock()
    async with Namespace("fabrikam", clock=clock) as namespace:
        *known, beyond = await make_queues(namespace, "expiring", FEW + 1)
        async with RawClient(namespace.connection_string) as client:
            for path in known[1:]:
                await client.put_token(path, expires_at=clock() + 60)
            await client.put_token(known[0], expires_at=clock() + 600)
            with pytest.raises(Refused, match="audiences"):
                await client.put_token(beyond)
            clock.ahead += 61
            await client.put_token(beyond)
            for path in (known[0], beyond):
                await (await client.sender(path)).send(MESSAGE)
            with pytest.raises(Refused, match="unauthorized"):
                await client.sender(known[1])


@pytest.mark.parametrize("audience", ["queue-{}", ""], ids=["each for a queue of its own", "all for the namespace"])
async def test_a_link_that_asks_for_its_right_does_not_look_through_all_tokens(
    audience: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    allows: Callable[[Grant, str, Right], bool] = Grant.allows

    def counted(grant: Grant, path: str, right: Right) -> bool:
        nonlocal looked_at
        looked_at += 1
        return allows(grant, path, right)

    monkeypatch.setattr(Grant, "allows", counted)
    found = Rights(lambda: 0.0)
    for number in range(rights.MAX_GRANTS):
        found.remember(str(number), Grant(audience.format(number), frozenset({Right.SEND}), 1.0))
    assert found.allows("queue-7", Right.SEND)
    assert not found.allows("queue-7", Right.LISTEN)
    assert looked_at == 2


# ---- messages without an outcome ----


async def test_a_receiver_that_settles_nothing_gets_so_many_and_the_rest_when_it_does(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_UNSETTLED", FEW)
    (path,) = await make_queues(namespace, "unsettled", 1)
    deliveries: list[Delivery] = []
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("")
        names = await fill(client, path)
        receiver = await client.receiver(path, deliveries.append)
        receiver.grant(10 * STORED)  # and never again
        await until(lambda: len(deliveries) == FEW)
        await client.put_token(QUEUE)  # what was on its way before the answer has come
        assert (len(deliveries), held(namespace, path)) == (FEW, (STORED, FEW))
        for number in range(STORED):
            await until(lambda awaited=number: len(deliveries) > awaited)  # type: ignore[misc]
            assert len(deliveries) <= number + FEW
            await settle(receiver, deliveries[number])
    assert [one.message_id for one in deliveries] == names
    assert held(namespace, path) == (0, 0)


async def test_many_outcomes_at_once_make_room_for_as_many_messages(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_UNSETTLED", FEW)
    (path,) = await make_queues(namespace, "ranges", 1)
    deliveries: list[Delivery] = []
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("")
        names = await fill(client, path)
        (await client.receiver(path, deliveries.append)).grant(STORED)
        for settled in range(0, STORED, FEW):
            await until(lambda awaited=settled + FEW: len(deliveries) == awaited)  # type: ignore[misc]
            first, last = deliveries[settled].number, deliveries[-1].number
            client._write(frame(0, amqp.Disposition(amqp.ROLE_RECEIVER, first, last, True, amqp.Accepted())))
        await until(lambda: held(namespace, path) == (0, 0))
    assert [one.message_id for one in deliveries] == names


async def test_a_link_that_ends_makes_room_for_the_others(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_UNSETTLED", FEW)
    greedy_path, other_path = await make_queues(namespace, "greedy", 2)
    taken: list[Delivery] = []
    deliveries: list[Delivery] = []
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("")
        await fill(client, greedy_path)
        names = await fill(client, other_path, FEW)
        greedy = await client.receiver(greedy_path, taken.append)
        greedy.grant(STORED)
        await until(lambda: len(taken) == FEW)
        (await client.receiver(other_path, deliveries.append)).grant(FEW)
        await client.put_token(QUEUE)
        assert deliveries == []
        client._write(frame(0, amqp.Detach(greedy.handle, closed=True)))
        await until(lambda: len(deliveries) == FEW)
    assert [one.message_id for one in deliveries] == names
    assert held(namespace, greedy_path) == (STORED, FEW)


async def test_what_needs_no_outcome_comes_also_when_too_many_are_awaited(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_UNSETTLED", FEW)
    held_path, deleted_path = await make_queues(namespace, "outcomes", 2)
    kept: list[Delivery] = []
    deleted: list[Delivery] = []
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("")
        await fill(client, held_path)
        names = await fill(client, deleted_path, FEW)
        (await client.receiver(held_path, kept.append)).grant(STORED)
        await until(lambda: len(kept) == FEW)
        (await client.receiver(deleted_path, deleted.append, deletes=True)).grant(FEW)
        await until(lambda: len(deleted) == FEW)
        peeked = await client.manage(held_path, "peek-message", {"from-sequence-number": 1, "message-count": 1})
        assert len(peeked["messages"]) == 1
    assert [one.message_id for one in deleted] == names
