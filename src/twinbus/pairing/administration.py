"""How requests of the SDK's administration client reach a namespace."""

from __future__ import annotations

import ssl
import time
from typing import Any

import aiohttp
from azure.core.credentials import AccessToken, AzureSasCredential
from azure.core.pipeline.transport import AioHttpTransport

#: The service's longest duration, which stands for "for ever", and what the SDK makes of it.
FOR_EVER = "P10675199DT2H48M5.4775807S"
_ROUNDED = b"P10675199DT2H48M5.477581S"


class AdministrationTransport(AioHttpTransport):  # type: ignore[misc]  # the SDK finds the name when asked for it
    """Adds to the SDK's own transport what its administration client cannot do.

    That client always says `https://`, while a development namespace is spoken to in plain text; it would pass a
    shared access signature off as a bearer token; and it rounds durations to microseconds, which makes the service's
    longest one too long.
    """

    def __init__(self, tls: ssl.SSLContext, use_tls: bool, signature: AzureSasCredential | None) -> None:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=True,
        )
        super().__init__(session=session)
        self._use_tls = use_tls
        self._signature = signature

    async def send(self, request: Any, **options: Any) -> Any:
        if not self._use_tls:
            request.url = request.url.replace("https://", "http://", 1)
        if self._signature is not None:
            request.headers["Authorization"] = self._signature.signature
        if isinstance(request.data, bytes) and _ROUNDED in request.data:
            request.set_bytes_body(request.data.replace(_ROUNDED, FOR_EVER.encode()))
        return await super().send(request, **options)


class NoToken:
    """Stands for the credential where the transport shows a shared access signature instead."""

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken("", int(time.time()) + 3600)
