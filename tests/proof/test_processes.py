"""Tests that the exit code of a killed process is known."""

from __future__ import annotations

import asyncio
import signal

from proof.matrix.namespace_processes import ChildProcess

TIMES = 40
TURNS = 4


async def test_process_killed_twice_reports_the_kill() -> None:
    for number in range(TIMES):
        child = ChildProcess("-c", "import time; print('ready', flush=True); time.sleep(60)")
        await child.start()
        assert await child.line() == "ready\n"
        child.send_signal(signal.SIGKILL)
        for _ in range(number % TURNS):  # the process ends during one of these
            await asyncio.sleep(0)
        assert await child.kill() == 1
        assert child.exit_code == -signal.SIGKILL
