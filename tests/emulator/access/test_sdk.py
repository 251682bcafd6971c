"""Keys, tokens and rights with the unmodified SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient as SyncServiceBusClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from tests.emulator.access.conftest import BODY, EXPIRED_AT, KEYS, OTHER, QUEUE, Records, connect_as
from tests.emulator.wire import async_administration

from twinbus.emulator import Namespace
from twinbus.emulator.auth.security import sign

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

Client = Callable[..., ServiceBusClient]
ROOT = "RootManageSharedAccessKey"


class Credential:
    """A token credential like those of an identity library."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken(self._token, int(time.time()) + 3600)

    async def close(self) -> None:
        """Nothing to close."""

    async def __aenter__(self) -> Credential:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""


class SyncCredential:
    def __init__(self, token: str) -> None:
        self._token = token

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken(self._token, int(time.time()) + 3600)


@pytest_asyncio.fixture(loop_scope="module")
async def client(namespace: Namespace) -> AsyncIterator[Client]:
    """Makes clients: `client(key_name, key)` or `client(credential)`."""
    async with AsyncExitStack() as stack:

        def make(*args: Any) -> ServiceBusClient:
            if len(args) == 2:
                created = ServiceBusClient.from_connection_string(connect_as(namespace, *args), retry_total=0)
            else:
                host = f"127.0.0.1:{namespace.port}"
                created = ServiceBusClient(host, *args, use_tls=False, retry_total=0)
            stack.push_async_exit(created)
            return created

        yield make


async def send(client: ServiceBusClient, queue: str = QUEUE) -> None:
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage(BODY))


async def receive(client: ServiceBusClient, queue: str = QUEUE) -> list[Any]:
    async with client.get_queue_receiver(queue) as receiver:
        received = await receiver.receive_messages(max_wait_time=5)
        for message in received:
            await receiver.complete_message(message)
        return list(received)


async def peek(client: ServiceBusClient, queue: str = QUEUE) -> list[Any]:
    async with client.get_queue_receiver(queue) as receiver:
        return list(await receiver.peek_messages())


async def schedule(client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.schedule_messages(ServiceBusMessage(BODY), datetime.now(UTC) + timedelta(hours=1))


def sas(
    namespace: Namespace, path: str, *, key: str = KEYS.root, name: str = ROOT, expires: float | None = None
) -> Any:
    """A credential that holds a signed token."""
    uri = f"sb://127.0.0.1:{namespace.port}/{path}".rstrip("/")
    return AzureSasCredential(sign(uri, name, key, expires if expires is not None else time.time() + 60))


# ---- access granted ----


@pytest.mark.parametrize("key", [KEYS.root, KEYS.second], ids=["primary", "secondary"])
async def test_both_keys_of_the_root_policy_give_full_access(client: Client, key: str) -> None:
    sdk = client(ROOT, key)
    await send(sdk)
    assert [str(message) for message in await receive(sdk)] == [BODY]


async def test_configured_bearer_token_gives_full_access(client: Client) -> None:
    sdk = client(Credential(KEYS.bearer))
    await send(sdk)
    assert len(await receive(sdk)) == 1


async def test_named_key_and_sas_credentials_work(namespace: Namespace, client: Client) -> None:
    await asyncio.gather(
        send(client(AzureNamedKeyCredential(ROOT, KEYS.root))),
        send(client(sas(namespace, QUEUE))),
        send(client(sas(namespace, ""))),
    )
    reader = client(ROOT, KEYS.root)
    async with reader.get_queue_receiver(QUEUE) as receiver:
        received = 0
        while received < 3:
            for message in await receiver.receive_messages(max_message_count=3, max_wait_time=5):
                await receiver.complete_message(message)
                received += 1


async def test_a_bearer_token_works_with_the_synchronous_client(namespace: Namespace) -> None:
    def exchange() -> list[str]:
        host = f"127.0.0.1:{namespace.port}"
        with SyncServiceBusClient(host, SyncCredential(KEYS.bearer), use_tls=False, retry_total=0) as sync_client:
            with sync_client.get_queue_sender(OTHER) as sender:
                sender.send_messages(ServiceBusMessage(BODY))
            with sync_client.get_queue_receiver(OTHER) as receiver:
                (message,) = receiver.receive_messages(max_wait_time=5)
                receiver.complete_message(message)
                return [str(message)]

    assert await asyncio.to_thread(exchange) == [BODY]


async def test_entity_policy_gives_access_to_that_entity(client: Client) -> None:
    sdk = client("only-orders", KEYS.entity)
    await send(sdk)
    assert len(await receive(sdk)) == 1


# ---- access refused ----


async def refused(work: Any) -> ServiceBusError:
    with pytest.raises(ServiceBusError) as raised:
        await work
    assert not any(secret in str(raised.value) for secret in KEYS.all())
    return raised.value


@pytest.mark.parametrize(
    ("name", "key"),
    [(ROOT, "d3Jvbmc="), ("unknown", KEYS.root), ("sender", KEYS.root), ("only-orders", KEYS.sender)],
    ids=["wrong key", "unknown policy", "key of another policy", "wrong entity key"],
)
async def test_wrong_key_or_policy_is_an_authentication_error(client: Client, name: str, key: str) -> None:
    assert type(await refused(send(client(name, key)))) is ServiceBusAuthenticationError


async def test_expired_or_foreign_tokens_are_authentication_errors(namespace: Namespace, client: Client) -> None:
    errors = await asyncio.gather(
        refused(send(client(sas(namespace, QUEUE, expires=EXPIRED_AT)))),
        refused(send(client(sas(namespace, OTHER)))),
        refused(send(client(sas(namespace, QUEUE[:-1])))),
        refused(send(client(Credential("nonsense")))),
        refused(send(client(Credential(KEYS.bearer_expired)))),
        refused(receive(client(Credential(KEYS.bearer_sender)), OTHER)),
        refused(send(client("only-orders", KEYS.entity), OTHER)),
    )
    assert {type(error) for error in errors} == {ServiceBusAuthenticationError}


async def test_missing_entity_fails_put_token_and_the_sdk_raises_an_authentication_error(
    client: Client,
) -> None:
    assert type(await refused(send(client(ROOT, KEYS.root), "nowhere"))) is ServiceBusAuthenticationError


async def test_missing_right_is_an_authorization_error(client: Client) -> None:
    errors = await asyncio.gather(
        refused(send(client("listener", KEYS.listener))),
        refused(receive(client("sender", KEYS.sender))),
        refused(receive(client(Credential(KEYS.bearer_sender)))),
    )
    assert {type(error) for error in errors} == {ServiceBusAuthorizationError}
    for error, right in zip(errors, ("Send", "Listen", "Listen"), strict=True):
        assert f"Unauthorized access. '{right}' claim(s) are required to perform this operation." in str(error)


async def test_the_granted_right_is_sufficient(client: Client) -> None:
    await asyncio.gather(
        send(client("sender", KEYS.sender)),
        schedule(client("sender", KEYS.sender)),
        send(client(Credential(KEYS.bearer_sender))),
    )
    assert await peek(client("listener", KEYS.listener))
    assert await receive(client("listener", KEYS.listener))


async def test_connection_string_of_a_policy_gives_the_rights_of_the_policy(namespace: Namespace) -> None:
    async with ServiceBusClient.from_connection_string(
        namespace.connection_string_for("sender"), retry_total=0
    ) as sending:
        await send(sending)
        assert type(await refused(receive(sending))) is ServiceBusAuthorizationError


async def test_connection_string_of_an_unknown_policy_is_a_key_error(namespace: Namespace) -> None:
    with pytest.raises(KeyError, match="reader"):
        namespace.connection_string_for("reader")


@pytest.mark.parametrize(
    ("name", "key"), [("sender", KEYS.sender), ("listener", KEYS.listener)], ids=["sender", "listener"]
)
async def test_administration_api_requires_the_manage_right(namespace: Namespace, name: str, key: str) -> None:
    async with async_administration(connect_as(namespace, name, key)) as admin:
        with pytest.raises(ClientAuthenticationError) as raised:
            await admin.get_queue(QUEUE)
        assert "'Manage' claim(s) are required" in str(raised.value)


@pytest.mark.parametrize("key", ["d3Jvbmc=", KEYS.sender], ids=["wrong key", "key of another policy"])
async def test_the_administration_api_refuses_a_wrong_key(namespace: Namespace, key: str) -> None:
    async with async_administration(connect_as(namespace, ROOT, key)) as admin:
        with pytest.raises(ClientAuthenticationError) as raised:
            await admin.create_queue("mine")
        assert "InvalidSignature" in str(raised.value)
    assert namespace.find("mine") is None


async def test_manage_right_on_one_entity_does_not_cover_others(namespace: Namespace) -> None:
    async with async_administration(connect_as(namespace, "only-orders", KEYS.entity)) as admin:
        assert (await admin.get_queue(QUEUE)).name == QUEUE
        for work in (admin.get_queue(OTHER), admin.delete_queue(OTHER), admin.create_queue("mine")):
            with pytest.raises(ClientAuthenticationError):
                await work
    assert namespace.find(OTHER) is not None


# ---- logging ----


async def test_no_key_token_or_body_is_logged(logged: Records, namespace: Namespace) -> None:
    """Last in the module: checks the log of all tests above."""
    text = "\n".join(logged.lines)
    assert "closed" in text or "refused" in text or "listens" in text
    for secret in (*KEYS.all(), BODY, "sig=", "SharedAccessSignature sr"):
        assert secret not in text
    assert repr(namespace.policy(ROOT)).count(KEYS.root) == 0
