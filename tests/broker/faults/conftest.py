from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.broker.faults.bench import Bench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    async with Bench() as running:
        yield running


@pytest.fixture(autouse=True)
def no_fault_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "bench" in request.fixturenames:
        request.getfixturevalue("bench").clear()
