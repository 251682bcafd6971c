"""Makes tokens from keys, signatures and Azure credentials.

`as_credential` wraps the credentials of `azure.core` and `azure.identity`, sync or async. Keys and tokens never appear
in an error or a log.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import inspect
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus

from twinbus.amqp.client.credentials import Credential, Token
from twinbus.pairing.sdk.tokens import TOKEN_TIMEOUT, AwaitedCredential

SAS_TYPE = "servicebus.windows.net:sastoken"
JWT_TYPE = "jwt"
SCOPE = "https://servicebus.azure.net/.default"
SAS_SECONDS = 3600.0

_EXPIRY = re.compile(r"(?:^|[&?\s])se=(\d{1,12})(?:&|$)")


@dataclass(frozen=True, slots=True)
class SasKey:
    """The key of an access policy. Signs a token per audience, valid for `seconds`."""

    name: str
    key: str = field(repr=False)
    seconds: float = SAS_SECONDS
    clock: Callable[[], float] = field(default=time.time, repr=False)

    def __post_init__(self) -> None:
        if not self.name or not self.key:
            raise ValueError("name and key of a SasKey must not be empty")
        if not 1 <= self.seconds <= 10 * 365 * 86400:
            raise ValueError(f"seconds of a SasKey must be from 1 to ten years, got {self.seconds}")

    async def token(self, audience: str) -> Token:
        resource, expiry = quote_plus(audience), math.ceil(self.clock() + self.seconds)
        digest = hmac.new(self.key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
        signature = quote_plus(base64.b64encode(digest))
        text = f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={quote_plus(self.name)}"
        return Token(text, SAS_TYPE, float(expiry))


class _NamedKey:
    """A named key of `azure.core`, read for each token because it can be replaced."""

    def __init__(self, source: Any) -> None:
        self._source = source

    async def token(self, audience: str) -> Token:
        return await SasKey(*self._source.named_key).token(audience)


class SasToken:
    """A shared access signature. A callable `source` is called for each token, so that it can be replaced."""

    def __init__(self, source: str | Callable[[], str]) -> None:
        self._source = source
        if isinstance(source, str):
            _expiry_of(source)

    def __repr__(self) -> str:
        return "SasToken()"

    async def token(self, audience: str) -> Token:
        text = self._source if isinstance(self._source, str) else self._source()
        return Token(text, SAS_TYPE, _expiry_of(text))


def _expiry_of(signature: str) -> float:
    match = _EXPIRY.search(signature)
    if match is None:
        raise ValueError("a shared access signature needs its expiry, se=SECONDS")
    return float(match[1])


class BearerCredential:
    """A token credential: an object with `get_token(scope)`, sync or async, as in `azure.core`.

    A sync one is called on a thread, because it may block on the network.
    """

    def __init__(self, source: Any, scope: str = SCOPE) -> None:
        self._source = source
        self._scope = scope

    def __repr__(self) -> str:
        return f"BearerCredential({type(self._source).__name__})"

    async def token(self, audience: str) -> Token:
        get_token = self._source.get_token
        if inspect.iscoroutinefunction(get_token):
            access_token = await get_token(self._scope)
        else:
            access_token = await AwaitedCredential(self._source, TOKEN_TIMEOUT).get_token(self._scope)
            if inspect.isawaitable(access_token):
                access_token = await access_token
        return Token(str(access_token.token), JWT_TYPE, float(access_token.expires_on))


def as_credential(credential: Any) -> Credential:
    """Return our own credentials unchanged, and wrap those of `azure.core`: named key, signature, token.

    Raises `TypeError` for anything else.
    """
    if callable(getattr(credential, "token", None)):
        own_credential: Credential = credential
        return own_credential
    if hasattr(credential, "named_key"):
        return _NamedKey(credential)
    if hasattr(credential, "signature"):
        return SasToken(lambda: str(credential.signature))
    if callable(getattr(credential, "get_token", None)):
        return BearerCredential(credential)
    raise TypeError(f"expected a credential with get_token, named_key or signature, got {type(credential).__name__}")
