"""A short run of `make fuzz`."""

from __future__ import annotations

import pytest
from tests.emulator.fuzz.frames import fuzz_frames
from tests.emulator.fuzz.requests import fuzz_requests
from tests.emulator.fuzz.watch import Watch

pytestmark = pytest.mark.slow
SEED = 2026


async def test_mutated_frames_are_answered_refused_or_ignored() -> None:
    with Watch() as watch:
        done = await fuzz_frames(SEED, 3000, watch)
    assert done.frames > done.changed >= 3000


async def test_mutated_frames_over_a_socket_are_answered_refused_or_ignored() -> None:
    with Watch() as watch:
        await fuzz_frames(SEED, 500, watch, over_sockets=True)


async def test_mutated_requests_never_cause_a_server_error() -> None:
    with Watch() as watch:
        statuses = await fuzz_requests(SEED, 1000, watch)
    assert {200, 201, 400, 401, 404} <= set(statuses)
