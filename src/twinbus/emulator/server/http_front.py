"""Serves HTTP on the shared port, with a time limit for clients that have shown no token.

Without a good token a connection counts as unauthenticated, however many of its requests were answered, and each
request head must arrive within `REQUEST_HEAD_TIMEOUT`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from aiohttp import hdrs, web

from .unauthenticated import UnauthenticatedConnections

logger = logging.getLogger("twinbus.emulator.http")

# Seconds from the start, or from the last answer, to the end of the next request head, for clients without a good
# token. aiohttp bounds the others.
REQUEST_HEAD_TIMEOUT = 30.0

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpFront:
    """Creates the asyncio protocol of each HTTP connection."""

    def __init__(self, handle: Handler, unauthenticated: UnauthenticatedConnections) -> None:
        self._handle = handle
        self._unauthenticated = unauthenticated
        self._server = _Server(self._handle_request, access_log=None, logger=cast(Any, _RedactingLogger(logger, {})))
        self._server.on_lost = self._forget
        self._timers: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._trusted: set[web.RequestHandler] = set()

    def protocol(self) -> asyncio.Protocol:
        """A protocol for one new connection."""
        protocol = self._server()
        self._await_request(protocol)
        return protocol

    def _await_request(self, protocol: web.RequestHandler) -> None:
        """Count the connection as unauthenticated and start the timer for its next request head."""
        self._stop_timer(protocol)
        cut = partial(self._cut, protocol)
        self._timers[protocol] = asyncio.get_running_loop().call_later(REQUEST_HEAD_TIMEOUT, cut)
        self._unauthenticated.add(protocol, cut)

    def _cut(self, protocol: web.RequestHandler) -> None:
        transport = protocol.transport
        self._forget(protocol)
        protocol.force_close()
        if transport is not None:
            transport.abort()  # closing would wait for a client that does not read its answer

    def _forget(self, protocol: web.RequestHandler) -> None:
        self._stop_timer(protocol)
        self._unauthenticated.remove(protocol)
        self._trusted.discard(protocol)

    def _stop_timer(self, protocol: web.RequestHandler) -> None:
        timer = self._timers.pop(protocol, None)
        if timer is not None:
            timer.cancel()

    async def _handle_request(self, request: web.BaseRequest) -> web.StreamResponse:
        protocol = request.protocol
        if protocol in self._trusted:
            return await self._answer(request)
        self._stop_timer(protocol)
        if hdrs.AUTHORIZATION in request.headers:
            self._unauthenticated.remove(protocol)  # the token is checked before anything else is awaited
        else:
            self._unauthenticated.add(protocol, partial(self._cut, protocol))
        try:
            return await self._answer(request)
        finally:
            if protocol.transport is None:
                self._forget(protocol)  # the client has disconnected
            elif protocol not in self._trusted:
                self._await_request(protocol)

    def trust(self, request: web.BaseRequest) -> None:
        """Mark the connection of a request with a good token as authenticated."""
        self._trusted.add(request.protocol)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._handle(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:
            logger.exception("answering an HTTP request failed")
            return web.Response(status=500, text="the request could not be processed")

    async def close(self, seconds: float) -> None:
        """Wait up to `seconds` for running requests, then close every connection."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._server.pre_shutdown()
        await self._server.shutdown(seconds)


class _Server(web.Server):
    """Also reports lost connections, so that their timers and places are freed at once."""

    on_lost: Callable[[web.RequestHandler], None]

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self.on_lost(handler)


class _RedactingLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs the type of a read error only: its text may quote the request, and so a token."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, BaseException):
            self.logger.log(min(level, logging.INFO), "reading an HTTP request failed: %s", type(error).__name__)
        else:
            self.logger.log(level, msg, *args)
