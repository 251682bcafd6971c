"""One side of a pairing: where a namespace is, who we are there, and the SDK's clients for it."""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from .connection_strings import ConnectionString
from .http_proxy import HttpProxy, is_direct
from .naming import bracketed, host_of, primary_name_of
from .sdk.addresses import connection_options
from .sdk.proxy_logs import hide_proxy_login
from .sdk.tls import client_tls
from .sdk.tokens import TOKEN_TIMEOUT, AwaitedCredential, BoundedCredential
from .sdk.version import check_options, development_address, has_option

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

#: Runs a coroutine elsewhere and waits for its result, at most so many seconds.
Run = Callable[[Coroutine[Any, Any, Any], float], Any]

#: The SDK would wait for a handshake without a bound.
HANDSHAKE_TIMEOUT = 30.0

# What the administration client understands of the options of the other clients.
_ADMINISTRATION_OPTIONS = ("logging_enable", "user_agent")


class Namespace:
    """A namespace to connect to.

    `credential` is one of `azure.core` or `azure.identity`, sync or async, whichever client it is used for: a token
    credential, a named key or a shared access signature. `client_options` are those of the SDK's `ServiceBusClient`.
    Keys and tokens never show in its text.

    Raises:
        ValueError: the host is empty, or `http_proxy` is malformed.
        TypeError: the credential is none, or `transport_type` or `http_proxy` has the wrong type.
    """

    def __init__(self, fully_qualified_namespace: str, credential: Any, **client_options: Any) -> None:
        if not fully_qualified_namespace or not fully_qualified_namespace.strip():
            raise ValueError("fully_qualified_namespace must be the host of a namespace, not an empty text")
        check_credential(credential)
        self.fully_qualified_namespace = bracketed(fully_qualified_namespace.strip())
        self.credential = credential
        self.client_options: Mapping[str, Any] = MappingProxyType(client_options)
        self._tls: ssl.SSLContext | None = None
        self.uses_websocket = _uses_websocket(client_options)
        #: What the connections go through, administration included; the environment is read once, here.
        self.proxy = self._find_proxy()

    @classmethod
    def from_connection_string(cls, text: str, **client_options: Any) -> Namespace:
        """The namespace of a connection string, with an access key or a shared access signature.

        `UseDevelopmentEmulator=true` means plain text. With azure-servicebus before 7.14, which speaks TLS only, give
        `connection_verify` as well: it then connects to the same port over TLS.

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
    def of(cls, given: NamespaceLike, **client_options: Any) -> Namespace:
        """A namespace from its connection string or from (host, credential); a `Namespace` keeps its own options.

        Raises:
            ValueError: a part of the connection string is missing or malformed.
            TypeError: it is none of these.
        """
        if isinstance(given, Namespace):
            return given
        if isinstance(given, str):
            return cls.from_connection_string(given, **client_options)
        if isinstance(given, tuple) and len(given) == 2:
            return cls(*given, **client_options)
        raise TypeError(
            "a namespace is given as a connection string, as (fully_qualified_namespace, credential) or as Namespace,"
            f" not as a {type(given).__name__}"
        )

    @property
    def use_tls(self) -> bool:
        """False for a development namespace, which is spoken to in plain text."""
        return bool(self.client_options.get("use_tls", True))

    @property
    def entity_path(self) -> str | None:
        """The only entity that the connection string is good for, if it names one."""
        return self.client_options.get("entity_name")

    @property
    def name(self) -> str | None:
        """The first label of the host; None if the host is an address, and only the namespace itself knows."""
        return primary_name_of(self.fully_qualified_namespace)

    def __repr__(self) -> str:
        return f"Namespace({self.fully_qualified_namespace!r})"

    # ---- the SDK's clients ----

    def sync_client(self, run: Run | None = None, **overrides: Any) -> ServiceBusClient:
        """The SDK's synchronous client; `run` awaits the tokens of an asynchronous credential."""
        return ServiceBusClient(**self.sync_arguments(run, **overrides))

    def async_client(self, **overrides: Any) -> AsyncServiceBusClient:
        """The SDK's asynchronous client."""
        return AsyncServiceBusClient(**self.async_arguments(**overrides))

    def check_options(self) -> None:
        """Refuse client options that the installed SDK ignores, and a place that it cannot connect to that way.

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
        """What `ServiceBusClient`, or a class made from it, is called with.

        Raises:
            ValueError: the installed SDK would ignore an option.
            TypeError: the credential is asynchronous, and there is no `run`.
        """
        credential = self.credential
        if not _is_fixed(credential) and _is_async(credential):
            if run is None:
                raise TypeError("credential is asynchronous: a synchronous client needs a synchronous one")
            credential = _Blocking(credential, run)
        elif not _is_fixed(credential):
            credential = BoundedCredential(credential, TOKEN_TIMEOUT)
        http_proxy = None if self.proxy is None else self.proxy.for_sync_client()
        return self._arguments(credential, http_proxy, overrides)

    def async_arguments(self, **overrides: Any) -> dict[str, Any]:
        """The same for the asynchronous client."""
        http_proxy = None if self.proxy is None else self.proxy.for_async_client()
        if self.proxy is not None and self.proxy.username is not None:
            hide_proxy_login()
        return self._arguments(self._async_credential(), http_proxy, overrides)

    def _arguments(
        self, credential: Any, http_proxy: dict[str, Any] | None, overrides: dict[str, Any]
    ) -> dict[str, Any]:
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
        """The SDK's administration client; call it where an event loop runs. One request is one attempt."""
        from .administration import Administration, AdministrationTransport, NoToken

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
        """One for all connections: the SDK would read all certificate authorities for each, plain ones too."""
        if self._tls is None:
            given: ssl.SSLContext | None = self.client_options.get("ssl_context")
            if given is None and self.use_tls:
                given = client_tls(self.client_options.get("connection_verify"), HANDSHAKE_TIMEOUT)
            self._tls = given or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return self._tls

    @property
    def _address(self) -> dict[str, str]:
        return {"fully_qualified_namespace": self.fully_qualified_namespace}

    def _async_credential(self) -> Any:
        credential = self.credential
        if _is_fixed(credential) or _is_async(credential):
            return credential
        return AwaitedCredential(credential, TOKEN_TIMEOUT)

    def _find_proxy(self) -> HttpProxy | None:
        """The proxy of the options, or for WebSockets over TLS that of HTTPS_PROXY; none if NO_PROXY names the host.

        The SDK's synchronous client reads both variables, its asynchronous one neither. One rule holds for all.
        """
        given = self.client_options.get("http_proxy")
        proxy = None if given is None else HttpProxy.of_option(given)
        if proxy is None and self.uses_websocket and self.use_tls:
            proxy = HttpProxy.of_environment()
        return None if proxy is None or is_direct(host_of(self.fully_qualified_namespace)) else proxy

    def _administration_proxies(self) -> dict[str, str] | None:
        """For requests over HTTP; without an entry the SDK reads the environment."""
        if self.proxy is None:
            return None
        return dict.fromkeys(("https", "http"), self.proxy.url_with_login)


class _Blocking:
    """An asynchronous token credential for a synchronous client."""

    def __init__(self, credential: Any, run: Run) -> None:
        self._credential = credential
        self._run = run

    def get_token(self, *scopes: str, **options: Any) -> Any:
        return self._run(self._credential.get_token(*scopes, **options), TOKEN_TIMEOUT)


def is_credential(value: Any) -> bool:
    """Whether this can be used to log in to a namespace."""
    return _is_fixed(value) or callable(getattr(value, "get_token", None))


def check_credential(credential: Any) -> None:
    """Raise `TypeError` if this is no credential. The message does not show it: it may be a key."""
    if not is_credential(credential):
        raise TypeError(
            "credential must have get_token, or be an AzureNamedKeyCredential or AzureSasCredential,"
            f" not a {type(credential).__name__}"
        )


def _uses_websocket(options: Mapping[str, Any]) -> bool:
    """Whether the SDK takes WebSockets: on request, for a proxy, and by default for a `custom_endpoint_address`.

    Raises:
        TypeError: `transport_type` is none.
    """
    transport = options.get("transport_type")
    if transport is not None and not isinstance(transport, TransportType):
        raise TypeError(
            f"transport_type must be TransportType.Amqp or TransportType.AmqpOverWebsocket, not {transport!r}"
        )
    if options.get("http_proxy") is not None or transport is TransportType.AmqpOverWebsocket:
        return True
    return transport is None and bool(options.get("custom_endpoint_address"))


def _is_fixed(credential: Any) -> bool:
    """Whether tokens are made from what is at hand, without asking anybody."""
    return isinstance(credential, (AzureNamedKeyCredential, AzureSasCredential))


def _is_async(credential: Any) -> bool:
    return inspect.iscoroutinefunction(credential.get_token)


#: A namespace, its connection string, or its host and a credential.
NamespaceLike = Namespace | str | tuple[str, Any]
