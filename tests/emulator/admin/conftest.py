"""Fixtures: an administration API on a loopback port, and the SDK's two administration clients."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AioClient
from azure.servicebus.management import ServiceBusAdministrationClient as SyncClient
from tests.emulator.admin.memory_registry import MemoryRegistry

from twinbus.emulator.admin import AdministrationApi, Registry
from twinbus.emulator.auth.security import AccessPolicy

NOW = 1_800_000_000.25
POLICY = AccessPolicy.generate()


class _PlainSync(RequestsTransport):
    """Uses plain HTTP: the administration client always uses TLS, and the test's API has none."""

    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


class _PlainAio(AioHttpTransport):
    async def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **options)


class _Awaited:
    """The aio client with synchronous calls, so that one test covers both clients."""

    def __init__(self, client: AioClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            result = getattr(self._client, name)(*args, **options)
            return self._runner.run(result if inspect.isawaitable(result) else _collected(result))

        return call


async def _collected(pages: Any) -> list[Any]:
    return [item async for item in pages]


@dataclass
class Served:
    """A running API, its registry and its host."""

    registry: MemoryRegistry
    host: str

    def connection_string(self, name: str = POLICY.name, key: str = POLICY.primary_key) -> str:
        return f"Endpoint=sb://{self.host};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true"

    def sync_client(self, **credentials: str) -> SyncClient:
        return SyncClient.from_connection_string(
            self.connection_string(**credentials), transport=_PlainSync(), retry_total=0
        )


@pytest.fixture
def served() -> Iterator[Served]:
    """An API in a thread with its own event loop, because the sync client blocks the test's."""
    registry = MemoryRegistry(POLICY, clock=lambda: NOW)
    checked: Registry = registry
    api = AdministrationApi(checked, clock=lambda: NOW)
    loop = asyncio.new_event_loop()

    async def listen() -> tuple[asyncio.Server, web.Server[web.BaseRequest]]:
        handler = web.Server(api.handle)
        return await loop.create_server(handler, "127.0.0.1", 0), handler

    async def stop() -> None:
        listener.close()
        # A short timeout: it would wait for idle connections that a client keeps open.
        await handler.shutdown(0.01)
        await listener.wait_closed()

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        listener, handler = asyncio.run_coroutine_threadsafe(listen(), loop).result(60)
        yield Served(registry, f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        asyncio.run_coroutine_threadsafe(stop(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@pytest.fixture(params=["sync", "aio"])
def admin(served: Served, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The SDK's administration client, synchronous and asynchronous."""
    if request.param == "sync":
        with served.sync_client() as client:
            yield client
        return
    with asyncio.Runner() as runner:
        client = AioClient.from_connection_string(served.connection_string(), transport=_PlainAio(), retry_total=0)
        yield _Awaited(client, runner)
        runner.run(client.close())
