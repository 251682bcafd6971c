"""Credentials and the tokens they make."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential

from twinbus.emulator import sign
from twinbus.syphon import BearerCredential, SasKey, SasToken, Token, as_credential

AUDIENCE = "sb://contoso.servicebus.windows.net/orders"
SIGNATURE = "SharedAccessSignature sr=x&sig=secret%3D&se=2000000000&skn=policy"


async def test_sas_key_signs_tokens_as_the_service_expects() -> None:
    token = await SasKey("policy", "secret", seconds=60, clock=lambda: 1000.5).token(AUDIENCE)
    assert token.text == sign(AUDIENCE, "policy", "secret", 1061)
    assert token.type == "servicebus.windows.net:sastoken"
    assert token.expires_at == 1061


async def test_token_of_a_sas_key_is_valid_for_an_hour() -> None:
    token = await SasKey("policy", "secret").token(AUDIENCE)
    assert token.expires_at == pytest.approx(time.time() + 3600, abs=60)


@pytest.mark.parametrize(("name", "key"), [("", "k"), ("n", "")])
def test_sas_key_without_name_or_key_is_refused(name: str, key: str) -> None:
    with pytest.raises(ValueError, match="name and key of a SasKey must not be empty"):
        SasKey(name, key)


def test_token_lifetime_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="seconds of a SasKey must be from 1 to"):
        SasKey("n", "k", seconds=0)


async def test_shared_access_signature_is_used_unchanged() -> None:
    assert await SasToken(SIGNATURE).token(AUDIENCE) == Token(
        SIGNATURE, "servicebus.windows.net:sastoken", 2_000_000_000.0
    )


def test_signature_without_expiry_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="needs its expiry, se=") as caught:
        SasToken("SharedAccessSignature sr=x&sig=secret")
    assert "secret" not in str(caught.value)


class Bearer:
    """A sync token credential."""

    def __init__(self) -> None:
        self.scopes: list[tuple[str, ...]] = []
        self.thread: int | None = None

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.scopes.append(scopes)
        self.thread = threading.get_ident()
        return AccessToken("bearer-secret", 2_000_000_000)


class AsyncBearer:
    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        await asyncio.sleep(0)
        return AccessToken("bearer-secret", 2_000_000_000)


class WrappedBearer:
    """A credential whose sync `get_token` returns an awaitable."""

    def get_token(self, *scopes: str) -> Any:
        return AsyncBearer().get_token(*scopes)


@pytest.mark.parametrize("source", [Bearer(), AsyncBearer(), WrappedBearer()], ids=lambda one: type(one).__name__)
async def test_sync_and_async_token_credentials_are_called(source: Any) -> None:
    token = await as_credential(source).token(AUDIENCE)
    assert token == Token("bearer-secret", "jwt", 2_000_000_000.0)


async def test_a_sync_credential_does_not_block_the_event_loop() -> None:
    source = Bearer()
    await as_credential(source).token(AUDIENCE)
    assert source.thread != threading.get_ident()
    assert source.scopes == [("https://servicebus.azure.net/.default",)]


async def test_a_named_key_of_the_sdk_is_read_each_time() -> None:
    source = AzureNamedKeyCredential("policy", "old")
    credential = as_credential(source)
    source.update("policy", "new")
    token = await credential.token(AUDIENCE)
    assert token.text == sign(AUDIENCE, "policy", "new", token.expires_at)


async def test_a_signature_of_the_sdk_is_read_each_time() -> None:
    source = AzureSasCredential("SharedAccessSignature sr=x&sig=a&se=1&skn=p")
    credential = as_credential(source)
    source.update(SIGNATURE)
    assert (await credential.token(AUDIENCE)).text == SIGNATURE


def test_own_credentials_are_returned_unchanged() -> None:
    key = SasKey("a", "b")
    assert as_credential(key) is key


@pytest.mark.parametrize("wrong", ["a string", None, object()])
def test_unsupported_credential_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="expected a credential with get_token, named_key or signature"):
        as_credential(wrong)


def test_repr_hides_secrets() -> None:
    shown = [SasKey("policy", "secret"), SasToken(SIGNATURE), BearerCredential(Bearer()), Token("secret", "jwt", 1.0)]
    assert "secret" not in repr(shown)
