"""The names of things: the primary namespace, its backlog queues, and entities."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

#: Between the primary's name and the index in the path of a backlog queue.
BACKLOG_MARK = "x-servicebus-transfer"

# The service allows 260 characters for a path; this leaves room for the mark and any index.
MAX_PRIMARY_NAME = 200

_PRIMARY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_BACKLOG_PATH = re.compile(rf"([^/]+)/{BACKLOG_MARK}/(0|[1-9][0-9]*)", re.IGNORECASE)

# No part begins with "$", as the nodes below an entity do, or leads up or nowhere; no character that the service does
# not have in its names and that means something in an address.
_PART = r"(?!\$|\.\.?(?:/|$))[^/\x00-\x1f\x7f?#@*%:\\]+"
_ENTITY_PATH = re.compile(rf"/?{_PART}(?:/{_PART})*/?")


@dataclass(frozen=True, slots=True)
class BacklogPath:
    """What the path of a backlog queue says."""

    primary_name: str
    index: int


def entity_key(path: str) -> str:
    """What two spellings of one entity's path have in common: paths are not case-sensitive."""
    return path.strip("/").lower()


def is_entity_path(path: str) -> bool:
    """Whether a path can be that of a queue or topic: it has no host, and names no node such as `$management`."""
    return _ENTITY_PATH.fullmatch(path) is not None


def primary_name_of(host: str) -> str | None:
    """The first DNS label of a namespace's host, which may carry a port.

    None if the host has no name to go by: for an address, and for `localhost`, which is the name of an address. One
    namespace must not get two sets of backlog queues because it was dialled in two ways; ask the namespace itself.
    """
    name = host_of(host.strip().lower()).rstrip(".")
    if name == "localhost" or _is_address(name):
        return None
    return name.partition(".")[0] or None


def bracketed(authority: str) -> str:
    """A host with or without a port; an IPv6 address that stands alone gets its brackets."""
    return f"[{authority}]" if authority.count(":") > 1 and not authority.startswith("[") else authority


def host_of(authority: str) -> str:
    """The host of an authority, which may carry a port; an IPv6 address has no brackets."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    # More than one colon is an IPv6 address without brackets.
    return authority.partition(":")[0] if authority.count(":") == 1 else authority


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_primary_name(name: str) -> None:
    """Raise `ValueError` if `name` cannot be the first part of a backlog queue's path."""
    if len(name) > MAX_PRIMARY_NAME or not _PRIMARY_NAME.fullmatch(name):
        raise ValueError(
            f"primary_name must be 1 to {MAX_PRIMARY_NAME} letters, digits, '.', '-' or '_', with a letter or digit at"
            f" both ends, not {name!r}"
        )


def backlog_path(primary_name: str, index: int) -> str:
    """The path of a backlog queue, such as `contoso/x-servicebus-transfer/0`. Raises `ValueError` for bad parts."""
    check_primary_name(primary_name)
    if index < 0:
        raise ValueError(f"index must be at least 0, not {index!r}")
    return f"{primary_name}/{BACKLOG_MARK}/{index}"


def parse_backlog_path(path: str) -> BacklogPath | None:
    """The parts of a backlog queue's path; None if the path is not one."""
    found = _BACKLOG_PATH.fullmatch(path)
    return BacklogPath(found[1], int(found[2])) if found else None
