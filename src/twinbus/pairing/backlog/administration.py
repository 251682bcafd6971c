"""Connects the SDK's administration client to a namespace."""

from __future__ import annotations

import ssl
import time
from types import TracebackType
from typing import Any

import aiohttp
from azure.core.credentials import AccessToken, AzureSasCredential
from azure.core.pipeline import AsyncPipeline, PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import (
    AsyncHTTPPolicy,
    DistributedTracingPolicy,
    HttpLoggingPolicy,
    NetworkTraceLoggingPolicy,
)
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient

#: The service's longest duration, which means "for ever", and how the SDK rounds it.
FOR_EVER = "P10675199DT2H48M5.4775807S"
_ROUNDED = b"P10675199DT2H48M5.477581S"


class AdministrationTransport(AioHttpTransport):  # type: ignore[misc]  # the SDK finds the name when asked for it
    """Adds to the SDK's transport what its administration client cannot do.

    That client always uses `https://`, while a development namespace speaks plain text; it would send a shared access
    signature as a bearer token; and it rounds durations to microseconds, so that the service's longest one becomes too
    long.
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


class _ForwardingPolicy(AsyncHTTPPolicy[Any, Any]):
    """Replaces the last policies of the SDK's pipeline, and sends with our transport."""

    def __init__(self, transport: AdministrationTransport, options: dict[str, Any]) -> None:
        super().__init__()
        self._pipeline: AsyncPipeline[Any, Any] = AsyncPipeline(
            transport, [NetworkTraceLoggingPolicy(**options), DistributedTracingPolicy(**options), HttpLoggingPolicy()]
        )

    async def send(self, request: PipelineRequest[Any]) -> PipelineResponse[Any, Any]:
        response = await self._pipeline.run(request.http_request, **request.context.options)
        return PipelineResponse(request.http_request, response.http_response, request.context)


class Administration(ServiceBusAdministrationClient):
    """The SDK's administration client with its own transport, which it closes.

    Before 7.15 that client ignores `transport` and `connection_verify`, but every version takes `logging_policy`, the
    last replaceable policy.
    """

    def __init__(self, *args: Any, transport: AdministrationTransport, **options: Any) -> None:
        super().__init__(*args, logging_policy=_ForwardingPolicy(transport, options), **options)
        self._own_transport = transport

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        finally:
            await self._own_transport.close()

    async def close(self) -> None:
        """Close the connections."""
        try:
            await super().close()
        finally:
            await self._own_transport.close()


class NoToken:
    """An empty credential: the transport sends a shared access signature instead."""

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken("", int(time.time()) + 3600)
