"""A fault that strikes the receiver of a session as a message is on its way to it."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.raw_client import Delivery, RawClient, encoded_message

from twinbus.broker import Fault, Kind, Namespace, Operation, QueueDescription

RECEIVE = frozenset({Operation.RECEIVE})


@pytest.mark.parametrize("kind", [Kind.DETACH, Kind.CLOSE])
async def test_what_was_on_its_way_is_there_for_the_next_receiver_of_the_session(kind: Kind) -> None:
    broken: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    async with Namespace("contoso") as namespace:
        await namespace.create(QueueDescription("shifts", requires_session=True))
        async with RawClient(namespace.connection_string) as client, RawClient(namespace.connection_string) as other:
            await client.put_token("shifts")
            await other.put_token("shifts")
            (await client.receiver("shifts", lambda delivery: None, session="night")).grant(3)
            fault = namespace.faults.add(Fault(kind, "shifts", RECEIVE, count=1))
            sender = await other.sender("shifts")
            for number in range(3):
                await sender.send(encoded_message(f"{number}", session="night"))
            assert fault.fired == 1
        got: list[Delivery] = []
        async with RawClient(namespace.connection_string) as client:
            await client.put_token("shifts")
            (await client.receiver("shifts", got.append, session="night")).grant(3)
            async with asyncio.timeout(60):
                while len(got) < 3:  # noqa: ASYNC110 - nobody tells us
                    await asyncio.sleep(0.01)
    assert [one.message_id for one in got] == ["0", "1", "2"]
    assert broken == []
