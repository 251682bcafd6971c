"""Fixtures of the AMQP client: a generous and a strict namespace, and a connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.syphon.bus import connect

from twinbus.emulator import AZURE, DEFAULT, Namespace, Profile, QueueDescription
from twinbus.syphon import Connection

# Throttling has tests of its own; the strict profile keeps its other demands.
STRICT = replace(AZURE, throttle=None)


@pytest.fixture(params=[DEFAULT, STRICT], ids=["default", "azure"])
def profile(request: pytest.FixtureRequest) -> Profile:
    chosen: Profile = request.param
    return chosen


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
