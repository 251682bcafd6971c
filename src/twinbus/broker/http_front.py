"""HTTP on the shared port: hands requests on, and gives nobody more time than a request needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web

from .newcomers import Newcomers

logger = logging.getLogger("twinbus.broker.http")

# Whoever has not finished the head of a first request by then is cut off; later requests are aiohttp's to bound.
REQUEST_HEAD_TIMEOUT = 30.0

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpFront:
    """Makes the protocols of HTTP connections."""

    def __init__(self, handle: Handler, newcomers: Newcomers) -> None:
        self._handle = handle
        self._newcomers = newcomers
        self._server = web.Server(self._arrived, access_log=None, logger=cast(Any, _Quiet(logger, {})))
        self._silent: dict[object, asyncio.TimerHandle] = {}

    def protocol(self) -> asyncio.Protocol:
        """The protocol of one new connection."""
        protocol = self._server()
        loop = asyncio.get_running_loop()
        self._silent[protocol] = loop.call_later(REQUEST_HEAD_TIMEOUT, self._give_up, protocol)
        self._newcomers.enter(protocol, lambda: self._give_up(protocol))
        return protocol

    def _give_up(self, protocol: web.RequestHandler) -> None:
        self._admit(protocol)
        protocol.force_close()

    def _admit(self, protocol: object) -> None:
        """It is no longer waited for."""
        self._newcomers.leave(protocol)
        timer = self._silent.pop(protocol, None)
        if timer is not None:
            timer.cancel()

    async def _arrived(self, request: web.BaseRequest) -> web.StreamResponse:
        self._admit(request.protocol)
        try:
            return await self._handle(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:
            logger.exception("a request over HTTP failed")
            return web.Response(status=500, text="the request could not be processed")

    async def close(self, patience: float) -> None:
        """Let requests under way end, for so many seconds, and close every connection."""
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()
        self._server.pre_shutdown()
        await self._server.shutdown(patience)


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """Says that a request could not be read, and not what was in it: that may be a token."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, BaseException):
            self.logger.log(min(level, logging.INFO), "a request over HTTP could not be read: %s", type(error).__name__)
        else:
            self.logger.log(level, msg, *args)
