"""Measures the minimum cost of any server that answers a frame, optionally after a disk sync.

Uses the namespace's event loop and a client that is busy between two frames, as one with the SDK is: waking up on
another core is most of the cost of a small answer.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self, cast

from bench.served import cpu_of

from twinbus.cli.event_loop import run_loop

REQUEST, ANSWER = bytes(60), bytes(30)  # sizes of a settlement and its confirmation
NOTE = bytes(12)
CLIENT_SECONDS = 150e-6


class MinimalServer:
    """A minimal server process and a connection to it; with `syncs` it waits for the disk before each answer."""

    def __init__(self, folder: Path, syncs: bool) -> None:
        command = [sys.executable, "-m", "bench.floor", str(folder / "note"), str(int(syncs))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._socket = socket.create_connection(("127.0.0.1", int(self._process.stdout.readline())))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def cpu_of(self, count: int) -> float:
        """CPU seconds of the server per answer, averaged over `count` answers."""
        before = cpu_of(self._process.pid)
        for _ in range(count):
            self._socket.sendall(REQUEST)
            self._socket.recv(len(ANSWER))
            until = time.perf_counter() + CLIENT_SECONDS
            while time.perf_counter() < until:
                pass
        return (cpu_of(self._process.pid) - before) / count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(30)


class _AnswerProtocol(asyncio.Protocol):
    def __init__(self, note: int | None) -> None:
        self._note = note

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._note is not None:
            os.pwrite(self._note, NOTE, 0)
            os.fdatasync(self._note)
        self._transport.write(ANSWER)


async def _serve(path: str, syncs: bool) -> None:
    note = None
    if syncs:
        note = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(note, bytes(4096), 0)
        os.fsync(note)
    server = await asyncio.get_running_loop().create_server(lambda: _AnswerProtocol(note), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    run_loop(_serve(sys.argv[1], bool(int(sys.argv[2]))))
