"""Starts and kills processes: namespaces, senders and syphons."""

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
FAKETIME_FOLDER = Path(sys.prefix) / "faketime"


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """Runs in the child: kill it when its parent dies, so that no process is left behind (Linux only)."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ChildProcess:
    """A Python process in its own session, so that Ctrl-C does not reach it directly."""

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
        assert self._process is not None, "call start() first"
        return self._process

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; `None` while the process runs."""
        return self.process.returncode

    async def line(self) -> str:
        """The next line of standard output; "" at the end."""
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode()

    def send_signal(self, number: int) -> None:
        """Send a signal; does nothing if the process has ended."""
        # `Process.send_signal` polls first and so takes the exit code away from asyncio,
        # which then reports 255.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def kill(self) -> int:
        """Kill the process with SIGKILL. Returns 1 if a SIGKILL ended it, else 0."""
        self.send_signal(signal.SIGKILL)
        return int(await self.process.wait() == -signal.SIGKILL)

    async def stop(self) -> None:
        """Terminate the process, and kill it after a timeout."""
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
    """Path of libfaketime: from `TWINBUS_FAKETIME`, the system, or the environment (`make proof` installs it)."""
    if path := os.environ.get("TWINBUS_FAKETIME"):
        return Path(path)
    folders = Path("/usr/lib"), FAKETIME_FOLDER / "usr" / "lib"
    return next((library for folder in folders for library in folder.glob("*/faketime/libfaketime.so.1")), None)


def _faketime_environment(library: Path, clock: Path) -> dict[str, str]:
    """Environment that fakes the time of day only: timers keep running, as when a machine's clock is set."""
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


class NamespaceProcess(ChildProcess):
    """`twinbus serve` with one namespace. It restarts on the same port with the same data."""

    def __init__(self, name: str, folder: Path, settings: str = "", faketime: Path | None = None) -> None:
        self.name = name
        self._clock_file = folder / name / "clock"
        #: Seconds by which its clock is set ahead of the real time.
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
            environment=None if faketime is None else _faketime_environment(faketime, self._clock_file),
        )

    @property
    def connection_string(self) -> str:
        return str(self._ready["namespaces"][self.name]["connection_string"])

    @property
    def folder(self) -> Path:
        """Folder of its database."""
        return self.data / self.name

    async def start(self) -> None:
        """Start the namespace and wait until it accepts connections. Raises `RuntimeError` if it does not start."""
        self._config.parent.mkdir(parents=True, exist_ok=True)
        self.set_clock(self.clock)
        self._config.write_text(f"[namespaces.{self.name}]\nport = {self.port}\n{self._settings}\n")
        await super().start()
        async with asyncio.timeout(START_SECONDS):
            line = await self.line()
        if not line:
            raise RuntimeError(f"namespace {self.name} ended while starting; see its log on standard error")
        self._ready = json.loads(line)
        self.port = int(self._ready["namespaces"][self.name]["port"])
        await self._close_session()
        control = self._ready["control"]
        self._session = aiohttp.ClientSession(
            base_url=control["url"],
            headers={"Authorization": f"Bearer {control['token']}"},
            timeout=aiohttp.ClientTimeout(CONTROL_SECONDS),
        )

    async def control(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call the control API of this namespace; `path` is faults, faults/ID or entities."""
        assert self._session is not None, "call start() first"
        async with self._session.request(method, f"/namespaces/{self.name}/{path}", json=body) as answer:
            answer.raise_for_status()
            return await answer.json()

    def set_clock(self, seconds: int) -> None:
        """Set its clock `seconds` ahead of the real time, if it was started with libfaketime."""
        self.clock = seconds
        self._clock_file.write_text(f"{seconds:+d}\n")

    async def clock_error(self) -> float:
        """Seconds by which its clock is ahead of the real time, accurate to a second or two."""
        assert self._session is not None, "call start() first"
        async with self._session.get("/healthz") as answer:
            return parsedate_to_datetime(answer.headers["Date"]).timestamp() - time.time()

    def fill_disk(self) -> None:
        """Make every write to a file fail, as on a full disk."""
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
