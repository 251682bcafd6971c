"""The namespace of a test module, and entities in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from tests.emulator.contract.bus import Bus, EntityUnderTest

OpenEntity = Callable[..., Awaitable[Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bus() -> AsyncIterator[Bus]:
    async with Bus() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def open_entity(bus: Bus, request: pytest.FixtureRequest) -> OpenEntity:
    """Opens an entity of the test class's kind: `await open_entity(max_delivery_count=2)`."""
    kind: type[EntityUnderTest] = request.cls.entity

    async def opened(**options: Any) -> EntityUnderTest:
        return await bus.spare(kind, **options)

    return opened
