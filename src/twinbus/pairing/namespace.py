"""Describes one namespace of a pairing: host, credential, and the SDK's clients for it."""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from twinbus.servicebus.connection_strings import ConnectionString
from twinbus.servicebus.entity_paths import bracketed, host_of, primary_name_of
from twinbus.servicebus.http_proxy import HttpProxy, is_direct

from .argument_checks import check_timeout, check_type, number
from .sdk.addresses import connection_options
from .sdk.proxy_logs import tidy_proxy_logs
from .sdk.tls import client_tls
from .sdk.tokens import TOKEN_TIMEOUT, AwaitedCredential, BoundedCredential, no_token
from .sdk.version import check_options, development_address, has_option

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

#: Runs a coroutine elsewhere and waits for its result, for at most that many seconds.
Run = Callable[[Coroutine[Any, Any, Any], float], Any]

#: The SDK waits for a handshake without a bound.
HANDSHAKE_TIMEOUT = 30.0

# Client options whose wrong type the SDK notices late, or never.
_OPTION_TYPES = {"ssl_context": ssl.SSLContext, "use_tls": bool, "custom_endpoint_address": str, "user_agent": str}

_NUMBERS = ("auth_timeout", "keep_alive")

# Options of the other clients that the administration client accepts.
_ADMINISTRATION_OPTIONS = ("logging_enable", "user_agent")


class Namespace:
    """A namespace to connect to.

    `credential` is sync or async, from `azure.core` or `azure.identity`, for either kind of client: a token credential,
    a named key or a shared access signature. `client_options` are those of the SDK's `ServiceBusClient`. `repr` never
    shows keys or tokens.

    Raises:
        ValueError: the host is empty, or `http_proxy` is malformed.
        TypeError: the credential is not one, or a client option has the wrong type.
    """

    def __init__(self, fully_qualified_namespace: str, credential: Any, **client_options: Any) -> None:
        _check_host(fully_qualified_namespace)
        check_credential(credential)
        self.fully_qualified_namespace = bracketed(fully_qualified_namespace.strip())
        self.credential = credential
        self.client_options: Mapping[str, Any] = MappingProxyType(client_options)
        for name, kind in _OPTION_TYPES.items():
            if client_options.get(name) is not None:
                check_type(name, client_options[name], kind)
        for name in _NUMBERS:
            if client_options.get(name) is not None:
                number(name, client_options[name])
        check_timeout("socket_timeout", client_options.get("socket_timeout"))
        self._tls: ssl.SSLContext | None = None
        self.uses_websocket = _uses_websocket(client_options)
        #: The proxy for all connections, administration included; the environment is read once, here.
        self.proxy = self._find_proxy()

    @classmethod
    def from_connection_string(cls, text: str, **client_options: Any) -> Namespace:
        """Return the namespace of a connection string with an access key or a shared access signature.

        `UseDevelopmentEmulator=true` means plain text. azure-servicebus before 7.14 speaks TLS only: give
        `connection_verify` as well, and it connects to the same port over TLS.

        Raises:
            ValueError: a part is missing or malformed. The message never holds a key.
        """
        parts = ConnectionString.parse(text)
        authority = parts.authority
        if not parts.use_tls:
            authority, client_options = development_address(parts.host, parts.port, client_options)
        if parts.entity_path is not None:
            client_options.setdefault("entity_name", parts.entity_path)
        if parts.signature:
            return cls(authority, AzureSasCredential(parts.signature), **client_options)
        return cls(authority, AzureNamedKeyCredential(parts.key_name, parts.key), **client_options)

    @classmethod
    def of(cls, namespace: NamespaceLike, **client_options: Any) -> Namespace:
        """Return a namespace from a connection string or (host, credential); a `Namespace` is returned as it is.

        Raises:
            ValueError: a part of the connection string is missing or malformed.
            TypeError: it is none of these types.
        """
        if isinstance(namespace, Namespace):
            return namespace
        if isinstance(namespace, str):
            return cls.from_connection_string(namespace, **client_options)
        if isinstance(namespace, tuple) and len(namespace) == 2:
            return cls(*namespace, **client_options)
        raise TypeError(
            "a namespace is given as a connection string, as (fully_qualified_namespace, credential) or as Namespace,"
            f" not as a {type(namespace).__name__}"
        )

    @property
    def use_tls(self) -> bool:
        """False for a development namespace, which speaks plain text."""
        return bool(self.client_options.get("use_tls", True))

    @property
    def entity_path(self) -> str | None:
        """The only entity that the connection string is valid for, if it names one."""
        return self.client_options.get("entity_name")

    @property
    def name(self) -> str | None:
        """The first label of the host; None if the host is an address, and only the namespace knows its name."""
        return primary_name_of(self.fully_qualified_namespace)

    def __repr__(self) -> str:
        return f"Namespace({self.fully_qualified_namespace!r})"

    def sync_client(self, run: Run | None = None, **overrides: Any) -> ServiceBusClient:
        """Return the SDK's synchronous client; `run` awaits the tokens of an asynchronous credential."""
        return ServiceBusClient(**self.sync_arguments(run, **overrides))

    def async_client(self, **overrides: Any) -> AsyncServiceBusClient:
        """Return the SDK's asynchronous client."""
        return AsyncServiceBusClient(**self.async_arguments(**overrides))

    def check_options(self) -> None:
        """Refuse client options that the installed SDK ignores, and addresses that it cannot connect to.

        Raises:
            ValueError: the message names the option and what to do.
        """
        check_options(self.client_options)
        self._connection_options(None)
        self.check_proxy()

    def check_proxy(self) -> None:
        """Refuse a proxy for a development namespace in plain text.

        Raises:
            ValueError: the message says what to do.
        """
        if self.proxy is not None and not self.use_tls:
            raise ValueError(
                "http_proxy needs TLS: proxies do not tunnel plain text. Leave it out, or leave out"
                " UseDevelopmentEmulator and use_tls"
            )

    def sync_arguments(self, run: Run | None = None, **overrides: Any) -> dict[str, Any]:
        """Return the arguments for `ServiceBusClient` or a subclass.

        Raises:
            ValueError: the installed SDK would ignore an option.
            TypeError: the credential is asynchronous, and there is no `run`.
        """
        credential = self.credential
        if not _is_static(credential) and _is_async(credential):
            if run is None:
                raise TypeError("credential is asynchronous: a synchronous client needs a synchronous one")
            credential = _BlockingCredential(credential, run)
        elif not _is_static(credential):
            credential = BoundedCredential(credential, TOKEN_TIMEOUT)
        http_proxy = None if self.proxy is None else self.proxy.for_sync_client()
        return self._arguments(credential, http_proxy, overrides)

    def async_arguments(self, **overrides: Any) -> dict[str, Any]:
        """Return the arguments for the asynchronous client."""
        http_proxy = None if self.proxy is None else self.proxy.for_async_client()
        return self._arguments(self._async_credential(), http_proxy, overrides)

    def _arguments(
        self, credential: Any, http_proxy: dict[str, Any] | None, overrides: dict[str, Any]
    ) -> dict[str, Any]:
        if self.proxy is not None:
            tidy_proxy_logs()
        tls = {"ssl_context": self.tls_context()} if has_option("ssl_context") else {}
        options = {**self.client_options, **tls, **self._connection_options(http_proxy), **overrides}
        check_options(options)
        return {**self._address, "credential": credential, **options}

    def _connection_options(self, http_proxy: dict[str, Any] | None) -> dict[str, Any]:
        return connection_options(
            self.fully_qualified_namespace,
            self.use_tls,
            self.uses_websocket,
            http_proxy,
            self.client_options.get("custom_endpoint_address"),
        )

    def administration(self) -> ServiceBusAdministrationClient:
        """Return the SDK's administration client. It does not retry. Call it on an event loop."""
        from .backlog.administration import Administration, AdministrationTransport, NoToken

        credential, host = self.credential, self.fully_qualified_namespace
        options: dict[str, Any] = {
            name: self.client_options[name] for name in _ADMINISTRATION_OPTIONS if name in self.client_options
        }
        options |= {"retry_total": 0, "proxies": self._administration_proxies()}
        signature = credential if isinstance(credential, AzureSasCredential) else None
        options["transport"] = AdministrationTransport(self.tls_context(), self.use_tls, signature)
        if isinstance(credential, AzureNamedKeyCredential):
            name, key = credential.named_key
            text = f"Endpoint=sb://{host}/;SharedAccessKeyName={name};SharedAccessKey={key}"
            return Administration.from_connection_string(text, **options)
        if signature is not None:
            return Administration(host, NoToken(), **options)
        return Administration(host, self._async_credential(), **options)

    def tls_context(self) -> ssl.SSLContext:
        """Return one context for all connections: the SDK would load all authorities for each, even for plain ones."""
        if self._tls is None:
            context: ssl.SSLContext | None = self.client_options.get("ssl_context")
            if context is None and self.use_tls:
                context = self._verifying_context()
            self._tls = context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return self._tls

    def _verifying_context(self) -> ssl.SSLContext:
        authorities = self.client_options.get("connection_verify")
        try:
            return client_tls(authorities, HANDSHAKE_TIMEOUT)
        except (OSError, TypeError) as error:  # OSError: also a file without certificates
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"connection_verify must be the path of a file with certificate authorities, not {authorities!r}"
            ) from error

    @property
    def _address(self) -> dict[str, str]:
        return {"fully_qualified_namespace": self.fully_qualified_namespace}

    def _async_credential(self) -> Any:
        credential = self.credential
        if _is_static(credential) or _is_async(credential):
            return credential
        return AwaitedCredential(credential, TOKEN_TIMEOUT)

    def _find_proxy(self) -> HttpProxy | None:
        """Return the proxy of the options or, for WebSockets over TLS, of HTTPS_PROXY; None if NO_PROXY has the host.

        The SDK's synchronous client reads both variables, its asynchronous one neither. Here, one rule holds for both.
        """
        option = self.client_options.get("http_proxy")
        proxy = None if option is None else HttpProxy.of_option(option)
        if proxy is None and self.uses_websocket and self.use_tls:
            proxy = HttpProxy.of_environment()
        return None if proxy is None or is_direct(host_of(self.fully_qualified_namespace)) else proxy

    def _administration_proxies(self) -> dict[str, str] | None:
        """Return the proxies for HTTP; without an entry the SDK reads the environment."""
        if self.proxy is None:
            return None
        return dict.fromkeys(("https", "http"), self.proxy.url_with_login)


class _BlockingCredential:
    """An asynchronous token credential for a synchronous client."""

    def __init__(self, credential: Any, run: Run) -> None:
        self._credential = credential
        self._run = run

    def get_token(self, *scopes: str, **options: Any) -> Any:
        try:
            return self._run(self._credential.get_token(*scopes, **options), TOKEN_TIMEOUT)
        except (CancelledError, TimeoutError):  # the client was closed meanwhile, or the credential took too long
            raise no_token(TOKEN_TIMEOUT) from None


def is_credential(value: Any) -> bool:
    """Return whether this can be used as a credential."""
    return _is_static(value) or (callable(getattr(value, "get_token", None)) and not isinstance(value, type))


def check_credential(credential: Any) -> None:
    """Raise `TypeError` if this is not a credential. The message does not show it: it may be a key."""
    if not is_credential(credential):
        raise TypeError(
            "credential must have get_token, or be an AzureNamedKeyCredential or AzureSasCredential,"
            f" not a {type(credential).__name__}"
        )


def _check_host(host: Any) -> None:
    """Raise unless this can be a namespace's host. The message does not show it: it may hold a key."""
    check_type("fully_qualified_namespace", host, str)
    if not host.strip():
        raise ValueError("fully_qualified_namespace must be the host of a namespace, not an empty text")
    if any(character in "=;@" or character.isspace() for character in host.strip()):
        raise ValueError(
            "fully_qualified_namespace must be the host of a namespace, such as contoso.servicebus.windows.net."
            " A connection string is given by itself, without a credential"
        )


def _uses_websocket(options: Mapping[str, Any]) -> bool:
    """Return whether the SDK uses WebSockets: on request, for a proxy, or with `custom_endpoint_address`.

    Raises:
        TypeError: `transport_type` is not a `TransportType`.
    """
    transport = options.get("transport_type")
    if transport is not None and not isinstance(transport, TransportType):
        raise TypeError(
            f"transport_type must be TransportType.Amqp or TransportType.AmqpOverWebsocket, not {transport!r}"
        )
    if options.get("http_proxy") is not None or transport is TransportType.AmqpOverWebsocket:
        return True
    return transport is None and bool(options.get("custom_endpoint_address"))


def _is_static(credential: Any) -> bool:
    """Return whether the credential needs no request to make a token."""
    return isinstance(credential, (AzureNamedKeyCredential, AzureSasCredential))


def _is_async(credential: Any) -> bool:
    return inspect.iscoroutinefunction(credential.get_token)


#: A namespace, its connection string, or its host and a credential.
NamespaceLike = Namespace | str | tuple[str, Any]
