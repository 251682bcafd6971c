"""Options for the two namespaces, and the requests that commands make of them."""

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

from twinbus.admin_tools.backlog_view import BacklogQueueView, list_queues, paired_names
from twinbus.amqp.client.transport import default_context
from twinbus.pairing.backlog.swapped_namespaces import first_backlog_queue
from twinbus.pairing.namespace import Namespace
from twinbus.pairing.pairing_errors import NamespacesSwappedError
from twinbus.servicebus.connection_strings import ConnectionString
from twinbus.servicebus.entity_paths import backlog_path
from twinbus.servicebus.http_proxy import HttpProxy
from twinbus.syphon.connector import Side

from ..failures import os_error_text

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

#: The form of a connection string, for messages.
CONNECTION_STRING = "Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…"
ADMINISTRATION_SECONDS = 30.0
#: Timeout of a request whose answer is optional.
OPTIONAL_SECONDS = 10.0

PrimaryOption = Annotated[
    str, typer.Option(envvar="TWINBUS_PRIMARY", help="Connection string of the primary namespace.", show_default=False)
]
SecondaryOption = Annotated[
    str,
    typer.Option(envvar="TWINBUS_SECONDARY", help="Connection string of the secondary namespace.", show_default=False),
]
QueuesOption = Annotated[int, typer.Option(min=1, help="Number of backlog queues that the clients use.")]
PrimaryNameOption = Annotated[
    str | None,
    typer.Option(
        envvar="TWINBUS_PRIMARY_NAME",
        help="Name of the primary, as in the paths of its backlog queues. Needed if its host is an IP address and it"
        " is down.",
    ),
]


class Transport(StrEnum):
    """The transport of AMQP."""

    AMQP = "amqp"
    WEBSOCKET = "websocket"


TransportOption = Annotated[
    Transport,
    typer.Option(
        envvar="TWINBUS_TRANSPORT", help="amqp: port 5671; websocket: port 443, through HTTPS_PROXY if it is set."
    ),
]
ProxyOption = Annotated[
    str | None,
    typer.Option(
        envvar="TWINBUS_PROXY",
        metavar="URL",
        help="HTTP proxy, such as http://user:password@host:port. Implies --transport websocket.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]


def _namespace_of(option: str, text: str, transport: Transport, proxy: HttpProxy | None) -> Namespace:
    """Parse the connection string of an option. Raises `ValueError`, which never holds a key."""
    if not text:
        variable = "TWINBUS_" + option.removeprefix("--").upper()
        raise ValueError(f"{option} is missing: give a connection string, or set {variable}")
    if "=" not in text:  # the text itself is not shown: it may be a key
        raise ValueError(f"{option}: expected a connection string, {CONNECTION_STRING}, got a host name or other text")
    options: dict[str, Any] = {}
    if transport is Transport.WEBSOCKET:
        options["transport_type"] = TransportType.AmqpOverWebsocket
    if proxy is not None:
        options["http_proxy"] = proxy.for_sync_client()
    try:
        if ConnectionString.parse(text).use_tls:
            options["ssl_context"] = default_context()  # administration trusts the same certificates as the syphon
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


class NoAnswerError(Exception):
    """A namespace did not answer, or refused. The text names it and the cause in one line, without a key."""


class AccessRefusedError(NoAnswerError):
    """The namespace refused the key, or the key lacks a right."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both namespaces, and the primary's name in the paths of its backlog queues."""

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
        """Return the pair that the options name. Raises `ValueError` that names the option."""
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
        """Return the first part of the backlog queues' paths. If the host is an IP address, ask the namespace.

        Raises `NoAnswerError` if it must be asked and does not answer.
        """
        name = self.given_name or self.primary_namespace.name
        if name:
            return name
        try:
            async with _administration("primary", self.primary_namespace) as administration:
                properties = await administration.get_namespace_properties()
        except NoAnswerError as error:
            raise NoAnswerError(
                f"{error}. Its host is an IP address, so twinbus must ask for its name: give --primary-name"
            ) from error
        return str(properties.name)

    async def backlog_queues(self, name: str, used: int) -> list[BacklogQueueView]:
        """Return all backlog queues of the primary with this name.

        Raises `NoAnswerError`, namely `AccessRefusedError` if the key lacks the Manage right.
        """
        async with _administration("secondary", self.secondary_namespace) as administration:
            return await list_queues(administration, name, used)

    async def paired_names(self) -> list[str]:
        """Return the names of all primaries with backlog queues in the secondary. Raises like `backlog_queues`."""
        async with _administration("secondary", self.secondary_namespace) as administration:
            return await paired_names(administration)

    async def check_not_swapped(self, name: str) -> None:
        """Raise `NamespacesSwappedError` if primary and secondary look swapped; not if a namespace does not answer.

        `name` is that of the primary.
        """
        try:
            async with _administration("secondary", self.secondary_namespace, OPTIONAL_SECONDS) as administration:
                if await first_backlog_queue(partial(_exists, administration), [name]) is not None:
                    return
        except NoAnswerError:
            return
        error = await self.find_swapped(name)
        if error is not None:
            raise error

    async def find_swapped(self, name: str) -> NamespacesSwappedError | None:
        """Return the error to report if the primary holds backlog queues of the secondary; None if not or unknown.

        Call it only if the secondary holds no backlog queue of the primary, whose name is given: if both do, each is
        the other's secondary.
        """
        names = [self.given_name] if self.given_name else []
        with suppress(NoAnswerError):
            names.insert(0, await self._secondary_name())
        try:
            async with _administration("primary", self.primary_namespace, OPTIONAL_SECONDS) as administration:
                queue = await first_backlog_queue(partial(_exists, administration), dict.fromkeys(names))
        except NoAnswerError:
            return None
        if queue is None:
            return None
        primary, secondary = (str(side.endpoint) for side in (self.primary, self.secondary))
        return NamespacesSwappedError(primary, secondary, queue, backlog_path(name, 0))

    async def _secondary_name(self) -> str:
        """Return the secondary's name. Raises `NoAnswerError` if it must be asked and does not answer."""
        if self.secondary_namespace.name:
            return self.secondary_namespace.name
        async with _administration("secondary", self.secondary_namespace, OPTIONAL_SECONDS) as administration:
            return str((await administration.get_namespace_properties()).name)


async def _exists(administration: ServiceBusAdministrationClient, path: str) -> bool:
    try:
        await administration.get_queue(path)
    except ResourceNotFoundError:
        return False
    return True


@asynccontextmanager
async def _administration(
    role: str, namespace: Namespace, seconds: float = ADMINISTRATION_SECONDS
) -> AsyncIterator[ServiceBusAdministrationClient]:
    """Open the administration client of a namespace; turn its errors into `NoAnswerError`."""
    where = f"the {role} {namespace.fully_qualified_namespace}"
    try:
        async with asyncio.timeout(seconds), namespace.administration() as administration:
            yield administration
    except ClientAuthenticationError as error:
        raise AccessRefusedError(
            f"{where} refuses the key of --{role}: it is wrong, or lacks the Manage right"
        ) from error
    except HttpResponseError as error:
        raise NoAnswerError(f"{where} answers {error.status_code} {error.reason or ''}".rstrip()) from error
    except TimeoutError as error:
        raise NoAnswerError(f"{where} did not answer within {seconds:g} s") from error
    except (AzureError, OSError) as error:
        raise NoAnswerError(f"{where} cannot be reached: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """Return the system's text if a connection failed, else the class: the SDK's text may hold secrets."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return os_error_text(cause)
        cause = getattr(cause, "inner_exception", None) or cause.__cause__
    return type(error).__name__
