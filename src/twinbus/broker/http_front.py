"""HTTP on the shared port: hands requests on, and gives nobody more time than a request needs.

Whoever has not shown a token is a newcomer, however many requests it has had answered: it has a place among the
newcomers, and so long for the head of its next request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from aiohttp import hdrs, web

from .newcomers import Newcomers

logger = logging.getLogger("twinbus.broker.http")

# Whoever has shown no token and has not finished the head of a request by then, from the start or from the last
# answer, is cut off. Those with a token are aiohttp's to bound.
REQUEST_HEAD_TIMEOUT = 30.0

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpFront:
    """Makes the protocols of HTTP connections."""

    def __init__(self, handle: Handler, newcomers: Newcomers) -> None:
        self._handle = handle
        self._newcomers = newcomers
        self._server = _Server(self._arrived, access_log=None, logger=cast(Any, _Quiet(logger, {})))
        self._server.lost = self._forget
        self._timers: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._trusted: set[web.RequestHandler] = set()

    def protocol(self) -> asyncio.Protocol:
        """The protocol of one new connection."""
        protocol = self._server()
        self._await_request(protocol)
        return protocol

    def _await_request(self, protocol: web.RequestHandler) -> None:
        """It has shown nothing yet: it is a newcomer, and has so long for the head of a request."""
        self._stop_timer(protocol)
        cut = partial(self._cut, protocol)
        self._timers[protocol] = asyncio.get_running_loop().call_later(REQUEST_HEAD_TIMEOUT, cut)
        self._newcomers.enter(protocol, cut)

    def _cut(self, protocol: web.RequestHandler) -> None:
        transport = protocol.transport
        self._forget(protocol)
        protocol.force_close()
        if transport is not None:
            transport.abort()  # closing would wait for someone who does not read what it was answered

    def _forget(self, protocol: web.RequestHandler) -> None:
        self._stop_timer(protocol)
        self._newcomers.leave(protocol)
        self._trusted.discard(protocol)

    def _stop_timer(self, protocol: web.RequestHandler) -> None:
        timer = self._timers.pop(protocol, None)
        if timer is not None:
            timer.cancel()

    async def _arrived(self, request: web.BaseRequest) -> web.StreamResponse:
        protocol = request.protocol
        if protocol in self._trusted:
            return await self._answer(request)
        self._stop_timer(protocol)
        if hdrs.AUTHORIZATION in request.headers:
            self._newcomers.leave(protocol)  # a token is looked at before anything is waited for
        else:
            self._newcomers.enter(protocol, partial(self._cut, protocol))
        try:
            return await self._answer(request)
        finally:
            if protocol.transport is None:
                self._forget(protocol)  # it went away meanwhile
            elif protocol not in self._trusted:
                self._await_request(protocol)

    def trust(self, request: web.BaseRequest) -> None:
        """The request has a good token: its connection is no newcomer any more."""
        self._trusted.add(request.protocol)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._handle(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:
            logger.exception("a request over HTTP failed")
            return web.Response(status=500, text="the request could not be processed")

    async def close(self, patience: float) -> None:
        """Let requests under way end, for so many seconds, and close every connection."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._server.pre_shutdown()
        await self._server.shutdown(patience)


class _Server(web.Server):
    """Also says when a connection is gone: a place that nobody needs would be kept until its time is up."""

    lost: Callable[[web.RequestHandler], None]

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self.lost(handler)


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """Says that a request could not be read, and not what was in it: that may be a token."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, BaseException):
            self.logger.log(min(level, logging.INFO), "a request over HTTP could not be read: %s", type(error).__name__)
        else:
            self.logger.log(level, msg, *args)
