"""One side of a pairing as the syphon reaches it, and a connection to it that is made anew when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from twinbus.pairing.namespaces import Namespace

from .connection import CLOSE_TIMEOUT, Connection, Opening
from .endpoint import Endpoint, from_connection_string
from .errors import AmqpError
from .pacing import Backoff

logger = logging.getLogger("twinbus.syphon")

CONNECT_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Side:
    """A namespace: where it is, who we are there, and the certificates to trust if not the usual ones."""

    endpoint: Endpoint
    credential: Any = field(repr=False)
    ssl_context: ssl.SSLContext | None = None

    @classmethod
    def from_connection_string(cls, text: str) -> Side:
        """Raises `ValueError` for a connection string that cannot be read."""
        return cls(*from_connection_string(text))

    @classmethod
    def of(cls, namespace: Namespace) -> Side:
        """The side that the SDK's clients of a pairing talk to, with their credential and certificates."""
        return cls(Endpoint.of(namespace), namespace.credential, namespace.tls_context() if namespace.use_tls else None)

    def open(self) -> Opening:
        return Connection.open(self.endpoint, self.credential, timeout=CONNECT_TIMEOUT, ssl_context=self.ssl_context)


class Connector:
    """Keeps a connection for as long as `run` runs. `connection` is None while there is none.

    `on_change` is called, without arguments, whenever a connection was made or lost. Pauses between connections grow
    until one of them was of use: something was done over it, or it lasted longer than any pause. A namespace may let
    us in and then break off whatever we begin.
    """

    def __init__(
        self, name: str, make: Callable[[], Opening], backoff: Backoff, max_failures: int | None = None
    ) -> None:
        self.name = name
        self._make = make
        self._backoff = backoff
        self._max_failures = max_failures
        self._is_up = asyncio.Event()
        self._hurried = asyncio.Event()
        self.on_change: list[Callable[[], None]] = []
        self.connection: Connection | None = None
        #: Why there is no connection.
        self.error: AmqpError | None = None
        #: How often in a row there was no connection, or one that was of no use.
        self.failures = 0
        #: How long the last connection may take to say goodbye.
        self.close_seconds = CLOSE_TIMEOUT

    async def run(self) -> None:
        """Connect, again and again. Raises the last error after so many failures in a row, if they are bounded."""
        try:
            while True:
                try:
                    connection = await self._make()
                except AmqpError as error:
                    # Once for each outage: a lost connection was reported already.
                    level = logging.WARNING if self.error is None else logging.DEBUG
                    logger.log(level, "Connecting to %s failed: %s", self.name, error)
                    self.failures += 1
                    self.error = error
                else:
                    await self._keep(connection)
                if self.error is not None and self.failures == self._max_failures:
                    raise self.error.with_traceback(None)
                await self._pause(self._backoff.next())
        finally:
            self._is_up.clear()

    async def _pause(self, seconds: float) -> None:
        self._hurried.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurried.wait()

    def hurry(self) -> None:
        """Try to connect now, and not when the back-off is over: the other side is known to be back."""
        self._hurried.set()

    async def _keep(self, connection: Connection) -> None:
        time = asyncio.get_running_loop().time
        made_at = time()
        if self.error is not None:
            logger.warning("Connected to %s again", self.name)
        self.connection, self.error = connection, None
        self._is_up.set()
        self._changed()
        try:
            self.error = await connection.wait_lost()
            logger.warning("The connection to %s was lost: %s", self.name, self.error)
        finally:
            self.connection = None
            self._is_up.clear()
            if connection.has_worked or time() - made_at >= self._backoff.most:
                self.failures = 0
                self._backoff.reset()
            else:
                self.failures += 1
            self._changed()
            await connection.close(self.close_seconds)

    def _changed(self) -> None:
        for call in self.on_change:
            call()

    async def connected(self) -> Connection:
        """The connection, as soon as there is one."""
        while self.connection is None:  # it may be gone again before this task runs
            await self._is_up.wait()
        return self.connection
