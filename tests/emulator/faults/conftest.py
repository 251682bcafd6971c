from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.emulator.faults.bench import Bench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_bench() -> AsyncIterator[Bench]:
    async with Bench() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def bench(running_bench: Bench) -> AsyncIterator[Bench]:
    """The module's bench; faults are cleared after each test."""
    yield running_bench
    running_bench.clear()
