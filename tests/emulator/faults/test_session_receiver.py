"""A fault that strikes a delivery to a session receiver."""

from __future__ import annotations

import asyncio

import pytest
from tests.emulator.raw_client import Delivery, RawClient, encoded_message

from twinbus.emulator import Fault, FaultKind, FaultPoint, Namespace, QueueDescription

RECEIVE = frozenset({FaultPoint.RECEIVE})


@pytest.mark.parametrize("kind", [FaultKind.DETACH, FaultKind.CLOSE])
async def test_delivery_struck_by_a_fault_goes_to_the_next_session_receiver(kind: FaultKind) -> None:
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
        received: list[Delivery] = []
        async with RawClient(namespace.connection_string) as client:
            await client.put_token("shifts")
            (await client.receiver("shifts", received.append, session="night")).grant(3)
            async with asyncio.timeout(60):
                while len(received) < 3:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.01)
    assert [delivery.message_id for delivery in received] == ["0", "1", "2"]
    assert broken == []
