"""Tokens that expire while a link is open, with a test clock."""

from __future__ import annotations

import time

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthorizationError, ServiceBusError
from tests.emulator.faults.bench import until
from tests.emulator.profile.conftest import QUEUE, Serve, SettableClock
from tests.emulator.raw_client import Delivery, RawClient, RawLink, RefusedError, encoded_message

from twinbus.emulator import DEFAULT, Namespace, NamespaceConfig, QueueDescription
from twinbus.emulator.auth.security import BearerToken
from twinbus.servicebus.access_rights import ALL_RIGHTS

HOUR = 3600.0  # lifetime of the raw client's tokens
TICK = 0.25  # seconds; a short idle time makes the namespace check its links often


async def detached(link: RawLink) -> RefusedError:
    await until(lambda: link.error is not None)
    assert link.error is not None
    return link.error


async def assert_links_end_with_their_token(client: RawClient, clock: SettableClock) -> None:
    await client.put_token(QUEUE)
    deliveries: list[Delivery] = []
    sender, receiver = await client.sender(QUEUE), await client.receiver(QUEUE, deliveries.append)
    management = await client.sender(f"{QUEUE}/$management")
    await sender.send(encoded_message("m"))
    clock.ahead = HOUR + 1
    for link in (sender, receiver, management):
        error = await detached(link)
        assert error.condition == "amqp:unauthorized-access"
        assert "ExpiredToken" in error.description
    with pytest.raises(RefusedError, match="unauthorized-access"):
        await client.sender(QUEUE)


async def test_a_sender_and_a_receiver_are_detached_when_their_token_expires(serve: Serve) -> None:
    clock = SettableClock()
    namespace = await serve(clock=clock, connection_idle=4 * TICK)
    async with RawClient(namespace.connection_string) as client:
        await assert_links_end_with_their_token(client, clock)


async def test_default_profile_also_detaches_links_when_the_token_expires() -> None:
    clock = SettableClock()
    async with Namespace("contoso", clock=clock) as namespace:
        assert namespace.profile == DEFAULT
        await namespace.create(QueueDescription(QUEUE))
        async with RawClient(namespace.connection_string) as client:
            with pytest.raises(RefusedError, match="unauthorized-access"):
                await client.sender(QUEUE)
            await assert_links_end_with_their_token(client, clock)


async def test_renewed_token_keeps_the_links(serve: Serve) -> None:
    clock = SettableClock()
    namespace = await serve(clock=clock, connection_idle=4 * TICK)
    async with RawClient(namespace.connection_string) as client:
        await client.put_token(QUEUE)
        sender = await client.sender(QUEUE)
        clock.ahead = HOUR - 60
        await client.put_token(QUEUE, expires_at=clock() + HOUR)
        clock.ahead = HOUR + 60
        # Once a link with an expired token is gone, the namespace has checked the other link too.
        async with RawClient(namespace.connection_string) as other:
            await other.put_token(QUEUE, expires_at=clock() + 1)
            expiring = await other.sender(QUEUE)
            clock.ahead += 2
            await detached(expiring)
        assert sender.error is None
        await sender.send(encoded_message("m"))


class Credential:
    """A token credential that always returns the newest token."""

    def __init__(self, token: str) -> None:
        self.token = token

    async def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return AccessToken(self.token, int(time.time()) + 3600)

    async def close(self) -> None:
        """Nothing to close."""

    async def __aenter__(self) -> Credential:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""


async def test_sdk_client_reconnects_with_a_new_token_after_expiry(serve: Serve) -> None:
    clock = SettableClock()
    first = BearerToken("first", ALL_RIGHTS, expires_at=clock() + 60)
    second = BearerToken("second", ALL_RIGHTS)
    config = NamespaceConfig("contoso", port=0, bearer_tokens=(first, second))
    namespace = await serve(config, clock=clock, connection_idle=2.0)
    credential = Credential("first")
    client = ServiceBusClient(f"127.0.0.1:{namespace.port}", credential, use_tls=False, retry_total=0)
    async with client, client.get_queue_receiver(QUEUE) as receiver, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        clock.ahead = 61
        await until(lambda: not namespace.entity_links())
        with pytest.raises(ServiceBusAuthorizationError, match="ExpiredToken"):
            await receiver.receive_messages(max_wait_time=1)
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("x"))
        credential.token = "second"
        await sender.send_messages(ServiceBusMessage("x"))
        assert len(await receiver.receive_messages(max_message_count=2, max_wait_time=5)) >= 1
