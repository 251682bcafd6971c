"""Connects the real SDK to a namespace, in process or in `twinbus serve`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

START_SECONDS = 60.0


class PlainHttp(RequestsTransport):
    """Patch the administration client to use http instead of https."""

    def send(self, request: Any, **kwargs: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **kwargs)


class AsyncPlainHttp(AioHttpTransport):
    async def send(self, request: Any, **kwargs: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **kwargs)


def administration(connection_string: str) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(connection_string, transport=PlainHttp())


def async_administration(connection_string: str) -> AsyncAdministrationClient:
    return AsyncAdministrationClient.from_connection_string(connection_string, transport=AsyncPlainHttp())


class ServeProcess:
    """A real `twinbus serve --json` process that tests can kill."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "twinbus", "serve", "--json", "--data", str(data), *arguments]
        self.process: subprocess.Popen[str] | None = None
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> ServeProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # printed when ready; empty if the process ended
        assert line, f"twinbus serve ended with {self.process.wait(START_SECONDS)}"
        self.ready = json.loads(line)

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(START_SECONDS)
        self._close_output()

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(START_SECONDS)
        self._close_output()
        return code

    def _close_output(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.stdout.close()

    def connection_string(self, namespace: str) -> str:
        text: str = self.ready["namespaces"][namespace]["connection_string"]
        return text
