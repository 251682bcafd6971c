"""The two namespaces on the command line: options that several commands share, and what they say when one is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.servicebus import TransportType

from twinbus.operations.backlog import BacklogQueueView, list_queues, paired_names
from twinbus.pairing.connection_strings import ConnectionString
from twinbus.pairing.errors import NamespacesSwappedError
from twinbus.pairing.http_proxy import HttpProxy
from twinbus.pairing.namespaces import Namespace
from twinbus.pairing.naming import backlog_path
from twinbus.pairing.swapped_namespaces import first_backlog_queue
from twinbus.syphon.connector import Side
from twinbus.syphon.transport import default_context

from .failing import system_words

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

ADMINISTRATION_SECONDS = 30.0
#: For a question that the command can do without.
OPTIONAL_SECONDS = 10.0

PrimaryOption = Annotated[
    str, typer.Option(envvar="TWINBUS_PRIMARY", help="Connection string of the primary.", show_default=False)
]
SecondaryOption = Annotated[
    str, typer.Option(envvar="TWINBUS_SECONDARY", help="Connection string of the secondary.", show_default=False)
]
QueuesOption = Annotated[int, typer.Option(min=1, help="How many backlog queues the clients use.")]
PrimaryNameOption = Annotated[
    str | None,
    typer.Option(
        envvar="TWINBUS_PRIMARY_NAME",
        help="First part of the backlog queues' paths, if the primary's host is an address.",
    ),
]


class Transport(StrEnum):
    """What carries AMQP."""

    AMQP = "amqp"
    WEBSOCKET = "websocket"


TransportOption = Annotated[
    Transport,
    typer.Option(
        envvar="TWINBUS_TRANSPORT", help="amqp: port 5671; websocket: port 443, through HTTPS_PROXY if that is set."
    ),
]
ProxyOption = Annotated[
    str | None,
    typer.Option(
        envvar="TWINBUS_PROXY",
        metavar="URL",
        help="HTTP proxy, http://user:password@host:port; implies --transport websocket.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]


def _namespace_of(option: str, text: str, transport: Transport, proxy: HttpProxy | None) -> Namespace:
    """The namespace that an option names. Raises `ValueError`, which never holds a key."""
    if not text:
        variable = "TWINBUS_" + option.removeprefix("--").upper()
        raise ValueError(f"{option} is missing: give a connection string, or set {variable}")
    options: dict[str, Any] = {}
    if transport is Transport.WEBSOCKET:
        options["transport_type"] = TransportType.AmqpOverWebsocket
    if proxy is not None:
        options["http_proxy"] = proxy.for_sync_client()
    try:
        if ConnectionString.parse(text).use_tls:
            options["ssl_context"] = default_context()  # administration trusts whom the syphon trusts
        return Namespace.from_connection_string(text, **options)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _side_of(option: str, namespace: Namespace) -> Side:
    try:
        return Side.of(namespace)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _proxy_of(text: str | None) -> HttpProxy | None:
    try:
        return HttpProxy.parse(text) if text else None
    except ValueError as error:
        raise ValueError(f"--proxy: {error}") from None


class Unanswered(Exception):  # noqa: N818 - what it is
    """A namespace could not be asked, or refused; the text names it and says why, in a line without a key."""


class Refused(Unanswered):
    """It did not accept the key, or the key has not the right."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both namespaces, and what the primary is called in the paths of its backlog queues."""

    primary: Side
    secondary: Side
    primary_namespace: Namespace
    secondary_namespace: Namespace
    given_name: str | None

    @classmethod
    def of(
        cls,
        primary: str,
        secondary: str,
        name: str | None = None,
        transport: Transport = Transport.AMQP,
        proxy: str | None = None,
    ) -> Pair:
        """Raises `ValueError` that names the option."""
        http_proxy = _proxy_of(proxy)
        namespaces = (
            _namespace_of("--primary", primary, transport, http_proxy),
            _namespace_of("--secondary", secondary, transport, http_proxy),
        )
        sides = _side_of("--primary", namespaces[0]), _side_of("--secondary", namespaces[1])
        if name is not None:
            backlog_path(name, 0)
        return cls(*sides, *namespaces, name)

    async def primary_name(self) -> str:
        """The first part of the backlog queues' paths. A host that is an address says nothing: the namespace does.

        Raises `Unanswered` if it has to be asked and does not answer.
        """
        name = self.given_name or self.primary_namespace.name
        if name:
            return name
        try:
            async with _asking("primary", self.primary_namespace) as administration:
                properties = await administration.get_namespace_properties()
        except Unanswered as error:
            raise Unanswered(
                f"{error}. Its host is an address, so its name must be asked for, or given: --primary-name"
            ) from error
        return str(properties.name)

    async def backlog_queues(self, name: str, used: int) -> list[BacklogQueueView]:
        """All backlog queues in the secondary of the primary with this name.

        Raises `Unanswered`; of these `Refused` if the key has no right to manage.
        """
        async with _asking("secondary", self.secondary_namespace) as administration:
            return await list_queues(administration, name, used)

    async def paired_names(self) -> list[str]:
        """The names of all primaries that have backlog queues in the secondary. Raises as `backlog_queues`."""
        async with _asking("secondary", self.secondary_namespace) as administration:
            return await paired_names(administration)

    async def check_not_swapped(self, name: str) -> None:
        """Raise `NamespacesSwappedError` if the two seem to be exchanged; not if nobody can tell.

        `name` is that of the primary.
        """
        try:
            async with _asking("secondary", self.secondary_namespace, OPTIONAL_SECONDS) as administration:
                if await first_backlog_queue(partial(_exists, administration), [name]) is not None:
                    return
        except Unanswered:
            return
        error = await self.find_swapped(name)
        if error is not None:
            raise error

    async def find_swapped(self, name: str) -> NamespacesSwappedError | None:
        """The error to report if the primary holds backlog queues of the secondary; None if not, or without an answer.

        Only of use where the secondary holds no backlog queue of the primary, whose name is given: if both do, each is
        the other's secondary.
        """
        names = [self.given_name] if self.given_name else []
        with suppress(Unanswered):
            names.insert(0, await self._secondary_name())
        try:
            async with _asking("primary", self.primary_namespace, OPTIONAL_SECONDS) as administration:
                queue = await first_backlog_queue(partial(_exists, administration), dict.fromkeys(names))
        except Unanswered:
            return None
        if queue is None:
            return None
        primary, secondary = (str(side.endpoint) for side in (self.primary, self.secondary))
        return NamespacesSwappedError(primary, secondary, queue, backlog_path(name, 0))

    async def _secondary_name(self) -> str:
        """What the secondary is called. Raises `Unanswered` if it has to be asked and does not answer."""
        if self.secondary_namespace.name:
            return self.secondary_namespace.name
        async with _asking("secondary", self.secondary_namespace, OPTIONAL_SECONDS) as administration:
            return str((await administration.get_namespace_properties()).name)


async def _exists(administration: ServiceBusAdministrationClient, path: str) -> bool:
    try:
        await administration.get_queue(path)
    except ResourceNotFoundError:
        return False
    return True


@asynccontextmanager
async def _asking(
    role: str, namespace: Namespace, seconds: float = ADMINISTRATION_SECONDS
) -> AsyncIterator[ServiceBusAdministrationClient]:
    """The administration of a namespace; what goes wrong there becomes `Unanswered`."""
    who = f"the {role} {namespace.fully_qualified_namespace}"
    try:
        async with asyncio.timeout(seconds), namespace.administration() as administration:
            yield administration
    except ClientAuthenticationError as error:
        raise Refused(f"{who} refuses: the key is wrong, or has no right to manage") from error
    except HttpResponseError as error:
        raise Unanswered(f"{who} answers {error.status_code} {error.reason or ''}".rstrip()) from error
    except TimeoutError as error:
        raise Unanswered(f"{who} did not answer within {seconds:g} s") from error
    except (AzureError, OSError) as error:
        raise Unanswered(f"{who} cannot be reached: {_why(error)}") from error


def _why(error: BaseException) -> str:
    """The system's words where a connection failed, else the class: the SDK's text may hold more than it should."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno is not None:
            return system_words(found)
        found = getattr(found, "inner_exception", None) or found.__cause__
    return type(error).__name__
