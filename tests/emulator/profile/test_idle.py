"""Idle links and connections under the azure profile, with its times shortened."""

from __future__ import annotations

import asyncio
import time

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusConnectionError
from tests.emulator.faults.bench import until
from tests.emulator.frame_peer import Peer, transfer
from tests.emulator.profile.conftest import QUEUE, Serve

from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.frames import EMPTY_FRAME

pytestmark = pytest.mark.slow

IDLE = 1.0  # seconds; long enough for prompt operations on a busy machine


async def test_an_idle_sender_is_detached_and_its_connection_closed_later(serve: Serve) -> None:
    async with Peer(await serve(link_idle=IDLE, connection_idle=IDLE)) as peer:
        await peer.open()
        await peer.begin()
        started = time.monotonic()
        await peer.attach_sender(QUEUE)
        detached = await peer.expect(amqp.Detach)
        assert time.monotonic() - started >= IDLE
        assert (detached.closed, detached.error.condition) == (True, "amqp:link:detach-forced")
        assert detached.error.description == (
            "The link 'sender-0' is force detached. Code: publisher(link0)."
            " Details: AmqpMessagePublisher.IdleTimerExpired: Idle timeout: 00:00:01."
        )
        closed = await peer.expect(amqp.Close)
        assert time.monotonic() - started >= 2 * IDLE
        assert isinstance(closed.error, amqp.Error)
        assert closed.error.condition == "amqp:connection:forced"
        assert closed.error.description == (
            "The connection was inactive for more than the allowed 1000 milliseconds"
            " and is closed by container 'LinkTracker'."
        )


async def test_a_sender_that_sends_is_not_idle(serve: Serve) -> None:
    async with Peer(await serve(link_idle=IDLE)) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(QUEUE)
        started = time.monotonic()
        number = 0
        while time.monotonic() - started < 2 * IDLE:
            peer.write(transfer(number))
            await peer.expect(amqp.Disposition)
            number += 1
            await asyncio.sleep(IDLE / 10)
        detached = await peer.expect(amqp.Detach)
        assert detached.error.condition == "amqp:link:detach-forced"


async def test_receiver_is_idle_only_without_credit(serve: Serve) -> None:
    async with Peer(await serve(link_idle=IDLE)) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_receiver(QUEUE, handle=0)
        peer.send(amqp.Flow(1, 1000, 0, 1000, handle=0, delivery_count=0, link_credit=1))
        # The link with credit outlives two successive links without.
        for handle in (1, 2):
            await peer.attach_receiver(QUEUE, handle=handle)
            detached = await peer.expect(amqp.Detach)
            assert detached.handle == handle
            assert "Code: consumer(link" in detached.error.description
            assert "AmqpMessageConsumer.IdleTimerExpired" in detached.error.description
        await peer.attach_sender(QUEUE, handle=3)
        peer.write(transfer(0, handle=3))
        delivered = await peer.expect(amqp.Transfer)
        assert delivered.handle == 0


async def test_idle_management_link_is_detached_with_its_response_link(serve: Serve) -> None:
    node = f"{QUEUE}/$management"
    async with Peer(await serve(link_idle=IDLE, connection_idle=IDLE)) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender(node, handle=0)
        await peer.attach_receiver(node, handle=1)
        detached = [await peer.expect(amqp.Detach) for _ in range(2)]
        assert {detach.handle for detach in detached} == {0, 1}
        assert "AmqpControlProtocolClient.IdleTimerExpired" in detached[0].error.description
        assert await peer.close_error() == "amqp:connection:forced"


async def test_cbs_link_does_not_keep_a_connection_alive(serve: Serve) -> None:
    async with Peer(await serve(connection_idle=IDLE)) as peer:
        await peer.open()
        await peer.begin()
        await peer.attach_sender("$cbs", handle=0)
        await peer.attach_receiver("$cbs", handle=1)
        assert await peer.close_error() == "amqp:connection:forced"


async def test_empty_frames_keep_a_connection_that_is_otherwise_closed_after_the_idle_timeout(serve: Serve) -> None:
    async with Peer(await serve(idle_timeout=IDLE)) as peer:
        opened = await peer.open()
        assert opened.idle_time_out == 1000
        started = last = time.monotonic()
        while last - started < 2 * IDLE:
            last = time.monotonic()
            peer.write(EMPTY_FRAME)
            await asyncio.sleep(IDLE / 10)
        assert await peer.close_error() == "amqp:connection:forced"
        assert time.monotonic() - last >= IDLE


async def test_namespace_sends_empty_frames_to_a_client_with_an_idle_timeout(serve: Serve) -> None:
    async with Peer(await serve(link_idle=IDLE)) as peer:
        await peer.open(idle_time_out=500)
        assert await peer.header() == EMPTY_FRAME


@pytest.mark.parametrize("gone", ["link", "connection"])
async def test_sdk_sender_fails_once_after_its_link_or_connection_was_idle(serve: Serve, gone: str) -> None:
    # The connection's idle time must be longer than the SDK needs to open a link.
    namespace = await serve(link_idle=IDLE, connection_idle=3.0)
    async with (
        ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        await sender.send_messages(ServiceBusMessage("x"))
        await until(lambda: not (namespace.entity_links() if gone == "link" else namespace.connections))
        with pytest.raises(ServiceBusConnectionError) as raised:
            await sender.send_messages(ServiceBusMessage("x"))
        assert "detach-forced" not in str(raised.value), "the SDK hides the reason"
        await sender.send_messages(ServiceBusMessage("x"))


async def test_sdk_sender_with_retries_survives_an_idle_detach(serve: Serve) -> None:
    namespace = await serve(link_idle=1.0)
    client = ServiceBusClient.from_connection_string(namespace.connection_string, retry_backoff_factor=0.01)
    async with client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        await until(lambda: not namespace.entity_links())
        await sender.send_messages(ServiceBusMessage("x"))
