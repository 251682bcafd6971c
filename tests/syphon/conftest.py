"""Namespaces for the client, generous and strict."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.syphon.bus import connect
from tests.syphon.pumping import Pair

from twinbus.broker import AZURE, DEFAULT, Namespace, Profile, QueueDescription
from twinbus.syphon import Connection

# Throttling is a test of its own; everything else the strict profile demands stays.
STRICT = replace(AZURE, throttle=None)


@pytest.fixture(params=[DEFAULT, STRICT], ids=["default", "azure"])
def profile(request: pytest.FixtureRequest) -> Profile:
    found: Profile = request.param
    return found


@pytest.fixture
async def namespace(profile: Profile) -> AsyncIterator[Namespace]:
    """A namespace with the queue `orders`."""
    async with Namespace("contoso", profile=profile) as running:
        await running.create(QueueDescription("orders"))
        yield running


@pytest.fixture
async def connection(namespace: Namespace) -> AsyncIterator[Connection]:
    async with connect(namespace) as opened:
        yield opened


@pytest.fixture
async def pair(profile: Profile) -> AsyncIterator[Pair]:
    """A primary with the queues `orders` and `bills`, and a secondary with a backlog queue."""
    async with Pair(profile) as running:
        await running.create("orders", "bills")
        yield running
