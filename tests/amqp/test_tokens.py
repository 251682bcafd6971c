"""Tokens on a connection: put before a link attaches, renewed before they expire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from tests.amqp.peer import Listening
from tests.syphon.bus import PATIENCE, Inbox, connect, eventually, message

from twinbus.emulator import AZURE, BearerToken, Namespace, NamespaceConfig, QueueDescription, sign
from twinbus.servicebus.access_rights import Right
from twinbus.syphon import (
    AmqpError,
    AnswerTimeoutError,
    AuthenticationFailedError,
    BearerCredential,
    Connection,
    LinkDetachedError,
    SasKey,
    SasToken,
    Token,
    as_credential,
    from_connection_string,
)

ROOT = "RootManageSharedAccessKey"


def opened(namespace: Namespace, credential: Any, **options: Any) -> Any:
    endpoint, _ = from_connection_string(namespace.connection_string)
    return Connection.open(endpoint, as_credential(credential), **{"timeout": PATIENCE, **options})


def root_key(namespace: Namespace, seconds: float = 3600) -> SasKey:
    return SasKey(ROOT, namespace.policy(ROOT).primary_key, seconds)


@pytest.fixture
async def strict() -> AsyncIterator[Namespace]:
    """A strict namespace that also accepts a bearer token."""
    tokens = (BearerToken("a-jwt", frozenset({Right.SEND, Right.LISTEN})),)
    config = NamespaceConfig("contoso", port=0, bearer_tokens=tokens)
    async with Namespace(config, profile=AZURE) as running:
        for path in ("orders", "invoices"):
            await running.create(QueueDescription(path))
        yield running


# ---- authentication ----


async def test_shared_access_signature_is_accepted(strict: Namespace) -> None:
    endpoint, _ = from_connection_string(strict.connection_string)
    key = strict.policy(ROOT).primary_key
    signature = sign(endpoint.audience("orders"), ROOT, key, time.time() + 600)
    async with opened(strict, SasToken(signature)) as connection:
        sender = await connection.attach_sender("orders")
        await sender.deliver(message(), PATIENCE)


class Bearer:
    """A token credential whose tokens are valid for `seconds`."""

    def __init__(self, text: str = "a-jwt", seconds: float = 3600) -> None:
        self.text = text
        self.seconds = seconds
        self.asked = 0

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked += 1
        # Whole seconds, like real credentials.
        return AccessToken(self.text, int(time.time() + self.seconds))


async def test_token_credential_is_accepted(strict: Namespace) -> None:
    async with opened(strict, Bearer()) as connection:
        sender = await connection.attach_sender("orders")
        await sender.deliver(message(), PATIENCE)
        inbox = Inbox()
        await connection.attach_receiver("orders", inbox, credit=1)
        await inbox.take_one()


async def test_a_wrong_key_is_refused(strict: Namespace) -> None:
    async with opened(strict, SasKey(ROOT, "wrong")) as connection:
        with pytest.raises(AuthenticationFailedError) as caught:
            await connection.attach_sender("orders")
        assert caught.value.status == 401
        assert caught.value.condition == "amqp:unauthorized-access"
        assert connection.error is None


async def test_a_wrong_bearer_token_is_refused(strict: Namespace) -> None:
    async with opened(strict, Bearer("another-jwt")) as connection:
        with pytest.raises(AuthenticationFailedError) as caught:
            await connection.attach_receiver("orders", Inbox())
        assert caught.value.status == 401
        assert "another-jwt" not in str(caught.value)


async def test_token_for_an_unknown_entity_fails_with_its_condition(strict: Namespace) -> None:
    async with opened(strict, root_key(strict)) as connection:
        with pytest.raises(AuthenticationFailedError) as caught:
            await connection.attach_sender("nothing")
        assert (caught.value.status, caught.value.condition) == (404, "amqp:not-found")
        sender = await connection.attach_sender("orders")
        await sender.deliver(message(), PATIENCE)


async def test_token_request_has_type_audience_and_expiry() -> None:
    async with Listening() as listening:

        async def client() -> None:
            async with listening.connect() as connection:
                await connection.attach_sender("contoso/x-servicebus-transfer/0/$DeadLetterQueue")

        asking = asyncio.ensure_future(client())
        peer = await listening.peer()
        _, properties = await peer.take_token()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert properties["operation"] == "put-token"
        assert properties["type"] == "servicebus.windows.net:sastoken"
        assert properties["name"] == f"{listening.endpoint.audience('contoso/x-servicebus-transfer/0')}"
        assert properties["expiration"] > time.time() * 1000


async def test_links_of_one_entity_share_a_token(strict: Namespace) -> None:
    async with opened(strict, root_key(strict)) as connection:
        await asyncio.gather(*(connection.attach_sender("orders") for _ in range(5)))
        await connection.attach_receiver("orders", Inbox())
        await connection.attach_receiver("orders/$DeadLetterQueue", Inbox())
        await connection.management("orders")
        assert connection.tokens_put == 1
        await connection.attach_sender("invoices")
        assert connection.tokens_put == 2


# ---- credentials that fail ----


class Failing:
    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        raise RuntimeError("the secret endpoint is down")


async def test_failing_credential_is_the_cause_of_the_error(strict: Namespace) -> None:
    async with opened(strict, Failing()) as connection:
        with pytest.raises(AuthenticationFailedError, match="the credential gave no token: RuntimeError") as caught:
            await connection.attach_sender("orders")
        assert isinstance(caught.value.__cause__, RuntimeError)


class Hanging:
    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        await asyncio.Event().wait()
        raise AssertionError


async def test_hanging_credential_times_out(strict: Namespace) -> None:
    async with opened(strict, Hanging()) as connection:
        with pytest.raises(AnswerTimeoutError, match="the credential gave no token within"):
            await connection.attach_sender("orders", seconds=0.1)
        assert connection.error is None


async def test_expired_token_is_not_put(strict: Namespace) -> None:
    async with opened(strict, Bearer(seconds=-5)) as connection:
        with pytest.raises(AuthenticationFailedError, match="returned no newer token"):
            await connection.attach_sender("orders")


# ---- renewal ----


async def test_token_is_renewed_before_it_expires_and_links_stay_attached(strict: Namespace) -> None:
    async with opened(strict, root_key(strict, seconds=2)) as connection:
        sender = await connection.attach_sender("orders")
        inbox = Inbox()
        receiver = await connection.attach_receiver("orders", inbox, credit=100)
        first_ends = time.time() + 3.5  # whole seconds, rounded up
        await eventually(lambda: time.time() > first_ends)
        assert connection.tokens_put >= 2
        await sender.deliver(message(), PATIENCE)
        await inbox.take_one()
        assert receiver.error is None


class Counting:
    """A key with tokens valid for `seconds`; raises when `broken`."""

    def __init__(self, key: SasKey) -> None:
        self._key = key
        self.asked: list[str] = []
        self.broken = False

    async def token(self, audience: str) -> Token:
        self.asked.append(audience)
        if self.broken:
            raise RuntimeError("no more")
        return await self._key.token(audience)


async def test_links_end_when_their_token_expires_without_renewal(
    strict: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    credential = Counting(root_key(strict, seconds=2))
    async with opened(strict, credential) as connection:
        ended: asyncio.Future[AmqpError] = asyncio.get_running_loop().create_future()
        await connection.attach_receiver("orders", Inbox(), credit=1, on_end=ended.set_result)
        credential.broken = True
        error = await asyncio.wait_for(ended, PATIENCE)
        assert isinstance(error, LinkDetachedError)
        assert error.condition == "amqp:unauthorized-access"
        assert connection.error is None
        assert "Renewing the token for" in caplog.text


async def test_cached_token_is_requested_again_without_a_warning(
    strict: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials cache a token until shortly before it expires; that is not a failure."""
    key = root_key(strict, seconds=5)
    endpoint, _ = from_connection_string(strict.connection_string)
    kept = [await key.token(endpoint.audience("orders"))]
    source = Replaceable(kept)
    async with opened(strict, source) as connection:
        sender = await connection.attach_sender("orders")
        connection._tokens._start_renewal(next(iter(connection._tokens._audiences.values())))
        await eventually(lambda: source.asked == 2)
        kept[0] = await root_key(strict, seconds=600).token(endpoint.audience("orders"))
        await eventually(lambda: connection.tokens_put == 2)
        await sender.deliver(message(), PATIENCE)
        assert "Renewing the token for" not in caplog.text


class Replaceable:
    def __init__(self, kept: list[Token]) -> None:
        self._kept = kept
        self.asked = 0

    async def token(self, audience: str) -> Token:
        self.asked += 1
        return self._kept[0]


async def test_failed_renewal_is_retried(strict: Namespace) -> None:
    credential = Counting(root_key(strict, seconds=8))
    async with opened(strict, credential) as connection:
        sender = await connection.attach_sender("orders")
        credential.broken = True
        audience = next(iter(connection._tokens._audiences.values()))
        connection._tokens._start_renewal(audience)  # as its timer does
        await eventually(lambda: len(credential.asked) == 2)
        credential.broken = False
        await eventually(lambda: connection.tokens_put == 2)
        await sender.deliver(message(), PATIENCE)


async def test_unused_token_is_not_renewed(strict: Namespace) -> None:
    credential = Counting(root_key(strict, seconds=1))
    async with opened(strict, credential) as connection:
        orders = await connection.attach_sender("orders")
        await connection.attach_sender("invoices")
        await orders.close()
        asked = len(credential.asked)
        await eventually(lambda: len(credential.asked) >= asked + 2)
        assert {audience.rpartition("/")[2] for audience in credential.asked[asked:]} == {"invoices"}
        again = await connection.attach_sender("orders")
        await again.deliver(message(), PATIENCE)


async def test_ended_link_releases_its_token(strict: Namespace) -> None:
    async with opened(strict, root_key(strict)) as connection:
        links = [
            await connection.attach_sender("orders"),
            await connection.attach_receiver("orders", Inbox()),
            await connection.management("orders"),
        ]
        assert len(connection._tokens._audiences) == 1
        for link in links:
            await link.close()
        assert not connection._tokens._audiences
        with pytest.raises(AmqpError):
            await connection.attach_sender("nothing")
        await strict.delete("orders")
        with pytest.raises(AmqpError):
            await connection.management("orders")
        assert not connection._tokens._audiences


async def test_closing_stops_the_renewal() -> None:
    async with Namespace("contoso") as namespace:
        await namespace.create(QueueDescription("orders"))
        before = asyncio.all_tasks()
        credential = BearerCredential(Hanging())
        async with connect(namespace) as connection:
            await connection.attach_sender("orders")
            connection._tokens._credential = credential
            connection._tokens._start_renewal(next(iter(connection._tokens._audiences.values())))
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) > len(before)
        assert not [task for task in asyncio.all_tasks() - before if "_renew" in repr(task)]
