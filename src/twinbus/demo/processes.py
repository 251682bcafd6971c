"""Runs each namespace in its own process, so that one can be killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp

START_SECONDS = 60.0
STOP_SECONDS = 10.0


class NamespaceProcess:
    """`twinbus serve` with one namespace. It restarts on the same port, with the same data."""

    def __init__(self, name: str, folder: Path, entities: str = "") -> None:
        self.name = name
        self._folder = folder / name
        self._entities = entities
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._ready: dict[str, Any] = {}

    @property
    def connection_string(self) -> str:
        return str(self._ready["namespaces"][self.name]["connection_string"])

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        """Start the process; return when it accepts connections. Raises `RuntimeError` if it does not start."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "bus.toml"
        config.write_text(f"[namespaces.{self.name}]\nport = {self._port}\n{self._entities}")
        command = [sys.executable, "-m", "twinbus", "serve", "--json", "--log-level", "error"]
        # A new session, so that Ctrl-C reaches only the demo, which then stops the process cleanly.
        self._process = await asyncio.create_subprocess_exec(
            *command,
            *("--config", str(config), "--data", str(self._folder / "data")),
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} did not start")
        self._ready = json.loads(line)
        self._port = int(self._ready["namespaces"][self.name]["port"])

    async def kill(self) -> None:
        """Kill the process with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def blackhole(self) -> None:
        """Make it accept everything and never answer."""
        await self._control("POST", {"kind": "blackhole"})

    async def clear_faults(self) -> None:
        await self._control("DELETE", None)

    async def _control(self, method: str, body: dict[str, Any] | None) -> None:
        control = self._ready["control"]
        url = f"{control['url']}/namespaces/{self.name}/faults"
        headers = {"Authorization": f"Bearer {control['token']}"}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(STOP_SECONDS)) as session,
            session.request(method, url, json=body, headers=headers) as response,
        ):
            response.raise_for_status()

    async def stop(self) -> None:
        """Terminate the process; kill it after `STOP_SECONDS`."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
