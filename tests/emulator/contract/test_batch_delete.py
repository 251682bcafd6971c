"""Deleting messages without receiving them, and the keys that decide where a message is kept.

The Python SDK has no call for the first, so the test sends the request of the other official clients.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from tests.emulator.contract.bus import Bus, QueueUnderTest, SessionQueueUnderTest, receive, texts
from tests.emulator.raw_client import NEXT_SESSION, RawClient, RefusedError

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.types import Int, Symbol, Timestamp

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def delete(bus: Bus, path: str, count: int, *, before: float = 1.0, **options: Any) -> int:
    """How many messages were deleted, of those enqueued until `before` seconds from now."""
    async with RawClient(bus.namespace.connection_string) as client:
        await client.put_token(path)
        until = Timestamp(int((bus.clock() + before) * 1000))
        body = {"message-count": Int(count), "enqueued-time-utc": until, **options}
        answer = await client.manage(path, "batch-delete-messages", body)
        return int(answer["message-count"]) if answer else 0


async def test_the_oldest_messages_are_deleted(bus: Bus) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.put("one", "two", "three")
    assert await delete(bus, entity.path, 2) == 2
    assert entity.queue.counters.active == 1
    assert texts(await entity.receive()) == ["three"]
    assert await delete(bus, entity.path, 10) == 0


async def test_locked_scheduled_and_newer_messages_stay(bus: Bus) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.put("locked", "deferred", "old")
    locked, deferred = await entity.receive(2)
    await entity.receiver.defer_message(deferred)
    await entity.sender.schedule_messages(ServiceBusMessage("later"), bus.clock.in_seconds(3000))
    await bus.advance(10)
    await entity.put("new")
    assert await delete(bus, entity.path, 100, before=-5) == 2
    assert sorted(await entity.peek_texts()) == ["later", "locked", "new"]
    await entity.receiver.complete_message(locked)
    assert texts(await entity.receive()) == ["new"]


async def test_session_holder_deletes_messages_of_its_session(bus: Bus) -> None:
    entity = await bus.spare(SessionQueueUnderTest)
    await entity.put("a1", "a2")
    await entity.put("b1", session_id="b")
    async with RawClient(bus.namespace.connection_string) as client:
        await client.put_token(entity.path)
        receiver = await client.receiver(entity.path, lambda delivery: None, session=NEXT_SESSION)
        assert receiver.session == "b"
        body = {"message-count": Int(9), "enqueued-time-utc": Timestamp(int((bus.clock() + 1) * 1000))}
        answer = await client.manage(entity.path, "batch-delete-messages", {**body, "session-id": "b"}, link=receiver)
        assert answer == {"message-count": 1}
        with pytest.raises(RefusedError, match="session-lock-lost"):
            await client.manage(entity.path, "batch-delete-messages", {**body, "session-id": "a"}, link=receiver)
    assert texts(await entity.receive(2)) == ["a1", "a2"]


@pytest.mark.parametrize(("count", "field"), [(0, "message-count"), (-1, "message-count")])
async def test_a_count_out_of_bounds_is_refused(bus: Bus, count: int, field: str) -> None:
    entity = await QueueUnderTest.create(bus)
    with pytest.raises(RefusedError, match=field):
        await delete(bus, entity.path, count)


async def test_a_partition_key_is_kept(bus: Bus) -> None:
    entity = await bus.spare(QueueUnderTest)
    await entity.put(ServiceBusMessage("kept", partition_key="p", time_to_live=timedelta(hours=1)))
    [message] = await receive(entity.receiver)
    assert message.partition_key == "p"


async def test_a_partition_key_must_be_the_session_id_if_there_is_one(bus: Bus) -> None:
    entity = await QueueUnderTest.create(bus)
    key = sections.entry(Symbol("x-opt-partition-key"), "p")
    fields = [encode("id"), *[encode(None)] * 9, encode("s")]
    payload = sections.map_section(sections.MESSAGE_ANNOTATIONS, [key])
    payload += sections.list_section(sections.PROPERTIES, fields) + b"\x00\x53\x75" + encode(b"x")
    async with RawClient(bus.namespace.connection_string) as client:
        await client.put_token(entity.path)
        sender = await client.sender(entity.path)
        with pytest.raises(RefusedError, match="partition key"):
            await sender.send(payload)
