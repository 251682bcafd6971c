"""`$cbs`: tokens are shown before a link is attached, and again before they end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from twinbus.amqp.types import Timestamp

from .credentials import Credential, Token
from .deadlines import Deadline, within
from .errors import AmqpError, AuthenticationFailed, LinkDetached
from .requests import RequestLinks

if TYPE_CHECKING:
    from .links import Link
    from .session import Session

logger = logging.getLogger("twinbus.syphon.cbs")

NODE = "$cbs"
# A token is renewed when this part of its life is left, and then again and again until it is over.
RENEW_AT = 0.1
RETRY_AT_LEAST = 1.0
_CONDITIONS = {401: "amqp:unauthorized-access", 403: "amqp:unauthorized-access", 404: "amqp:not-found"}


class StaleToken(AuthenticationFailed):
    """The credential gave a token that is no better than the last; it may keep one until shortly before its end."""


class Audience:
    """Something that a token is for, and the links that live by it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self.links: set[Link] = set()
        self.users = 0
        self.expires_at = 0.0
        self.timer: asyncio.TimerHandle | None = None


class TokenKeeper:
    """Shows tokens on one connection, and renews those that are still in use."""

    def __init__(
        self,
        credential: Credential,
        session: Callable[[int, float], Awaitable[Session]],
        seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`session` finds a session with room for some links; a renewal may take so many `seconds`."""
        self._credential = credential
        self._session = session
        self._seconds = seconds
        self._clock = clock
        self._audiences: dict[str, Audience] = {}
        self._links: RequestLinks | None = None
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        #: Tokens shown so far.
        self.shown = 0

    async def enter(self, name: str, seconds: float) -> Audience:
        """See to it that a token for the audience is good; `leave` ends the interest in it.

        Raises `AuthenticationFailed` with the peer's answer, `TimedOut` or `ConnectionLost`.
        """
        audience = self._audiences.setdefault(name, Audience(name))
        audience.users += 1
        deadline = Deadline(seconds)
        try:
            async with within(seconds, f"nobody got a token for '{name}'"):
                await audience.lock.acquire()
            try:
                if audience.expires_at <= self._clock():
                    await self._show(audience, deadline)
            finally:
                audience.lock.release()
        except BaseException:
            self.leave(audience)
            raise
        return audience

    def leave(self, audience: Audience, *links: Link) -> None:
        """Links are gone. A token that no link needs is not renewed any more."""
        audience.links.difference_update(links)
        audience.users -= 1
        if audience.users == 0:
            self._forget(audience)

    def _forget(self, audience: Audience) -> None:
        if audience.timer is not None:
            audience.timer.cancel()
        if self._audiences.get(audience.name) is audience:
            del self._audiences[audience.name]

    # ---- showing ----

    async def _show(self, audience: Audience, deadline: Deadline) -> None:
        token = await self._token(audience.name, deadline)
        if token.expires_at <= max(self._clock(), audience.expires_at):
            raise StaleToken(f"the credential has no fresh token for '{audience.name}'", "amqp:unauthorized-access")
        links = await self._open(deadline)
        properties = {
            "operation": "put-token",
            "type": token.type,
            "name": audience.name,
            "expiration": Timestamp(int(token.expires_at * 1000)),
        }
        answer = await links.request(properties, token.text, deadline.left)
        if not answer.is_ok:
            condition = answer.condition or _CONDITIONS.get(answer.status, "")
            raise AuthenticationFailed(f"{answer.description} ({audience.name})", condition, answer.status)
        self.shown += 1
        audience.expires_at = token.expires_at
        left = token.expires_at - self._clock()
        self._renew_in(audience, left * (1 - RENEW_AT))

    async def _token(self, name: str, deadline: Deadline) -> Token:
        try:
            async with within(deadline.left, "the credential gave no token"):
                return await self._credential.token(name)
        except AmqpError:
            raise
        except Exception as error:
            # The error's text is the credential's business: it may say more than should be seen.
            raise AuthenticationFailed(f"the credential gave no token: {type(error).__name__}") from error

    async def _open(self, deadline: Deadline) -> RequestLinks:
        async with self._opening:
            if self._links is None or self._links.error is not None:
                links = RequestLinks(await self._session(2, deadline.left), NODE)
                await links.attach(deadline.left)
                self._links = links
            return self._links

    # ---- renewing ----

    def _renew_in(self, audience: Audience, seconds: float) -> None:
        if audience.timer is not None:
            audience.timer.cancel()
        if not self._closed:
            audience.timer = self._loop.call_later(max(0.0, seconds), self._start_renewal, audience)

    def _start_renewal(self, audience: Audience) -> None:
        task = self._loop.create_task(self._renew(audience))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew(self, audience: Audience) -> None:
        async with audience.lock:
            try:
                await self._show(audience, Deadline(self._seconds))
                return
            except AmqpError as error:
                failure = error
        if self._closed:
            return
        left = audience.expires_at - self._clock()
        level = logging.DEBUG if isinstance(failure, StaleToken) and left > 0 else logging.WARNING
        logger.log(level, "the token for %s was not renewed, %.0f s are left: %s", audience.name, left, failure)
        if left > 0:
            self._renew_in(audience, min(max(left / 4, RETRY_AT_LEAST), left))
            return
        ended = LinkDetached(f"the token ended and was not renewed: {failure}", "amqp:unauthorized-access")
        ended.__cause__ = failure
        for link in list(audience.links):
            link.give_up(ended)

    # ---- ending ----

    def stop(self) -> list[asyncio.Task[None]]:
        """Renew nothing more; returns the tasks that are being cancelled."""
        self._closed = True
        for audience in list(self._audiences.values()):
            self._forget(audience)
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)
