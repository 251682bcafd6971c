"""`twinbus syphon` whose ledger becomes full, read-only, slow or gone while it drains, in both modes."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.ledger.troubles import Gone, ReadOnly
from tests.syphon.bus import eventually
from tests.syphon.pumping import Pair, bodies, numbered

from twinbus.emulator import DEFAULT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of another process can only be set on Linux"),
]

MESSAGES = 20
PAUSED = "The ledger takes no rows, the syphon waits for it"
LOCK_SECONDS = 5
ROOT = Path(__file__).parents[2]
SECONDS = 60.0
CLOSING = 20.0  # 15 s for what is under way, 5 s for the ledger


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair(DEFAULT, lock_seconds=LOCK_SECONDS) as running:
        await running.create("orders")
        yield running


class Full:
    """The process can make no file larger than nothing, as on a full disk."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "ledger")

    def begin(self, pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def end(self, pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Slow:
    """The store does not answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "ledger"
        self._folder.mkdir()
        self.url = f"slow://{self._folder}"

    def begin(self, pid: int) -> None:
        (self._folder / "hang").touch()

    def end(self, pid: int) -> None:
        (self._folder / "hang").unlink()


class Folder:
    """A folder that is read-only, or gone."""

    def __init__(self, made: ReadOnly | Gone) -> None:
        self._made = made
        self.url = made.url

    def begin(self, pid: int) -> None:
        self._made.begin()

    def end(self, pid: int) -> None:
        self._made.end()


Trouble = Full | Slow | Folder
TROUBLES: dict[str, Callable[[Path], Trouble]] = {
    "full": Full,
    "read-only": lambda folder: Folder(ReadOnly(folder)),
    "slow": Slow,
    "gone": lambda folder: Folder(Gone(folder)),
}


async def start(pair: Pair, ledger: str, mode: str) -> asyncio.subprocess.Process:
    environment = {
        **os.environ,
        "TWINBUS_PRIMARY": pair.primary.connection_string,
        "TWINBUS_SECONDARY": pair.secondary.connection_string,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    arguments = ("--queues", "1", "--lock", str(LOCK_SECONDS), "--ledger", ledger, "--ledger-mode", mode)
    command = (sys.executable, "-m", "tests.cli.slow_store", "syphon", *arguments)
    pipes = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipes, stderr=pipes)


async def read_until_paused(process: asyncio.subprocess.Process) -> str:
    """Read standard error until the syphon says that it waits for its ledger."""
    assert process.stderr is not None
    text = ""
    async with asyncio.timeout(SECONDS):
        while PAUSED not in text:
            line = await process.stderr.readline()
            assert line, text
            text += line.decode()
    return text


@pytest.mark.parametrize("mode", ["required", "best_effort"])
@pytest.mark.parametrize("name", TROUBLES)
async def test_syphon_resumes_after_ledger_trouble_and_loses_nothing(
    pair: Pair, tmp_path: Path, name: str, mode: str
) -> None:
    trouble = TROUBLES[name](tmp_path)
    process = await start(pair, trouble.url, mode)
    log = ""
    try:
        await pair.put(numbered("orders", [0]))
        await eventually(lambda: pair.backlog.activity.completed == 1)
        trouble.begin(process.pid)
        await pair.put(numbered("orders", range(1, MESSAGES)))
        if mode == "required":
            # It gives back what it has received when its time for the ledger is over, and receives nothing more.
            log = await read_until_paused(process)
            await eventually(lambda: pair.backlog.locked == 0)
            assert pair.backlog.activity.completed == 1
        else:
            await eventually(lambda: pair.is_backlog_empty)
        trouble.end(process.pid)
        await eventually(lambda: pair.is_backlog_empty)
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            _, errors = await process.communicate()
    log += errors.decode()
    assert process.returncode == 0, log
    assert "Traceback" not in log
    assert sorted(await pair.arrived("orders")) == sorted(bodies(range(MESSAGES)))


@pytest.mark.parametrize("mode", ["required", "best_effort"])
@pytest.mark.parametrize("name", TROUBLES)
async def test_syphon_stops_in_time_during_ledger_trouble(pair: Pair, tmp_path: Path, name: str, mode: str) -> None:
    trouble = TROUBLES[name](tmp_path)
    process = await start(pair, trouble.url, mode)
    try:
        await pair.put(numbered("orders", [0]))
        await eventually(lambda: pair.backlog.activity.completed == 1)
        trouble.begin(process.pid)
        await pair.put(numbered("orders", range(1, MESSAGES)))
        if mode == "required":
            await read_until_paused(process)
        else:
            await eventually(lambda: pair.queue("orders").activity.received > 1)
        started = time.monotonic()
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            await process.communicate()
    assert time.monotonic() - started < CLOSING
    await pair.drain()
    assert set(await pair.arrived("orders")) == set(bodies(range(MESSAGES)))
