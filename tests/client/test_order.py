"""`order="session"`: what was diverted is not overtaken, also after the primary is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from tests.pairing.twins import Twins, eventually

from twinbus import Route, SendAvailabilityOptions, SyphonOptions
from twinbus.aio import PairedServiceBusClient
from twinbus.broker import AZURE, DEFAULT

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(params=[DEFAULT, AZURE], ids=["default", "azure"])
async def twins(request: pytest.FixtureRequest) -> AsyncIterator[Twins]:
    async with Twins.running(request.param) as running:
        await running.queue("orders", requires_session=True)
        yield running


def client(twins: Twins, **changed: Any) -> PairedServiceBusClient:
    given = {"backlog_queue_count": 3, "order": "session", "primary_name": "contoso", **changed}
    return PairedServiceBusClient(*twins.sides(), SendAvailabilityOptions(**given, syphon=SyphonOptions(retry_min=0.1)))


def numbered(number: int, session: str = "a") -> ServiceBusMessage:
    return ServiceBusMessage(str(number), session_id=session)


async def test_a_session_stays_diverted_until_none_of_it_is_left_in_the_backlog(twins: Twins) -> None:
    async with client(twins) as paired, paired.get_queue_sender("orders") as sender:
        paired.fail_over("orders")
        assert (await sender.send_messages(numbered(1))).route is Route.BACKLOG
        paired.fail_back("orders")
        # Directly it would overtake the first one. Another session has nothing to overtake.
        assert (await sender.send_messages(numbered(2))).route is Route.BACKLOG
        assert (await sender.send_messages(numbered(1, "b"))).route is Route.PRIMARY
        assert paired.status().diverted_sessions == 1
        async with client(twins, enable_syphon=True):
            await eventually(lambda: paired.status().diverted_sessions == 0)
        assert (await sender.send_messages(numbered(3))).route is Route.PRIMARY
        async with paired.get_queue_receiver("orders", session_id="a") as receiver:
            received: list[str] = []
            while len(received) < 3:
                received += map(str, await receiver.receive_messages(3, max_wait_time=10))
        assert received == ["1", "2", "3"]


async def test_a_session_keeps_its_order_over_failovers_while_the_syphon_runs(twins: Twins) -> None:
    total = 60
    async with client(twins, enable_syphon=True) as paired, paired.get_queue_sender("orders") as sender:
        routes = set()
        for number in range(total):
            if number % 20 == 5:
                paired.fail_over("orders")
            if number % 20 == 12:
                paired.fail_back("orders")
            routes.add((await sender.send_messages(numbered(number))).route)
            await asyncio.sleep(0.05 if number % 20 == 19 else 0)
        assert Route.BACKLOG in routes
        async with paired.get_queue_receiver("orders", session_id="a") as receiver:
            received: list[int] = []
            while len(received) < total:
                messages = await receiver.receive_messages(total, max_wait_time=10)
                assert messages, f"only {len(received)} have come"
                received += [int(str(message)) for message in messages]
        assert received == list(range(total))
