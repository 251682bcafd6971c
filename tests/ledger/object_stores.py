"""Runs object store servers on this machine: moto for S3, Azurite for Azure Blob Storage."""

from __future__ import annotations

import base64
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from scripts.node import node_and_npm

START_SECONDS = 60.0
STOP_SECONDS = 20.0

# Runs in its own process because moto patches libraries on import. Ends when its standard input closes.
_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
server.start()
print("listens on http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""
_LISTENS = re.compile(rb"listens? on (http://[0-9.]+:[0-9]+)")


@dataclass(frozen=True, slots=True)
class ObjectStoreServer:
    """A running server with an empty bucket or container."""

    #: Without a trailing slash.
    url: str
    #: Storage options for fsspec.
    options: dict[str, Any]
    #: Must not appear in any output.
    secret: str


@contextmanager
def s3_server() -> Iterator[ObjectStoreServer]:
    """Run S3 with the bucket `twinbus`."""
    with _running([sys.executable, "-c", _MOTO], dict(os.environ)) as endpoint:
        secret = os.urandom(12).hex()
        options = {
            "key": "tester",
            "secret": secret,
            "endpoint_url": endpoint,
            "client_kwargs": {"region_name": "eu-central-1"},
        }
        fsspec.filesystem("s3", **options).mkdir("twinbus")
        yield ObjectStoreServer("s3://twinbus", options, secret)


@contextmanager
def azure_server(node_modules: Path) -> Iterator[ObjectStoreServer]:
    """Run Azure Blob Storage with the container `twinbus`."""
    node, _ = node_and_npm()
    key = base64.b64encode(os.urandom(32)).decode()
    script = node_modules / "azurite" / "dist" / "src" / "blob" / "main.js"
    arguments = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--disableTelemetry"]
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"contoso:{key}"}
    # The client may use a later API version than the server supports.
    command = [node, str(script), *arguments, "--skipApiVersionCheck"]
    with _running(command, environment) as endpoint:
        text = f"DefaultEndpointsProtocol=http;AccountName=contoso;AccountKey={key};BlobEndpoint={endpoint}/contoso;"
        options = {"connection_string": text}
        fsspec.filesystem("abfs", **options).mkdir("twinbus")
        yield ObjectStoreServer("abfss://twinbus@contoso.dfs.core.windows.net", options, key)


@contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[str]:
    """Run a server; yield the endpoint that it prints."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        yield _endpoint(process)
    finally:
        process.kill()  # all data is in memory, and Azurite would wait for open connections
        process.wait(STOP_SECONDS)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _endpoint(process: subprocess.Popen[bytes]) -> str:
    """Return the endpoint that the server prints."""
    assert process.stdout is not None
    deadline = time.monotonic() + START_SECONDS
    output = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (match := _LISTENS.search(output)) is None:
            assert selector.select(max(0.0, deadline - time.monotonic())), f"the server did not start: {output!r}"
            chunk = os.read(process.stdout.fileno(), 4096)
            assert chunk, f"the server has ended: {output!r}"
            output += chunk
    return match[1].decode()
