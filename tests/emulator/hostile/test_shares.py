"""Limits of one connection: tokens and unsettled deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.emulator.contract.bus import SettableClock
from tests.emulator.faults.bench import PATIENCE, until
from tests.emulator.hostile.conftest import QUEUE
from tests.emulator.raw_client import Delivery, RawClient, RawReceiver, RefusedError, encoded_message

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import frame
from twinbus.emulator import Namespace, QueueDescription
from twinbus.emulator.auth import rights
from twinbus.emulator.auth.rights import Rights
from twinbus.emulator.auth.security import Grant
from twinbus.emulator.protocol import channel
from twinbus.servicebus.access_rights import Right

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
    """Send messages and return their ids."""
    sender = await client.sender(path)
    names = [f"{path}-{number}" for number in range(count)]
    for name in names:
        await sender.send(encoded_message(name))
    return names


async def settle(receiver: RawReceiver, delivery: Delivery) -> None:
    await asyncio.wait_for(receiver.settled(delivery), PATIENCE)


def held(namespace: Namespace, path: str) -> tuple[int, int]:
    """The number of messages in a queue, and how many are locked."""
    entity = namespace.find(path)
    assert entity is not None
    return entity.queue.counters.active, entity.queue.locked


# ---- tokens ----


async def test_token_beyond_the_limit_is_refused_and_the_others_stay_valid(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights, "MAX_GRANTS", FEW)
    *known, beyond = await make_queues(namespace, "tokens", FEW + 1)
    async with RawClient(namespace.connection_string) as client, RawClient(namespace.connection_string) as other:
        for path in known:
            await client.put_token(path)
        for _ in range(2):
            with pytest.raises(RefusedError, match=f"400 A connection can hold tokens for {FEW} audiences"):
                await client.put_token(beyond)
        with pytest.raises(RefusedError, match="unauthorized"):
            await client.sender(beyond)
        await client.put_token(known[0])  # renewing a token takes no new place
        for path in known:
            await (await client.sender(path)).send(MESSAGE)
        await other.put_token(beyond)  # the limit is per connection
        await (await other.sender(beyond)).send(MESSAGE)


async def test_expired_tokens_free_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "MAX_GRANTS", FEW)
    clock = SettableClock()
    async with Namespace("fabrikam", clock=clock) as namespace:
        *known, beyond = await make_queues(namespace, "expiring", FEW + 1)
        async with RawClient(namespace.connection_string) as client:
            for path in known[1:]:
                await client.put_token(path, expires_at=clock() + 60)
            await client.put_token(known[0], expires_at=clock() + 600)
            with pytest.raises(RefusedError, match="audiences"):
                await client.put_token(beyond)
            clock.ahead += 61
            await client.put_token(beyond)
            for path in (known[0], beyond):
                await (await client.sender(path)).send(MESSAGE)
            with pytest.raises(RefusedError, match="unauthorized"):
                await client.sender(known[1])


@pytest.mark.parametrize("audience", ["queue-{}", ""], ids=["one queue each", "whole namespace"])
async def test_checking_a_right_does_not_scan_all_tokens(audience: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0
    allows: Callable[[Grant, str, Right], bool] = Grant.allows

    def counted(grant: Grant, path: str, right: Right) -> bool:
        nonlocal checks
        checks += 1
        return allows(grant, path, right)

    monkeypatch.setattr(Grant, "allows", counted)
    connection_rights = Rights(lambda: 0.0)
    for number in range(rights.MAX_GRANTS):
        connection_rights.remember(str(number), Grant(audience.format(number), frozenset({Right.SEND}), 1.0))
    assert connection_rights.allows("queue-7", Right.SEND)
    assert not connection_rights.allows("queue-7", Right.LISTEN)
    assert checks == 2


# ---- unsettled deliveries ----


async def test_receiver_that_settles_nothing_gets_a_bounded_number_of_messages(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_UNSETTLED", FEW)
    (path,) = await make_queues(namespace, "unsettled", 1)
    deliveries: list[Delivery] = []
    async with RawClient(namespace.connection_string) as client:
        await client.put_token("")
        names = await fill(client, path)
        receiver = await client.receiver(path, deliveries.append)
        receiver.grant(10 * STORED)  # once only
        await until(lambda: len(deliveries) == FEW)
        await client.put_token(QUEUE)  # deliveries in flight arrive before its answer
        assert (len(deliveries), held(namespace, path)) == (FEW, (STORED, FEW))
        for number in range(STORED):
            await until(lambda awaited=number: len(deliveries) > awaited)  # type: ignore[misc]
            assert len(deliveries) <= number + FEW
            await settle(receiver, deliveries[number])
    assert [delivery.message_id for delivery in deliveries] == names
    assert held(namespace, path) == (0, 0)


async def test_range_disposition_frees_places_for_more_deliveries(
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
    assert [delivery.message_id for delivery in deliveries] == names


async def test_detached_link_frees_places_for_other_links(
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
    assert [delivery.message_id for delivery in deliveries] == names
    assert held(namespace, greedy_path) == (STORED, FEW)


async def test_settled_deliveries_arrive_at_the_unsettled_limit(
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
    assert [delivery.message_id for delivery in deleted] == names
