"""A connection to a namespace: the AMQP client that the syphon moves bytes with.

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
from .credentials import Credential, as_credential
from .deadlines import Deadline, within
from .endpoint import Endpoint
from .errors import AmqpError, ConnectionLost, TimedOut
from .links import Link, OnEnd
from .management import Management
from .receiver import MAX_MESSAGE_SIZE, OnDelivery, Receiver
from .requests import RequestLinks
from .sender import Sender
from .session import Session
from .transport import open_transport
from .wire import Wire

TIMEOUT = 30.0
OUTCOME_TIMEOUT = 60.0
SILENCE = 120.0
CLOSE_TIMEOUT = 5.0
MAX_SECONDS = 86_400.0

_Link = TypeVar("_Link", bound=Link)


class Opening:
    """A connection to be: `async with` opens it and closes it, `await` only opens it."""

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

    Everything on it belongs to the event loop that it was opened on. A connection that is lost stays lost: open a
    new one.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        credential: Credential,
        timeout: float,
        outcome_timeout: float,
        silence: float,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._outcome_timeout = outcome_timeout
        self._ssl = ssl_context
        #: Whether anything was done over it, a message taken or settled: for those who do that to say.
        self.has_worked = False
        self._sessions: list[Session] = []
        self._wire = Wire(endpoint.host, silence, self._lost)
        self._tokens = TokenKeeper(credential, self._session, timeout)

    @classmethod
    def open(
        cls,
        endpoint: Endpoint,
        credential: Any,
        *,
        timeout: float = TIMEOUT,
        outcome_timeout: float = OUTCOME_TIMEOUT,
        silence: float = SILENCE,
        ssl_context: ssl.SSLContext | None = None,
    ) -> Opening:
        """Connect, log in and open.

        `timeout` is for this, and for attaching a link where nothing else is said; `outcome_timeout` for the
        peer's word on a message or settlement; `silence` is how long the peer may say nothing at all. All in
        seconds. `ssl_context` is for namespaces with a certificate of their own.

        Raises, when awaited, `ConnectionLost`, `AuthenticationFailed` or `TimedOut`; and `ValueError` for a time
        out of bounds, `TypeError` for something that is no credential.
        """
        for name, seconds in (("timeout", timeout), ("outcome_timeout", outcome_timeout), ("silence", silence)):
            if not 0 < seconds <= MAX_SECONDS:
                raise ValueError(f"{name} must be above 0 and at most {MAX_SECONDS:g} seconds, not {seconds}")
        found = as_credential(credential)
        return Opening(lambda: cls(endpoint, found, timeout, outcome_timeout, silence, ssl_context))

    @property
    def outcome_timeout(self) -> float:
        """How many seconds the peer's word on a message or settlement may take."""
        return self._outcome_timeout

    @outcome_timeout.setter
    def outcome_timeout(self, seconds: float) -> None:
        self._outcome_timeout = seconds
        for session in self._sessions:
            session.patience = seconds

    async def _start(self) -> None:
        try:
            async with within(self._timeout, f"{self.endpoint} was not connected"):
                await open_transport(self.endpoint, self._ssl, self._wire)
                await self._wire.opened
        except AmqpError as error:
            await self._wire.end(error)
            raise
        except BaseException:
            await self._wire.end(ConnectionLost("the connection was given up before it was open"))
            raise

    async def show_token(self, path: str = "", *, seconds: float | None = None) -> None:
        """Show a token for an entity, or for the namespace itself, to see whether the key is good; no link needs it.

        Raises `AuthenticationFailed` with the peer's answer, `TimedOut` or `ConnectionLost`.
        """
        seconds = self._timeout if seconds is None else seconds
        self._tokens.leave(await self._tokens.enter(self.endpoint.audience(path), seconds))

    # ---- links ----

    async def attach_sender(self, path: str, *, seconds: float | None = None, on_end: OnEnd | None = None) -> Sender:
        """A link to send to a queue or topic.

        It may take so many `seconds`. `on_end` is told once when the link has ended, for whatever reason. Raises
        `LinkDetached` or `AuthenticationFailed` with the peer's reason, `TimedOut` or `ConnectionLost`.
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
        """A link to receive from a queue, subscription or dead-letter queue, in peek-lock mode.

        `on_delivery` is called for each message, as many as there is credit for. It must not block; if it
        raises, the connection is ended. Raises as `attach_sender`.
        """
        name = f"{path}-receiver-{uuid.uuid4()}"

        def make(session: Session, ended: OnEnd) -> Receiver:
            return Receiver(session, name, path, on_delivery, ended, max_message_size=max_message_size)

        receiver = await self._attach(path, make, seconds, on_end)
        if credit:
            receiver.add_credit(credit)
        return receiver

    async def management(self, path: str, *, seconds: float | None = None) -> Management:
        """The management node of a queue, topic or subscription. Raises as `attach_sender`."""
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
        """A session with room for so many links more."""
        for session in self._sessions:
            if session.free_handles() >= links:
                return session
        session = self._wire.add_session(lambda channel: Session(self._wire, channel, self._outcome_timeout))
        session.begin()
        try:
            async with within(seconds, f"{self.endpoint} did not begin a session"):
                await session.begun
        except TimedOut as late:
            self._wire.fail(late)
            raise
        self._sessions = [one for one in self._sessions if not one.ended]
        self._sessions.append(session)
        return session

    # ---- the end ----

    @property
    def error(self) -> AmqpError | None:
        """Why the connection is lost; None while it is there."""
        return self._wire.error

    @property
    def last_activity(self) -> float:
        """When the peer was last heard of, by the event loop's clock."""
        return self._wire.last_read

    @property
    def tokens_shown(self) -> int:
        """How many tokens the peer has taken so far."""
        return self._tokens.shown

    async def wait_lost(self) -> AmqpError:
        """Return when the connection is lost or closed, with the reason."""
        await asyncio.wait([self._wire.lost])
        assert self._wire.error is not None
        return self._wire.error

    def abort(self) -> None:
        """Cut the connection at once, without a word. Everything that is pending gets `ConnectionLost`."""
        self._wire.fail(ConnectionLost("the connection was cut here"))

    async def close(self, seconds: float = CLOSE_TIMEOUT) -> None:
        """Say goodbye, wait for the answer at most so long, and leave nothing behind.

        What is still pending gets `ConnectionLost`: wait for outcomes before.
        """
        renewals = self._tokens.stop()
        await self._wire.close(seconds)
        if renewals:
            await asyncio.wait(renewals)

    def _lost(self, error: AmqpError) -> None:
        self._tokens.stop()
