"""Keeps a connection to each namespace of a pairing, and reconnects with back-off."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from twinbus.amqp.client.connection import CLOSE_TIMEOUT, Connection, Opening
from twinbus.amqp.client.credentials import Credential
from twinbus.amqp.client.endpoint import Endpoint
from twinbus.amqp.client.errors import AmqpError
from twinbus.pairing.namespace import Namespace
from twinbus.servicebus.connection_strings import ConnectionString

from .credentials import SasKey, SasToken, as_credential
from .pacing import Backoff

logger = logging.getLogger("twinbus.syphon")

CONNECT_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Side:
    """How the syphon reaches one namespace: endpoint, credential, and TLS context if not the default."""

    endpoint: Endpoint
    credential: Any = field(repr=False)
    ssl_context: ssl.SSLContext | None = None

    @classmethod
    def from_connection_string(cls, text: str) -> Side:
        """Raises `ValueError` for an invalid connection string."""
        return cls(*from_connection_string(text))

    @classmethod
    def of(cls, namespace: Namespace) -> Side:
        """The same namespace, credential and certificates that the SDK's clients of a pairing use."""
        return cls(endpoint_of(namespace), namespace.credential, namespace.tls_context() if namespace.use_tls else None)

    def open(self) -> Opening:
        """Open a connection. Raises `TypeError` for an unsupported credential."""
        credential = as_credential(self.credential)
        return Connection.open(self.endpoint, credential, timeout=CONNECT_TIMEOUT, ssl_context=self.ssl_context)


class Connector:
    """Keeps one connection open while `run` runs. `connection` is None while there is none.

    The callbacks in `on_change` run whenever a connection was made or lost. The back-off resets only after a useful
    connection: one that did some work or outlasted the longest pause. A namespace may accept connections and then cut
    them as soon as something is sent.
    """

    def __init__(
        self, name: str, make: Callable[[], Opening], backoff: Backoff, max_failures: int | None = None
    ) -> None:
        self.name = name
        self._make = make
        self._backoff = backoff
        self._max_failures = max_failures
        self._is_up = asyncio.Event()
        self._retry_requested = asyncio.Event()
        self.on_change: list[Callable[[], None]] = []
        self.connection: Connection | None = None
        #: Why there is no connection.
        self.error: AmqpError | None = None
        #: How many attempts in a row gave no useful connection.
        self.failures = 0
        #: Seconds that closing the connection may take.
        self.close_seconds = CLOSE_TIMEOUT

    async def run(self) -> None:
        """Connect and reconnect. Raises the last error after `max_failures` failures in a row."""
        try:
            while True:
                try:
                    connection = await self._make()
                except AmqpError as error:
                    # Warn once per outage: a lost connection was logged already.
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
        self._retry_requested.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._retry_requested.wait()

    def retry_now(self) -> None:
        """Connect now instead of after the back-off: the namespace is known to be back."""
        self._retry_requested.set()

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
            if connection.has_worked or time() - made_at >= self._backoff.longest:
                self.failures = 0
                self._backoff.reset()
            else:
                self.failures += 1
            self._changed()
            await connection.close(self.close_seconds)

    def _changed(self) -> None:
        for callback in self.on_change:
            callback()

    async def connected(self) -> Connection:
        """Wait for a connection and return it."""
        while self.connection is None:  # it may be lost again before this task runs
            await self._is_up.wait()
        return self.connection


def endpoint_of(namespace: Namespace) -> Endpoint:
    """The endpoint that the SDK's clients of a namespace use. Raises `ValueError`."""
    namespace.check_proxy()
    parsed = Endpoint.parse(namespace.fully_qualified_namespace, tls=namespace.use_tls)
    return replace(parsed, websocket=namespace.uses_websocket, proxy=namespace.proxy)


def from_connection_string(text: str) -> tuple[Endpoint, Credential]:
    """The endpoint and the credential of a connection string.

    Raises:
        ValueError: a part is missing or malformed. The message never holds a key or a token.
    """
    parts = ConnectionString.parse(text)
    endpoint = Endpoint(parts.host.strip("[]").lower(), parts.port, tls=parts.use_tls)
    if parts.signature:
        return endpoint, SasToken(parts.signature)
    return endpoint, SasKey(parts.key_name, parts.key)
