"""AMQP addresses: where a link leads, and the path a token is for."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

CBS = "$cbs"
MANAGEMENT = "$management"
COORDINATOR = "$coordinator"  # no address of AMQP's: a link to it has a target of its own kind


class Address(NamedTuple):
    """An entity's path, and the node below it that is meant ("" for the entity itself)."""

    path: str
    node: str = ""


def parse_address(address: str) -> Address:
    """Read `amqps://host:port/entity/$management`, or the same without scheme and host."""
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
    """The path of a URI, or of an address that is only a path."""
    _, separator, rest = uri.partition("://")
    if not separator:
        return uri.strip("/")
    _, _, path = rest.partition("/")
    return unquote(path.partition("?")[0]).strip("/")
