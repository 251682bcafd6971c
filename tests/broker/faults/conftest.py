from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.broker.faults.bench import Bench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_bench() -> AsyncIterator[Bench]:
    async with Bench() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def bench(running_bench: Bench) -> AsyncIterator[Bench]:
    """One bench for a module; no fault outlives its test."""
    yield running_bench
    running_bench.clear()
