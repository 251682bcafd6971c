"""Reads the arguments of a paired client, in the forms of twinbus and of the SDK."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.credentials_async import AsyncTokenCredential

from twinbus.ledger.recorder import Recorder
from twinbus.pairing.checks import check_type
from twinbus.pairing.connection_strings import ConnectionString
from twinbus.pairing.namespaces import Namespace, check_credential, is_credential
from twinbus.pairing.options import SendAvailabilityOptions

Credential = TokenCredential | AsyncTokenCredential | AzureNamedKeyCredential | AzureSasCredential

#: Where the secondary is if no argument says so: its connection string, or its host, for the primary's credential.
SECONDARY_VARIABLE = "TWINBUS_SECONDARY"
SECONDARY_NAMESPACE_VARIABLE = "TWINBUS_SECONDARY_NAMESPACE"
#: What `twinbus serve` prints with them: the name of a primary that is called by its address.
PRIMARY_NAME_VARIABLE = "TWINBUS_PRIMARY_NAME"

_ARGUMENTS = frozenset({"primary", "secondary", "options", "fully_qualified_namespace", "credential"})
#: Options that say where one namespace is, and so hold for the primary only.
_OF_THE_PRIMARY = frozenset({"custom_endpoint_address", "entity_name"})


class Arguments(NamedTuple):
    """The two namespaces, and how they are paired."""

    primary: Namespace
    secondary: Namespace
    options: SendAvailabilityOptions


def read_arguments(
    positional: Sequence[Any], named: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> Arguments:
    """The namespaces and options that a paired client is given.

    `positional` is (primary, secondary, options) or, as the SDK has it, (fully_qualified_namespace, credential,
    options). `named` has others of these, and the options of the SDK's client.

    Raises:
        TypeError: an argument is missing, of a wrong type, or given twice. The message names it.
        ValueError: a connection string is malformed, or there is no secondary.
    """
    if len(positional) > 3:
        raise TypeError(f"a paired client takes at most 3 arguments without a name, not {len(positional)}")
    given = {name: value for name, value in named.items() if name in _ARGUMENTS and value is not None}
    client_options = {name: value for name, value in named.items() if name not in _ARGUMENTS}
    first, second, options = [*positional, None, None, None][:3]
    _put(given, "primary", first)
    _put(given, "credential" if is_credential(second) else "secondary", second)
    _put(given, "options", options)
    _put(given, "primary", given.pop("fully_qualified_namespace", None), "as fully_qualified_namespace")
    options = given.get("options") or SendAvailabilityOptions()
    check_type("options", options, SendAvailabilityOptions)
    primary = _primary(given, client_options)
    secondary = given.get("secondary")
    if client_options and isinstance(given["primary"], Namespace) and isinstance(secondary, Namespace):
        raise ValueError(
            f"the client options {', '.join(sorted(client_options))} hold for no namespace: give them to each"
            " Namespace, which has options of its own"
        )
    if secondary is not None:
        return Arguments(primary, _secondary("secondary", secondary, given, primary, client_options), options)
    variable = SECONDARY_VARIABLE if _is_connection_string(given["primary"]) else SECONDARY_NAMESPACE_VARIABLE
    text = environment.get(variable, "").strip()
    if not text:
        what = "its connection string" if variable == SECONDARY_VARIABLE else "its host, for the same credential"
        raise ValueError(
            f"secondary is missing: give the secondary namespace as the argument secondary, or {what} in the"
            f" environment variable {variable}"
        )
    if options.primary_name is None and environment.get(PRIMARY_NAME_VARIABLE):
        options = replace(options, primary_name=environment[PRIMARY_NAME_VARIABLE])
    return Arguments(primary, _secondary(variable, text, given, primary, client_options), options)


def check_connection_string(conn_str: Any) -> None:
    """Raise `TypeError` or `ValueError` if it is none. The message shows nothing of it."""
    if not isinstance(conn_str, str):
        raise TypeError(f"conn_str must be a str, the connection string of the primary, not {type(conn_str).__name__}")
    try:
        ConnectionString.parse(conn_str)
    except ValueError as error:
        raise ValueError(f"conn_str: {error}") from None


def check_names(name: Any, client: Any, recorder: Recorder | None) -> None:
    """Refuse what the ledger cannot be told by. Raises `TypeError`."""
    check_type("name", name, str)
    check_type("client", client, str)
    if recorder is not None and not callable(getattr(recorder, "record", None)):
        raise TypeError(f"recorder must have a method record, such as a LedgerWriter, not {type(recorder).__name__}")


def _put(given: dict[str, Any], name: str, value: Any, how: str = "without a name") -> None:
    if value is None:
        return
    if name in given:
        raise TypeError(f"{name} was given twice: as the argument {name}, and {how}")
    given[name] = value


def _primary(given: Mapping[str, Any], client_options: Mapping[str, Any]) -> Namespace:
    primary, credential = given.get("primary"), given.get("credential")
    if primary is None:
        raise TypeError("primary is missing: give the primary namespace, or fully_qualified_namespace and credential")
    if _is_host(primary):
        # Whatever stands beside a host without a credential was meant to be one.
        check_credential(given.get("secondary") if credential is None else credential)
        return Namespace(_without_scheme(primary), credential, **client_options)
    if credential is not None:
        raise TypeError(
            "credential was given twice: primary has one, unless it is the host of a namespace"
            " (fully_qualified_namespace)"
        )
    return _named("primary", primary, client_options)


def _secondary(
    name: str, secondary: Any, given: Mapping[str, Any], primary: Namespace, client_options: Mapping[str, Any]
) -> Namespace:
    client_options = {name: value for name, value in client_options.items() if name not in _OF_THE_PRIMARY}
    # A key is good for its own namespace; a host needs the credential that the primary's host was given with.
    if _is_host(secondary) and not _is_connection_string(given["primary"]):
        return Namespace(_without_scheme(secondary), primary.credential, **client_options)
    return _named(name, secondary, client_options)


def _named(name: str, namespace: Any, client_options: Mapping[str, Any]) -> Namespace:
    try:
        return Namespace.of(namespace, **client_options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _is_connection_string(value: Any) -> bool:
    return isinstance(value, str) and "=" in value


def _is_host(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != "" and "=" not in value


def _without_scheme(host: str) -> str:
    """The host of an address such as sb://contoso.servicebus.windows.net/, which the SDK takes as well."""
    return host.strip().rpartition("://")[2].rstrip("/")
