"""Connects to a namespace over AMQP and attaches links.

async with Connection.open(endpoint, credential, timeout=10) as connection:
    sender = await connection.attach_sender("orders")
    await sender.deliver(payload, 10)
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from .cbs import TokenKeeper
from .credentials import Credential
from .deadlines import Deadline, within
from .endpoint import Endpoint
from .errors import AmqpError, AnswerTimeoutError, ConnectionLostError
from .links import Link, OnEnd
from .management import Management
from .receiver import MAX_MESSAGE_SIZE, OnDelivery, Receiver
from .requests import RequestLinks
from .sender import Sender
from .session import Session
from .transport import open_transport
from .wire import Wire

# In seconds.
TIMEOUT = 30.0
OUTCOME_TIMEOUT = 60.0
IDLE_TIMEOUT = 120.0
CLOSE_TIMEOUT = 5.0
MAX_TIMEOUT = 86_400.0

_Link = TypeVar("_Link", bound=Link)


class Opening:
    """A pending connection: `async with` opens and closes it, `await` only opens it."""

    def __init__(self, make: Callable[[], Connection]) -> None:
        self._make = make
        self._connection: Connection | None = None

    def __await__(self) -> Generator[Any, None, Connection]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Connection:
        self._connection = self._make()
        await self._connection._start()
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            await self._connection.close()


class Connection:
    """One connection to a namespace, with as many sessions as its links need.

    Use it only on the event loop that opened it. A lost connection stays lost: open a new one.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        credential: Credential,
        timeout: float,
        outcome_timeout: float,
        idle_timeout: float,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._outcome_timeout = outcome_timeout
        self._ssl = ssl_context
        #: Whether a message was sent or settled over it. Set by the user of the connection.
        self.has_worked = False
        self._sessions: list[Session] = []
        self._wire = Wire(endpoint.host, idle_timeout, self._lost)
        self._tokens = TokenKeeper(credential, self._session, timeout)

    @classmethod
    def open(
        cls,
        endpoint: Endpoint,
        credential: Credential,
        *,
        timeout: float = TIMEOUT,
        outcome_timeout: float = OUTCOME_TIMEOUT,
        idle_timeout: float = IDLE_TIMEOUT,
        ssl_context: ssl.SSLContext | None = None,
    ) -> Opening:
        """Connect, log in and open.

        All times are in seconds. `timeout` bounds opening, and is the default for attaching a link. `outcome_timeout`
        bounds the wait for the outcome of a message or settlement. The connection is lost when the peer has sent
        nothing for `idle_timeout`. `ssl_context` replaces the default trust in public certificate authorities.

        Awaiting it raises `ConnectionLostError`, `AuthenticationFailedError` or `AnswerTimeoutError`. Raises
        `ValueError` for a time out of bounds.
        """
        for name, seconds in (
            ("timeout", timeout),
            ("outcome_timeout", outcome_timeout),
            ("idle_timeout", idle_timeout),
        ):
            if not 0 < seconds <= MAX_TIMEOUT:
                raise ValueError(f"{name} must be above 0 and at most {MAX_TIMEOUT:g} seconds, got {seconds}")
        return Opening(lambda: cls(endpoint, credential, timeout, outcome_timeout, idle_timeout, ssl_context))

    @property
    def outcome_timeout(self) -> float:
        """Seconds to wait for the outcome of a message or settlement."""
        return self._outcome_timeout

    @outcome_timeout.setter
    def outcome_timeout(self, seconds: float) -> None:
        self._outcome_timeout = seconds
        for session in self._sessions:
            session.outcome_timeout = seconds

    async def _start(self) -> None:
        try:
            async with within(self._timeout, f"{self.endpoint} was not connected"):
                await open_transport(self.endpoint, self._ssl, self._wire)
                await self._wire.opened
        except AmqpError as error:
            await self._wire.end(error)
            raise
        except BaseException:
            await self._wire.end(ConnectionLostError("opening the connection was cancelled"))
            raise

    async def put_token(self, path: str = "", *, seconds: float | None = None) -> None:
        """Put a token for an entity, or for the namespace, to check the credential without a link.

        Raises `AuthenticationFailedError` with the peer's answer, `AnswerTimeoutError` or `ConnectionLostError`.
        """
        seconds = self._timeout if seconds is None else seconds
        self._tokens.leave(await self._tokens.enter(self.endpoint.audience(path), seconds))

    # ---- links ----

    async def attach_sender(self, path: str, *, seconds: float | None = None, on_end: OnEnd | None = None) -> Sender:
        """Attach a link that sends to a queue or topic.

        `seconds` bounds the attach. `on_end` is called once when the link has ended, for whatever reason. Raises
        `LinkDetachedError` or `AuthenticationFailedError` with the peer's reason, `AnswerTimeoutError` or
        `ConnectionLostError`.
        """
        name = f"{path}-sender-{uuid.uuid4()}"

        def make(session: Session, ended: OnEnd) -> Sender:
            return Sender(session, name, path, ended)

        return await self._attach(path, make, seconds, on_end)

    async def attach_receiver(
        self,
        path: str,
        on_delivery: OnDelivery,
        *,
        credit: int = 0,
        seconds: float | None = None,
        on_end: OnEnd | None = None,
        max_message_size: int = MAX_MESSAGE_SIZE,
    ) -> Receiver:
        """Attach a link that receives from a queue, subscription or dead-letter queue, in peek-lock mode.

        `on_delivery` is called for each message, up to the credit. It must not block; if it raises, the connection
        ends. Raises what `attach_sender` raises.
        """
        name = f"{path}-receiver-{uuid.uuid4()}"

        def make(session: Session, ended: OnEnd) -> Receiver:
            return Receiver(session, name, path, on_delivery, ended, max_message_size=max_message_size)

        receiver = await self._attach(path, make, seconds, on_end)
        if credit:
            receiver.add_credit(credit)
        return receiver

    async def management(self, path: str, *, seconds: float | None = None) -> Management:
        """Attach to the management node of a queue, topic or subscription. Raises what `attach_sender` raises."""
        seconds = self._timeout if seconds is None else seconds
        deadline = Deadline(seconds)
        audience = await self._tokens.enter(self.endpoint.audience(path), deadline.left)
        try:
            links = RequestLinks(
                await self._session(2, deadline.left),
                f"{path}/$management",
                lambda _: self._tokens.leave(audience, *links.both),
            )
        except BaseException:
            self._tokens.leave(audience)
            raise
        audience.links |= links.both
        await links.attach(deadline.left)
        return Management(links, path, seconds)

    async def _attach(
        self, path: str, make: Callable[[Session, OnEnd], _Link], seconds: float | None, on_end: OnEnd | None
    ) -> _Link:
        deadline = Deadline(self._timeout if seconds is None else seconds)
        audience = await self._tokens.enter(self.endpoint.audience(path), deadline.left)

        def ended(error: AmqpError) -> None:
            self._tokens.leave(audience, link)
            if on_end is not None and attached:
                on_end(error)

        attached = False
        try:
            link = make(await self._session(1, deadline.left), ended)
        except BaseException:
            self._tokens.leave(audience)
            raise
        audience.links.add(link)
        await link.attach(deadline.left)
        attached = True
        return link

    async def _session(self, links: int, seconds: float) -> Session:
        """Return a session with this many free handles; begins one if needed."""
        for session in self._sessions:
            if session.free_handles() >= links:
                return session
        session = self._wire.add_session(lambda channel: Session(self._wire, channel, self._outcome_timeout))
        session.begin()
        try:
            async with within(seconds, f"{self.endpoint} did not begin a session"):
                await session.begun
        except AnswerTimeoutError as late:
            self._wire.fail(late)
            raise
        self._sessions = [open_session for open_session in self._sessions if not open_session.ended]
        self._sessions.append(session)
        return session

    # ---- ending ----

    @property
    def error(self) -> AmqpError | None:
        """Why the connection is lost; None while it is open."""
        return self._wire.error

    @property
    def last_activity(self) -> float:
        """When the peer last sent something, by the event loop's clock."""
        return self._wire.last_read

    @property
    def tokens_put(self) -> int:
        """How many tokens the peer has accepted so far."""
        return self._tokens.put_count

    async def wait_lost(self) -> AmqpError:
        """Wait until the connection is lost or closed, and return the reason."""
        await asyncio.wait([self._wire.lost])
        assert self._wire.error is not None
        return self._wire.error

    def abort(self) -> None:
        """Abort the connection without a close frame. Everything pending gets `ConnectionLostError`."""
        self._wire.fail(ConnectionLostError("the connection was aborted here"))

    async def close(self, seconds: float = CLOSE_TIMEOUT) -> None:
        """Close the connection, and wait at most `seconds` for the peer's close frame.

        Everything pending gets `ConnectionLostError`: wait for outcomes first.
        """
        renewals = self._tokens.stop()
        await self._wire.close(seconds)
        if renewals:
            await asyncio.wait(renewals)

    def _lost(self, error: AmqpError) -> None:
        self._tokens.stop()
