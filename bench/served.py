"""Runs a `twinbus serve` process and measures its start time, CPU and memory (Linux)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

STOP_SECONDS = 120.0
CONTROL_SECONDS = 10.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_of(process: int) -> float:
    """CPU seconds of a process so far, all threads."""
    return time.clock_gettime((~process << 3) | 2)  # the clock id that clock_getcpuclockid(3) returns


class Served:
    """A server process with a TOML configuration and its data in `folder`; can be restarted.

    `source` is the source folder of another version of twinbus.
    """

    def __init__(self, folder: Path, config: str, source: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        settings = folder / "serve.toml"
        settings.write_text(config)
        command = [sys.executable, "-m", "twinbus", "serve", "--json", "--config", str(settings)]
        self._command = [*command, "--data", str(self.data)]
        self._environment = os.environ | ({"PYTHONPATH": str(source)} if source else {})

    def start(self) -> float:
        """Start the server; return the seconds until it was ready."""
        started = time.perf_counter()
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=self._environment)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        namespaces = ready["namespaces"]
        self.connection_strings: dict[str, str] = {
            name: namespace["connection_string"] for name, namespace in namespaces.items()
        }
        self._control: dict[str, str] = ready["control"]
        return time.perf_counter() - started

    def control(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call the control API, for example `namespaces/contoso/faults`."""
        request = urllib.request.Request(
            f"{self._control['url']}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._control['token']}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=CONTROL_SECONDS) as answer:
            return json.load(answer)

    @property
    def connection_string(self) -> str:
        """The connection string of the only namespace."""
        (only,) = self.connection_strings.values()
        return only

    def cpu(self) -> float:
        """CPU seconds so far, all threads."""
        return cpu_of(self.process.pid)

    def memory(self) -> float:
        """Resident megabytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE / 2**20

    def stop(self) -> float:
        """Stop the server; return the seconds until it ended."""
        started = time.perf_counter()
        self.process.terminate()
        self.process.wait(STOP_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return time.perf_counter() - started

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
