"""Namespaces with backlogs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.pipeline.drain.backlogs import SHORT_LOCK, Backlogs


@pytest.fixture
async def pair() -> AsyncIterator[Backlogs]:
    async with Backlogs() as running:
        yield running


@pytest.fixture
async def short_locks() -> AsyncIterator[Backlogs]:
    async with Backlogs(SHORT_LOCK) as running:
        yield running
