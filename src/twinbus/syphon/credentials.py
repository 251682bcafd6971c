"""Who we are: where the tokens come from that are shown to a namespace.

A credential is one of ours (`SasKey`, `SasToken`, `BearerCredential`), or one of `azure.core` or `azure.identity`,
sync or async, which `as_credential` wraps. Keys and tokens never show in a message or a log.
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
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote_plus

from twinbus.pairing.sdk.tokens import TOKEN_TIMEOUT, AwaitedCredential

SAS_TYPE = "servicebus.windows.net:sastoken"
JWT_TYPE = "jwt"
SCOPE = "https://servicebus.azure.net/.default"
SAS_SECONDS = 3600.0

_EXPIRY = re.compile(r"(?:^|[&?\s])se=(\d{1,12})(?:&|$)")


class Token(NamedTuple):
    """A token, its type in `$cbs` terms, and when it ends (seconds since the epoch)."""

    text: str
    type: str
    expires_at: float

    def __repr__(self) -> str:
        return f"Token(type={self.type!r}, expires_at={self.expires_at!r})"


class Credential(Protocol):
    """Something that makes tokens."""

    async def token(self, audience: str) -> Token:
        """A token for an audience that is good now."""


@dataclass(frozen=True, slots=True)
class SasKey:
    """The key of an access policy: tokens are signed with it, each for one audience and some time."""

    name: str
    key: str = field(repr=False)
    seconds: float = SAS_SECONDS
    clock: Callable[[], float] = field(default=time.time, repr=False)

    def __post_init__(self) -> None:
        if not self.name or not self.key:
            raise ValueError("name and key of a SasKey must not be empty")
        if not 1 <= self.seconds <= 10 * 365 * 86400:
            raise ValueError(f"seconds of a SasKey must be 1 to ten years, not {self.seconds}")

    async def token(self, audience: str) -> Token:
        resource, expiry = quote_plus(audience), math.ceil(self.clock() + self.seconds)
        digest = hmac.new(self.key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
        signature = quote_plus(base64.b64encode(digest))
        text = f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={quote_plus(self.name)}"
        return Token(text, SAS_TYPE, float(expiry))


class _NamedKey:
    """A named key of `azure.core`; it is read each time, for it can be replaced."""

    def __init__(self, source: Any) -> None:
        self._source = source

    async def token(self, audience: str) -> Token:
        return await SasKey(*self._source.named_key).token(audience)


class SasToken:
    """A ready shared access signature. `source` is asked again each time, so that it can be replaced."""

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
        raise ValueError("a shared access signature must say with se= when it ends")
    return float(match[1])


class BearerCredential:
    """A token credential: an object with `get_token(scope)`, sync or async, as `azure.core` defines it.

    A sync one is called on a thread, because it may wait for the network.
    """

    def __init__(self, source: Any, scope: str = SCOPE) -> None:
        self._source = source
        self._scope = scope

    def __repr__(self) -> str:
        return f"BearerCredential({type(self._source).__name__})"

    async def token(self, audience: str) -> Token:
        get_token = self._source.get_token
        if inspect.iscoroutinefunction(get_token):
            found = await get_token(self._scope)
        else:
            found = await AwaitedCredential(self._source, TOKEN_TIMEOUT).get_token(self._scope)
            if inspect.isawaitable(found):
                found = await found
        return Token(str(found.token), JWT_TYPE, float(found.expires_on))


def as_credential(credential: Any) -> Credential:
    """Ours as it is; a named key, a signature or a token credential of `azure.core` wrapped.

    Raises `TypeError` for anything else.
    """
    if callable(getattr(credential, "token", None)):
        ours: Credential = credential
        return ours
    if hasattr(credential, "named_key"):
        return _NamedKey(credential)
    if hasattr(credential, "signature"):
        return SasToken(lambda: str(credential.signature))
    if callable(getattr(credential, "get_token", None)):
        return BearerCredential(credential)
    raise TypeError(f"{type(credential).__name__} is no credential: it has neither get_token, named_key nor signature")
