from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest_asyncio

from twinbus.emulator import AZURE, Namespace, NamespaceConfig, QueueDescription

QUEUE = "orders"
Serve = Callable[..., Awaitable[Namespace]]


class SettableClock:
    """The real time plus `ahead` seconds."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a namespace with the azure profile and a queue; `serve(link_idle=0.5)` changes the profile."""
    async with AsyncExitStack() as stack:

        async def started(
            config: NamespaceConfig | str = "contoso", clock: Callable[[], float] = time.time, **changes: Any
        ) -> Namespace:
            namespace = Namespace(config, profile=replace(AZURE, **changes), clock=clock)
            await stack.enter_async_context(namespace)
            await namespace.create(QueueDescription(QUEUE))
            return namespace

        yield started
