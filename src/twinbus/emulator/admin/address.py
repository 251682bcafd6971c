"""Builds and reads the URLs of a namespace's entities, from the address a client used."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlencode, urlsplit


@dataclass(frozen=True, slots=True)
class Address:
    """The scheme, the host with port, and the API version of a request."""

    scheme: str
    host: str
    api_version: str

    def url(self, path: str, **query: int | str) -> str:
        """The absolute URL of a path. Query options get a dollar sign: `skip` becomes `$skip`."""
        options = urlencode({"api-version": self.api_version, **{f"${key}": query[key] for key in query}})
        return f"{self.scheme}://{self.host}/{quote(path, safe='/$')}?{options}"

    def entity(self, path: str) -> str:
        """The URL of an entity in `ForwardTo`."""
        return f"sb://{self.host}/{path}"

    def path_of(self, entity: str) -> str:
        """The path of the entity in `ForwardTo`, which may be a path or an absolute URL.

        Raises:
            ValueError: the entity is in another namespace; the service forwards only within one.
        """
        if "://" not in entity:
            return entity.strip("/")
        target, here = urlsplit(entity), urlsplit(f"//{self.host}")
        # Some clients omit the port of a development namespace.
        same_port = target.port is None or target.port == here.port
        same_host = target.hostname == here.hostname or (_is_loopback(target.hostname) and _is_loopback(here.hostname))
        if not (same_host and same_port):
            raise ValueError(f"'{entity}' is not an entity of this namespace.")
        return unquote(target.path).strip("/")


def _is_loopback(host: str | None) -> bool:
    """Whether a host is the local machine: some clients use 127.0.0.1 and others localhost."""
    if host is None or host == "localhost":
        return host is not None
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
