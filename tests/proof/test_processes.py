"""How a killed process has ended is known, however often it was killed."""

from __future__ import annotations

import asyncio
import signal

from twinbus.proof.matrix_processes import ChildProcess

TIMES = 40
TURNS = 4


async def test_a_process_that_is_killed_twice_has_been_killed() -> None:
    for number in range(TIMES):
        child = ChildProcess("-c", "import time; print('ready', flush=True); time.sleep(60)")
        await child.start()
        assert await child.line() == "ready\n"
        child.send_signal(signal.SIGKILL)
        for _ in range(number % TURNS):  # it ends some time during these
            await asyncio.sleep(0)
        assert await child.kill() == 1
        assert child.exit_code == -signal.SIGKILL
