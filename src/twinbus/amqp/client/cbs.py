"""Authorizes links through `$cbs`: puts a token before a link attaches and renews it before it expires."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from twinbus.amqp.codec.types import Timestamp

from .credentials import Credential, Token
from .deadlines import Deadline, within
from .errors import AmqpError, AuthenticationFailedError, LinkDetachedError
from .requests import RequestLinks

if TYPE_CHECKING:
    from .links import Link
    from .session import Session

logger = logging.getLogger("twinbus.amqp.client.cbs")

NODE = "$cbs"
# Renewal starts when this share of the token's lifetime is left, and is retried until the token expires.
RENEW_AT = 0.1
MIN_RETRY_SECONDS = 1.0
_CONDITIONS = {401: "amqp:unauthorized-access", 403: "amqp:unauthorized-access", 404: "amqp:not-found"}


class StaleTokenError(AuthenticationFailedError):
    """The credential returned a token that expires no later than the last one. Caching credentials do that."""


class Audience:
    """The resource that a token authorizes, and the links that depend on it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self.links: set[Link] = set()
        self.users = 0
        self.expires_at = 0.0
        self.timer: asyncio.TimerHandle | None = None


class TokenKeeper:
    """Puts tokens on one connection, and renews those that links still use."""

    def __init__(
        self,
        credential: Credential,
        session: Callable[[int, float], Awaitable[Session]],
        seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`session(links, seconds)` returns a session with free handles; `seconds` is the timeout of a renewal."""
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
        #: Tokens put so far.
        self.put_count = 0

    async def enter(self, name: str, seconds: float) -> Audience:
        """Make sure that the audience has a valid token. Call `leave` when it is no longer needed.

        Raises `AuthenticationFailedError` with the peer's answer, `AnswerTimeoutError` or `ConnectionLostError`.
        """
        audience = self._audiences.setdefault(name, Audience(name))
        audience.users += 1
        deadline = Deadline(seconds)
        try:
            async with within(seconds, f"no token was put for '{name}'"):
                await audience.lock.acquire()
            try:
                if audience.expires_at <= self._clock():
                    await self._put(audience, deadline)
            finally:
                audience.lock.release()
        except BaseException:
            self.leave(audience)
            raise
        return audience

    def leave(self, audience: Audience, *links: Link) -> None:
        """Release the audience for these links. A token without users is not renewed."""
        audience.links.difference_update(links)
        audience.users -= 1
        if audience.users == 0:
            self._forget(audience)

    def _forget(self, audience: Audience) -> None:
        if audience.timer is not None:
            audience.timer.cancel()
        if self._audiences.get(audience.name) is audience:
            del self._audiences[audience.name]

    # ---- putting a token ----

    async def _put(self, audience: Audience, deadline: Deadline) -> None:
        token = await self._token(audience.name, deadline)
        if token.expires_at <= max(self._clock(), audience.expires_at):
            raise StaleTokenError(
                f"the credential returned no newer token for '{audience.name}'", "amqp:unauthorized-access"
            )
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
            raise AuthenticationFailedError(f"{answer.description} ({audience.name})", condition, answer.status)
        self.put_count += 1
        audience.expires_at = token.expires_at
        remaining = token.expires_at - self._clock()
        self._renew_in(audience, remaining * (1 - RENEW_AT))

    async def _token(self, name: str, deadline: Deadline) -> Token:
        try:
            async with within(deadline.left, "the credential gave no token"):
                return await self._credential.token(name)
        except AmqpError:
            raise
        except Exception as error:
            # Only the type: the text may hold secrets.
            raise AuthenticationFailedError(f"the credential gave no token: {type(error).__name__}") from error

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
                await self._put(audience, Deadline(self._seconds))
                return
            except AmqpError as error:
                failure = error
        if self._closed:
            return
        remaining = audience.expires_at - self._clock()
        level = logging.DEBUG if isinstance(failure, StaleTokenError) and remaining > 0 else logging.WARNING
        logger.log(
            level, "Renewing the token for %s failed, it expires in %.0f s: %s", audience.name, remaining, failure
        )
        if remaining > 0:
            self._renew_in(audience, min(max(remaining / 4, MIN_RETRY_SECONDS), remaining))
            return
        expired = LinkDetachedError(f"the token expired and was not renewed: {failure}", "amqp:unauthorized-access")
        expired.__cause__ = failure
        for link in list(audience.links):
            link.give_up(expired)

    # ---- ending ----

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop renewing tokens. Returns the cancelled tasks."""
        self._closed = True
        for audience in list(self._audiences.values()):
            self._forget(audience)
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)
