"""Where a namespace was reached, which is how it names itself and its entities in an answer."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlencode, urlsplit


@dataclass(frozen=True, slots=True)
class Address:
    """The scheme and the host (with its port) of a request, and the version of the API it asks for."""

    scheme: str
    host: str
    api_version: str

    def url(self, path: str, **query: int | str) -> str:
        """The absolute address of a path. Query options have a dollar sign, so `skip` stands for `$skip`."""
        options = urlencode({"api-version": self.api_version, **{f"${key}": query[key] for key in query}})
        return f"{self.scheme}://{self.host}/{quote(path, safe='/$')}?{options}"

    def entity(self, path: str) -> str:
        """How another entity is named in `ForwardTo`."""
        return f"sb://{self.host}/{path}"

    def path_of(self, entity: str) -> str:
        """The path of an entity that is named in `ForwardTo`, by its path or by its absolute address.

        Raises:
            ValueError: it belongs to another namespace; the service forwards within one only.
        """
        if "://" not in entity:
            return entity.strip("/")
        target, here = urlsplit(entity), urlsplit(f"//{self.host}")
        # Some clients leave out the port of a development namespace.
        same_port = target.port is None or target.port == here.port
        same_host = target.hostname == here.hostname or (_is_loopback(target.hostname) and _is_loopback(here.hostname))
        if not (same_host and same_port):
            raise ValueError(f"'{entity}' is not an entity of this namespace.")
        return unquote(target.path).strip("/")


def _is_loopback(host: str | None) -> bool:
    """One namespace is often reached as 127.0.0.1 by one client and as localhost by the next."""
    if host is None or host == "localhost":
        return host is not None
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
