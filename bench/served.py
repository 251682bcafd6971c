"""A `twinbus serve` process to measure: how long it takes to be ready, its CPU and its memory (Linux)."""

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
    return time.clock_gettime((~process << 3) | 2)  # as clock_getcpuclockid(3) numbers the clocks


class Served:
    """Namespaces as a TOML text says, with their data in `folder`; can be stopped and started again.

    `source` is the folder of another twinbus than this one.
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
        """Serve; the seconds until it was ready."""
        started = time.perf_counter()
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=self._environment)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        namespaces = ready["namespaces"]
        self.connection_strings: dict[str, str] = {name: one["connection_string"] for name, one in namespaces.items()}
        self._control: dict[str, str] = ready["control"]
        return time.perf_counter() - started

    def control(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask the control port, for example for `namespaces/contoso/faults`."""
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
        """That of the only namespace."""
        (only,) = self.connection_strings.values()
        return only

    def cpu(self) -> float:
        """CPU seconds so far, all threads."""
        return cpu_of(self.process.pid)

    def memory(self) -> float:
        """Resident megabytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE / 2**20

    def stop(self) -> float:
        """The seconds until it was gone."""
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
