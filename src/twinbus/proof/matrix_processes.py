"""Processes that can be killed: namespaces, senders and syphons."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp

START_SECONDS = 60.0
STOP_SECONDS = 10.0
CONTROL_SECONDS = 10.0
FAKETIME_HOME = Path(sys.prefix) / "faketime"


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """Runs in the child: whatever becomes of us, no namespace is left behind (Linux only)."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ChildProcess:
    """A Python process in a session of its own, so that Ctrl-C does not reach it before we do."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._arguments = arguments
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._arguments,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negative number of the signal that ended it."""
        return self.process.returncode

    async def line(self) -> str:
        """The next line on its standard output; "" when it has ended."""
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode()

    def send_signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        # Not with the method of the process: that looks first whether it has ended, and takes its exit code away from
        # asyncio, which then says 255.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def kill(self) -> int:
        """As a power cut would: it gets no chance to say goodbye. Returns 1 if it was this that ended it, else 0."""
        self.send_signal(signal.SIGKILL)
        return int(await self.process.wait() == -signal.SIGKILL)

    async def stop(self) -> None:
        """In order if it can, else at once."""
        if self._process is None or self._process.returncode is not None:
            return
        self.send_signal(signal.SIGCONT)
        self.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await self.kill()


def faketime_library() -> Path | None:
    """libfaketime: where TWINBUS_FAKETIME says it is, of the system, or in the virtual environment (`make proof` puts
    it there)."""
    if named := os.environ.get("TWINBUS_FAKETIME"):
        return Path(named)
    homes = Path("/usr/lib"), FAKETIME_HOME / "usr" / "lib"
    return next((found for home in homes for found in home.glob("*/faketime/libfaketime.so.1")), None)


def _faked(library: Path, clock: Path) -> dict[str, str]:
    """Only the time of day is faked: timers run on, as they do when somebody sets the clock of a machine."""
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


class NamespaceProcess(ChildProcess):
    """`twinbus serve` with one namespace. It comes back at the port it had, with what it had stored."""

    def __init__(self, name: str, folder: Path, settings: str = "", faketime: Path | None = None) -> None:
        self.name = name
        self._clock_file = folder / name / "clock"
        #: Seconds by which its clock was set ahead of ours.
        self.clock = 0
        self.data = folder / name / "data"
        self._config = folder / name / "bus.toml"
        self._settings = settings
        self._ready: dict[str, Any] = {}
        self._session: aiohttp.ClientSession | None = None
        self.port = 0
        super().__init__(
            *("-m", "twinbus", "serve", "--json", "--log-level", "error"),
            *("--config", str(self._config), "--data", str(self.data)),
            environment=None if faketime is None else _faked(faketime, self._clock_file),
        )

    @property
    def connection_string(self) -> str:
        return str(self._ready["namespaces"][self.name]["connection_string"])

    @property
    def folder(self) -> Path:
        """Where its database is."""
        return self.data / self.name

    async def start(self) -> None:
        """Returns when it takes connections. Raises `RuntimeError` if it does not start."""
        self._config.parent.mkdir(parents=True, exist_ok=True)
        self.set_clock(self.clock)
        self._config.write_text(f"[namespaces.{self.name}]\nport = {self.port}\n{self._settings}\n")
        await super().start()
        async with asyncio.timeout(START_SECONDS):
            line = await self.line()
        if not line:
            raise RuntimeError(f"{self.name} did not start")
        self._ready = json.loads(line)
        self.port = int(self._ready["namespaces"][self.name]["port"])
        await self._close_session()
        control = self._ready["control"]
        self._session = aiohttp.ClientSession(
            base_url=control["url"],
            headers={"Authorization": f"Bearer {control['token']}"},
            timeout=aiohttp.ClientTimeout(CONTROL_SECONDS),
        )

    async def control(self, method: str, what: str, body: dict[str, Any] | None = None) -> Any:
        """Ask the control port about `what` of this namespace: faults, faults/ID, entities."""
        assert self._session is not None, "it was never started"
        async with self._session.request(method, f"/namespaces/{self.name}/{what}", json=body) as answer:
            answer.raise_for_status()
            return await answer.json()

    def set_clock(self, seconds: int) -> None:
        """Let its clock be so much ahead of ours, if it was started with a clock that can be set."""
        self.clock = seconds
        self._clock_file.write_text(f"{seconds:+d}\n")

    async def clock_error(self) -> float:
        """By how many seconds its clock is ahead of ours, to a second or two."""
        assert self._session is not None, "it was never started"
        async with self._session.get("/healthz") as answer:
            return parsedate_to_datetime(answer.headers["Date"]).timestamp() - time.time()

    def fill_disk(self) -> None:
        """Let every write to a file fail, as on a disk that is full."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def free_disk(self) -> None:
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    async def stop(self) -> None:
        await self._close_session()
        await super().stop()

    async def _close_session(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
