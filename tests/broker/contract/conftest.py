"""The namespace of a test module, and places in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from tests.broker.contract.bus import Bus, Place

OpenPlace = Callable[..., Awaitable[Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bus() -> AsyncIterator[Bus]:
    async with Bus() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def open_place(bus: Bus, request: pytest.FixtureRequest) -> OpenPlace:
    """Opens a place of the kind that the test class is about: `await open_place(max_delivery_count=2)`."""
    kind: type[Place] = request.cls.place

    async def opened(**options: Any) -> Place:
        return await bus.spare(kind, **options)

    return opened
