"""A short run of `make fuzz`: whatever a client sends, nothing unforeseen happens and nothing of it stays."""

from __future__ import annotations

import pytest
from tests.broker.fuzz.frames import fuzz_frames
from tests.broker.fuzz.requests import fuzz_requests
from tests.broker.fuzz.watch import Watch

pytestmark = pytest.mark.slow
SEED = 2026


async def test_changed_frames_are_answered_refused_or_ignored() -> None:
    with Watch() as watch:
        done = await fuzz_frames(SEED, 3000, watch)
    assert done.frames > done.changed >= 3000


async def test_changed_frames_over_a_socket_are_answered_refused_or_ignored() -> None:
    with Watch() as watch:
        await fuzz_frames(SEED, 500, watch, over_sockets=True)


async def test_changed_requests_are_answered_and_never_with_an_error_of_the_server() -> None:
    with Watch() as watch:
        statuses = await fuzz_requests(SEED, 1000, watch)
    assert {200, 201, 400, 401, 404} <= set(statuses)
