"""What a task is given instead of a key."""

from __future__ import annotations

import pickle
import re
import time
from urllib.parse import unquote_plus

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential

from twinbus.amqp.client.endpoint import Endpoint
from twinbus.spark.draining.task_tokens import SECONDS, HandedTokens, NoTokenError, mint
from twinbus.syphon.credentials import SasKey

KEY = "c2VjcmV0LWtleS1vZi10aGUtbmFtZXNwYWNl"
ENDPOINT = Endpoint("contoso.servicebus.windows.net")


@pytest.mark.parametrize("credential", [SasKey("root", KEY), AzureNamedKeyCredential("root", KEY)])
async def test_a_key_makes_a_token_for_each_entity_that_lives_for_minutes(credential: object) -> None:
    tokens = await mint(ENDPOINT, credential, ["Orders", "bills/2026"])
    texts = [token.text for token in tokens.by_audience.values()]
    resources = [unquote_plus(re.search(r"sr=([^&]+)", text)[1]) for text in texts]  # type: ignore[index]
    assert resources == [f"sb://{ENDPOINT.host}/Orders", f"sb://{ENDPOINT.host}/bills/2026"]
    assert 0 < tokens.expires_at - time.time() <= SECONDS + 1
    assert KEY.encode() not in pickle.dumps(tokens)


async def test_tokens_do_not_show_when_they_are_printed() -> None:
    tokens = await mint(ENDPOINT, SasKey("root", KEY), ["orders"])
    for printed in (repr(tokens), str(HandedTokens(tokens)), repr(list(tokens.by_audience.values()))):
        assert "sig=" not in printed


async def test_the_token_of_a_token_credential_is_passed_on_as_it_is() -> None:
    class Entra:
        def get_token(self, *scopes: str) -> AccessToken:
            return AccessToken("jwt", 2_000_000_000)

    tokens = await mint(ENDPOINT, Entra(), ["orders"])
    assert [token.text for token in tokens.by_audience.values()] == ["jwt"]
    assert tokens.expires_at == 2_000_000_000


async def test_a_task_has_what_it_was_given_however_a_path_is_spelled_and_tells_what_it_lacks() -> None:
    asked = []
    handed = HandedTokens(await mint(ENDPOINT, SasKey("root", KEY), ["orders"]), lambda: asked.append(1))
    assert (await handed.token(ENDPOINT.audience("ORDERS"))).text.startswith("SharedAccessSignature ")
    for _ in range(2):
        with pytest.raises(NoTokenError, match="no token for 'Bills' yet"):
            await handed.token(ENDPOINT.audience("Bills"))
    assert (handed.missing, asked) == ({"Bills"}, [1])
