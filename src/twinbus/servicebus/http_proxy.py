"""Parses and describes the HTTP proxy for connections to a namespace."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from twinbus.servicebus.connection_strings import MAX_PORT

_KEYS = ("proxy_hostname", "proxy_port", "username", "password")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """A proxy that opens tunnels with CONNECT, and the login for it.

    `str` and `repr` never show the password.

    Raises:
        ValueError: a part is malformed or out of bounds. The message names the part and never contains the password.
        TypeError: a part has the wrong type.
    """

    #: A name or an address; an IPv6 address has no brackets.
    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_type("proxy_hostname", self.host, str)
        _check_type("proxy_port", self.port, int)
        for name, text in (("username", self.username), ("password", self.password)):
            if text is not None:
                _check_type(name, text, str)
                _check_login(name, text)
        if _NAME.fullmatch(self.host) is None and not _is_ipv6(self.host):
            raise ValueError(f"proxy_hostname must be a host name or an address, not {self.host!r}")
        if not 1 <= self.port <= MAX_PORT:
            raise ValueError(f"proxy_port must be 1 to {MAX_PORT}, not {self.port}")
        if self.password is not None and self.username is None:
            raise ValueError("username must be given with a password")

    @classmethod
    def of_option(cls, option: Any) -> HttpProxy:
        """The proxy in the SDK's client option `http_proxy`, a dictionary. `proxy_hostname` may begin with `http://`.

        Raises:
            ValueError, TypeError: as the class; the message names the option.
        """
        if not isinstance(option, Mapping):
            raise TypeError(f"http_proxy must be a dictionary with {' and '.join(_KEYS[:2])}, not a {_kind(option)}")
        for name in _KEYS[:2]:
            if option.get(name) is None:
                raise ValueError(f"http_proxy must have {name}")
        for name in option:
            if name not in _KEYS:
                raise ValueError(f"http_proxy may have {', '.join(_KEYS)}, not {name!r}")
        host = option["proxy_hostname"]
        if isinstance(host, str):
            host = _without_scheme(host, "http_proxy: proxy_hostname").strip("[]")
            if "@" in host:
                raise ValueError("http_proxy: proxy_hostname must have no login: give username and password by name")
        try:
            return cls(host, option["proxy_port"], option.get("username") or None, option.get("password") or None)
        except (ValueError, TypeError) as error:
            raise type(error)(f"http_proxy: {error}") from None

    @classmethod
    def parse(cls, text: str) -> HttpProxy:
        """The proxy at an address such as `http://user:password@host:3128`.

        Raises:
            ValueError: it is malformed. The message contains none of the text, which may hold a password.
        """
        error = ValueError("expected the address of a proxy, http://host:port or http://user:password@host:port")
        if not text.isprintable():
            raise error
        authority = _without_scheme(text, "the address of a proxy")
        try:
            parts = urlsplit(f"http://{authority}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise error from None
        if not host or port is None or parts.path.strip("/") or parts.query or parts.fragment:
            raise error
        login = [None if text is None else unquote(text) for text in (parts.username or None, parts.password)]
        try:
            return cls(host, port, *login)
        except ValueError:
            raise error from None

    @classmethod
    def of_environment(cls) -> HttpProxy | None:
        """The proxy for TLS connections in the environment variable HTTPS_PROXY (or https_proxy); None if not set.

        Raises:
            ValueError: the variable is malformed. The message never contains its value.
        """
        text = getproxies_environment().get("https")
        if not text:
            return None
        try:
            return cls.parse(text)
        except ValueError as error:
            raise ValueError(f"HTTPS_PROXY: {error}") from None

    @property
    def url(self) -> str:
        """The address without username and password."""
        return f"http://{self}"

    @property
    def authorization(self) -> str | None:
        """The value of the header Proxy-Authorization; None without a username."""
        if self.username is None:
            return None
        login = f"{self.username}:{self.password or ''}"
        return f"Basic {base64.b64encode(login.encode()).decode()}"

    @property
    def url_with_login(self) -> str:
        """The address with username and password: a secret."""
        if self.username is None:
            return self.url
        return f"http://{quote(self.username, safe='')}:{quote(self.password or '', safe='')}@{self}"

    def for_sync_client(self) -> dict[str, Any]:
        """The option `http_proxy` of the SDK's synchronous client: a bare host."""
        return self._option(self.host)

    def for_async_client(self) -> dict[str, Any]:
        """The same for the asynchronous client, which uses the host as a URL and needs a scheme."""
        return self._option(f"http://{self._bracketed_host}")

    def _option(self, host: str) -> dict[str, Any]:
        login = {} if self.username is None else {"username": self.username, "password": self.password or ""}
        return {"proxy_hostname": host, "proxy_port": self.port, **login}

    @property
    def _bracketed_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self._bracketed_host}:{self.port}"


def is_direct(host: str) -> bool:
    """Whether the environment variable NO_PROXY excludes a host from the proxy."""
    return "no" in getproxies_environment() and bool(proxy_bypass(host))


def _without_scheme(text: str, where: str) -> str:
    scheme, separator, rest = text.strip().rpartition("://")
    if separator and scheme.lower() != "http":
        raise ValueError(f"{where} must begin with http://, or with no scheme: other proxies are not supported")
    return rest.rstrip("/")


def _check_type(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} must be {'a text' if kind is str else 'a whole number'}, not a {_kind(value)}")


def _check_login(name: str, text: str) -> None:
    """Refuse other than printable ASCII characters, which the SDK's two clients encode differently."""
    if not (text.isascii() and text.isprintable()) or (name == "username" and ":" in text):
        raise ValueError(f"{name} must be printable ASCII characters{' without a colon' if name == 'username' else ''}")


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _kind(value: Any) -> str:
    return type(value).__name__
