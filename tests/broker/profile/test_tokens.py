"""Tokens that run out while a link is open. The clock is the test's own."""

from __future__ import annotations

import time

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthorizationError, ServiceBusError
from tests.broker.faults.bench import until
from tests.broker.profile.conftest import QUEUE, Serve, SettableClock
from tests.broker.raw_client import Delivery, RawClient, RawLink, Refused, encoded_message

from twinbus.broker import DEFAULT, Namespace, NamespaceConfig, QueueDescription
from twinbus.broker.security import ALL_RIGHTS, BearerToken

HOUR = 3600.0  # how long the raw client's tokens are good
TICK = 0.25  # seconds: a short idle time lets the namespace look at its links often


async def detached(link: RawLink) -> Refused:
    await until(lambda: link.error is not None)
    assert link.error is not None
    return link.error


async def check_that_links_end_with_their_token(client: RawClient, clock: SettableClock) -> None:
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
    with pytest.raises(Refused, match="unauthorized-access"):
        await client.sender(QUEUE)


async def test_a_sender_and_a_receiver_are_detached_when_their_token_expires(serve: Serve) -> None:
    clock = SettableClock()
    namespace = await serve(clock=clock, connection_idle=4 * TICK)
    async with RawClient(namespace.connection_string) as client:
        await check_that_links_end_with_their_token(client, clock)


async def test_the_default_profile_wants_a_token_too_and_detaches_when_it_expires() -> None:
    clock = SettableClock()
    async with Namespace("contoso", clock=clock) as namespace:
        assert namespace.profile == DEFAULT
        await namespace.create(QueueDescription(QUEUE))
        async with RawClient(namespace.connection_string) as client:
            with pytest.raises(Refused, match="unauthorized-access"):
                await client.sender(QUEUE)
            await check_that_links_end_with_their_token(client, clock)


async def test_a_token_that_is_renewed_in_time_keeps_the_links(serve: Serve) -> None:
    clock = SettableClock()
    namespace = await serve(clock=clock, connection_idle=4 * TICK)
    async with RawClient(namespace.connection_string) as client:
        await client.put_token(QUEUE)
        sender = await client.sender(QUEUE)
        clock.ahead = HOUR - 60
        await client.put_token(QUEUE, expires_at=clock() + HOUR)
        clock.ahead = HOUR + 60
        # The first look after this moment is over when a link that has no token any more is gone.
        async with RawClient(namespace.connection_string) as other:
            await other.put_token(QUEUE, expires_at=clock() + 1)
            expiring = await other.sender(QUEUE)
            clock.ahead += 2
            await detached(expiring)
        assert sender.error is None
        await sender.send(encoded_message("m"))


class Credential:
    """A token credential that always hands out the newest token."""

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


async def test_a_client_of_the_sdk_whose_token_expires_comes_back_with_a_new_one(serve: Serve) -> None:
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
