"""Parses and checks entity paths, backlog queue paths, hosts and primary names."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

#: The middle segment of a backlog queue's path, between the primary's name and the index.
BACKLOG_MARK = "x-servicebus-transfer"

# The service allows 260 characters for a path; this leaves room for the mark and any index.
MAX_PRIMARY_NAME = 200

_PRIMARY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_BACKLOG_PATH = re.compile(rf"([^/]+)/{BACKLOG_MARK}/(0|[1-9][0-9]*)", re.IGNORECASE)

# No segment begins with "$" (reserved for nodes below an entity) or is "." or ".."; no character that has a meaning in
# a URL and that the service does not allow in names.
_PART = r"(?!\$|\.\.?(?:/|$))[^/\x00-\x1f\x7f?#@*%:\\]+"
_ENTITY_PATH = re.compile(rf"/?{_PART}(?:/{_PART})*/?")


@dataclass(frozen=True, slots=True)
class BacklogPath:
    """The parts of a backlog queue's path."""

    primary_name: str
    index: int


def entity_key(path: str) -> str:
    """A path in canonical form, to compare paths: they are case-insensitive."""
    return path.strip("/").lower()


def is_entity_path(path: str) -> bool:
    """Whether a path can be that of a queue or topic: it has no host and no reserved segment such as `$management`."""
    return _ENTITY_PATH.fullmatch(path) is not None


def primary_name_of(host: str) -> str | None:
    """The first DNS label of a namespace's host; a port is ignored.

    None for an IP address and for `localhost`: one namespace must not get two sets of backlog queues because it was
    reached in two ways. Then ask the namespace for its name.
    """
    name = host_of(host.strip().lower()).rstrip(".")
    if name == "localhost" or _is_address(name):
        return None
    return name.partition(".")[0] or None


def bracketed(authority: str) -> str:
    """An authority with brackets around an IPv6 address that has none."""
    return f"[{authority}]" if authority.count(":") > 1 and not authority.startswith("[") else authority


def host_of(authority: str) -> str:
    """The host of an authority, without the port; an IPv6 address has no brackets."""
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
    """The path of a backlog queue, such as `contoso/x-servicebus-transfer/0`. Raises `ValueError` for invalid parts."""
    check_primary_name(primary_name)
    if index < 0:
        raise ValueError(f"index must be at least 0, not {index!r}")
    return f"{primary_name}/{BACKLOG_MARK}/{index}"


def parse_backlog_path(path: str) -> BacklogPath | None:
    """The parts of a backlog queue's path; None if it is not such a path."""
    match = _BACKLOG_PATH.fullmatch(path)
    return BacklogPath(match[1], int(match[2])) if match else None
