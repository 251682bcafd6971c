"""Fixtures of the syphon: a primary and a secondary, generous and strict."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.syphon.pumping import Pair

from twinbus.emulator import AZURE, DEFAULT, Profile

# Throttling has tests of its own; the strict profile keeps its other demands.
STRICT = replace(AZURE, throttle=None)


@pytest.fixture(params=[DEFAULT, STRICT], ids=["default", "azure"])
def profile(request: pytest.FixtureRequest) -> Profile:
    chosen: Profile = request.param
    return chosen


@pytest.fixture
async def pair(profile: Profile) -> AsyncIterator[Pair]:
    """A primary with the queues `orders` and `bills`, and a secondary with a backlog queue."""
    async with Pair(profile) as running:
        await running.create("orders", "bills")
        yield running
