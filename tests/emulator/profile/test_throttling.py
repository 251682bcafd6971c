"""Throttling: N messages a second, then server-busy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusServerBusyError
from hypothesis import given
from hypothesis import strategies as st
from tests.emulator.profile.conftest import QUEUE, Serve

from twinbus.emulator import Namespace
from twinbus.emulator.faults.throttle import Throttle


async def serve_without_refill(serve: Serve, rate: int) -> Namespace:
    """A namespace with a full bucket that never refills."""
    namespace = await serve(throttle=rate)
    namespace.throttle = Throttle(namespace.name, rate, lambda: 0.0)
    return namespace


def messages(count: int) -> list[ServiceBusMessage]:
    return [ServiceBusMessage("x") for _ in range(count)]


async def test_messages_above_the_rate_are_refused_with_50009(serve: Serve) -> None:
    namespace = await serve_without_refill(serve, 3)
    async with (
        ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        # A batch counts as its messages.
        await sender.send_messages(messages(2))
        with pytest.raises(ServiceBusServerBusyError, match=r"contoso is being throttled\. Error code : 50009"):
            await sender.send_messages(messages(2))
        await sender.send_messages(messages(1))
    entity = namespace.find(QUEUE)
    assert entity is not None
    assert entity.queue.activity.received == 3


async def test_scheduled_messages_count_towards_the_rate(serve: Serve) -> None:
    namespace = await serve_without_refill(serve, 3)
    due = datetime.now(UTC) + timedelta(hours=1)
    async with (
        ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        await sender.schedule_messages(messages(2), due)
        with pytest.raises(ServiceBusServerBusyError, match="50009"):
            await sender.schedule_messages(messages(2), due)
        await sender.schedule_messages(messages(1), due)
    entity = namespace.find(QUEUE)
    assert entity is not None
    assert entity.queue.counters.scheduled == 3


async def test_management_request_without_messages_counts_as_one(serve: Serve) -> None:
    namespace = await serve_without_refill(serve, 5)
    due = datetime.now(UTC) + timedelta(hours=1)
    async with (
        ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        numbers = await sender.schedule_messages(messages(4), due)
        await sender.cancel_scheduled_messages(numbers[:3])
        with pytest.raises(ServiceBusServerBusyError, match="50009"):
            await sender.cancel_scheduled_messages(numbers[3:])
    entity = namespace.find(QUEUE)
    assert entity is not None
    assert entity.queue.counters.scheduled == 1


async def test_client_that_waits_after_server_busy_succeeds(serve: Serve) -> None:
    namespace = await serve(throttle=10)
    client = ServiceBusClient.from_connection_string(namespace.connection_string, retry_backoff_factor=0.3)
    async with client, client.get_queue_sender(QUEUE) as sender:
        for _ in range(2):
            await sender.send_messages(messages(10))


def test_no_rate_admits_everything() -> None:
    throttle = Throttle("contoso", None, lambda: 0.0)
    assert all(throttle.admits(1000) for _ in range(100))


def test_batch_larger_than_the_bucket_passes_when_the_bucket_is_full() -> None:
    now = 0.0
    throttle = Throttle("contoso", 10, lambda: now)
    assert throttle.admits(25)
    assert not throttle.admits(1)
    now = 1.5  # the bucket is still in debt for the batch
    assert not throttle.admits(1)
    now = 1.7
    assert throttle.admits(1)


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 20)), max_size=60), st.integers(1, 50))
def test_admitted_messages_never_exceed_the_rate_plus_one_second(steps: list[tuple[float, int]], rate: int) -> None:
    now = 0.0
    throttle = Throttle("contoso", rate, lambda: now)
    admitted = largest = 0
    for pause, count in steps:
        now += pause
        if throttle.admits(count):
            admitted, largest = admitted + count, max(largest, count)
    assert admitted <= rate * (now + 1) + largest + 1e-6
