"""Test helper: a real HTTP proxy that opens tunnels on CONNECT, in its own thread."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

WAIT_SECONDS = 60.0

#: A host and a port.
Address = tuple[str, int]


class ConnectProxy:
    """Opens tunnels to the addresses in `routes` only; host names there need not exist elsewhere.

    With a `login` (user, password) it requires authentication. `break_tunnels` cuts all tunnels, and from then on the
    proxy answers every request with a status, or never. `stop` also closes its port. `repair` ends both.
    """

    def __init__(self, routes: dict[Address, Address], login: tuple[str, str] | None = None) -> None:
        self._routes = routes
        self._login = None if login is None else base64.b64encode(":".join(login).encode()).decode()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="connect-proxy", daemon=True)
        self._listening: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0
        #: The address of each opened tunnel.
        self.tunnels: list[Address] = []
        self._refuse_with: int | None = None
        self._hangs = False

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    @property
    def open_tunnels(self) -> int:
        """Number of tunnels whose sockets are still open in this process."""
        return len(self._open)

    def break_tunnels(self, *, refuse_with: int | None = None, hangs: bool = False) -> None:
        self._refuse_with, self._hangs = refuse_with, hangs
        self._run(self._cut())

    def stop(self) -> None:
        self._run(self._stop())

    def repair(self) -> None:
        self.break_tunnels()
        self._run(self._start())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    async def _start(self) -> None:
        if self._listening is None:
            listener = socket.create_server(("127.0.0.1", self.port))
            listener.setblocking(False)
            self.port = listener.getsockname()[1]
            self._listening = asyncio.create_task(self._listen(listener))

    async def _stop(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait((self._listening,))
            self._listening = None
        await self._cut()

    async def _cut(self) -> None:
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, listener: socket.socket) -> None:
        with listener:
            while True:
                accepted, _ = await self._loop.sock_accept(listener)
                task = asyncio.create_task(self._accept(accepted))
                self._open.add(task)
                task.add_done_callback(lambda _, accepted=accepted: accepted.close())
                task.add_done_callback(self._open.discard)

    async def _accept(self, accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, target, _ = head.split("\r\n", 1)[0].split(" ")
        host, _, port = target.rpartition(":")
        address = host.strip("[]"), int(port) if port.isdigit() else 0
        if self._hangs:
            await asyncio.sleep(3600)
        if self._login is not None and f"Proxy-Authorization: Basic {self._login}" not in head:
            return await _answer(writer, 407)
        if self._refuse_with is not None:
            return await _answer(writer, self._refuse_with)
        if method != "CONNECT" or address not in self._routes:
            return await _answer(writer, 403)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._routes[address])
        except OSError:
            return await _answer(writer, 502)
        try:
            await _answer(writer, 200)
            self.tunnels.append(address)
            await _run_until_first_ends(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            far_writer.transport.abort()


async def _answer(writer: asyncio.StreamWriter, status: int) -> None:
    length = "" if status == 200 else "Content-Length: 0\r\n"
    writer.write(f"HTTP/1.1 {status} status {status}\r\n{length}\r\n".encode())
    await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def _run_until_first_ends(*work: Coroutine[Any, Any, None]) -> None:
    """Run the coroutines until one ends, then cancel the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
