"""The two namespaces on the command line: options that several commands share, and what they say when one is wrong."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

import typer

from twinbus.pairing.namespaces import Namespace
from twinbus.pairing.naming import backlog_path
from twinbus.syphon.connector import Side

NAME_TIMEOUT = 30.0

PrimaryOption = Annotated[
    str, typer.Option(envvar="TWINBUS_PRIMARY", help="Connection string of the primary.", show_default=False)
]
SecondaryOption = Annotated[
    str, typer.Option(envvar="TWINBUS_SECONDARY", help="Connection string of the secondary.", show_default=False)
]
QueuesOption = Annotated[int, typer.Option(min=1, help="How many backlog queues the clients use.")]
PrimaryNameOption = Annotated[
    str | None, typer.Option(help="First part of the backlog queues' paths, if the primary's host does not say.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]


def side_of(option: str, text: str) -> Side:
    """The namespace that an option names. Raises `ValueError`, which never holds a key."""
    if not text:
        variable = "TWINBUS_" + option.removeprefix("--").upper()
        raise ValueError(f"{option} is missing: give a connection string, or set {variable}")
    try:
        return Side.from_connection_string(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


@dataclass(frozen=True, slots=True)
class Pair:
    """Both namespaces, and what the primary is called in the paths of its backlog queues."""

    primary: Side
    secondary: Side
    primary_namespace: Namespace
    secondary_namespace: Namespace
    given_name: str | None

    @classmethod
    def of(cls, primary: str, secondary: str, name: str | None = None) -> Pair:
        """Raises `ValueError` that names the option."""
        sides = side_of("--primary", primary), side_of("--secondary", secondary)
        if name is not None:
            backlog_path(name, 0)
        return cls(*sides, Namespace.from_connection_string(primary), Namespace.from_connection_string(secondary), name)

    async def primary_name(self) -> str:
        """The first part of the backlog queues' paths. A host that is an address says nothing: the namespace does.

        Raises `azure.core.exceptions.AzureError` or `TimeoutError` if it has to be asked and does not answer.
        """
        name = self.given_name or self.primary_namespace.name
        return name or await _ask_for_name(self.primary_namespace)


async def _ask_for_name(namespace: Namespace) -> str:
    async with asyncio.timeout(NAME_TIMEOUT), namespace.administration() as administration:
        properties = await administration.get_namespace_properties()
    return str(properties.name)
