"""Parses AMQP addresses into entity paths and node names."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

CBS = "$cbs"
MANAGEMENT = "$management"
COORDINATOR = "$coordinator"  # not an AMQP address: links to it have a Coordinator target


class Address(NamedTuple):
    """An entity's path and the node below it ("" for the entity itself)."""

    path: str
    node: str = ""


def parse_address(address: str) -> Address:
    """Parse `amqps://host:port/entity/$management`; scheme and host are optional."""
    path = path_of(address)
    lower = path.lower()
    if lower == CBS:
        return Address("", CBS)
    if lower == MANAGEMENT:
        return Address("", MANAGEMENT)
    if lower.endswith("/" + MANAGEMENT):
        return Address(path[: -len(MANAGEMENT) - 1], MANAGEMENT)
    return Address(path)


def path_of(uri: str) -> str:
    """The path of a URI, or of an address without a host."""
    _, separator, rest = uri.partition("://")
    if not separator:
        return uri.strip("/")
    _, _, path = rest.partition("/")
    return unquote(path.partition("?")[0]).strip("/")
