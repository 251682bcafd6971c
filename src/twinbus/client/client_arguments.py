"""Reads the arguments of a paired client, in the forms of twinbus and of the SDK."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.credentials_async import AsyncTokenCredential

from twinbus.ledger.recorder import Recorder
from twinbus.pairing.argument_checks import check_type
from twinbus.pairing.namespace import Namespace, check_credential, is_credential
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.servicebus.connection_strings import ConnectionString

Credential = TokenCredential | AsyncTokenCredential | AzureNamedKeyCredential | AzureSasCredential

#: Environment variables for a missing secondary: its connection string, or its host for the primary's credential.
SECONDARY_VARIABLE = "TWINBUS_SECONDARY"
SECONDARY_NAMESPACE_VARIABLE = "TWINBUS_SECONDARY_NAMESPACE"
#: Printed by `twinbus serve` with them: the name of a primary that is given by its address.
PRIMARY_NAME_VARIABLE = "TWINBUS_PRIMARY_NAME"

_ARGUMENTS = frozenset({"primary", "secondary", "options", "fully_qualified_namespace", "credential"})
#: Options that describe one namespace, and so apply to the primary only.
_PRIMARY_ONLY = frozenset({"custom_endpoint_address", "entity_name"})


class Arguments(NamedTuple):
    """The two namespaces, and how they are paired."""

    primary: Namespace
    secondary: Namespace
    options: SendAvailabilityOptions


def read_arguments(
    positional: Sequence[Any], named: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> Arguments:
    """Return the namespaces and options for the arguments of a paired client.

    `positional` is (primary, secondary, options) or, as with the SDK, (fully_qualified_namespace, credential, options).
    `named` has others of these, and the options of the SDK's client.

    Raises:
        TypeError: an argument is missing, of a wrong type, or given twice. The message names it.
        ValueError: a connection string is malformed, or there is no secondary.
    """
    if len(positional) > 3:
        raise TypeError(f"a paired client takes at most 3 arguments without a name, not {len(positional)}")
    arguments = {name: value for name, value in named.items() if name in _ARGUMENTS and value is not None}
    client_options = {name: value for name, value in named.items() if name not in _ARGUMENTS}
    first, second, options = [*positional, None, None, None][:3]
    _set_once(arguments, "primary", first)
    # After a host without a named credential, the second argument must be the credential.
    is_login = is_credential(second) or (
        _is_host(first) and ("credential" not in arguments or "secondary" in arguments)
    )
    _set_once(arguments, "credential" if is_login else "secondary", second)
    _set_once(arguments, "options", options)
    _set_once(arguments, "primary", arguments.pop("fully_qualified_namespace", None), "as fully_qualified_namespace")
    options = arguments.get("options", SendAvailabilityOptions())
    check_type("options", options, SendAvailabilityOptions)
    primary = _primary(arguments, client_options)
    secondary = arguments.get("secondary")
    if client_options and isinstance(arguments["primary"], Namespace) and isinstance(secondary, Namespace):
        raise ValueError(
            f"the client options {', '.join(sorted(client_options))} apply to no namespace: give them to each"
            " Namespace, which has options of its own"
        )
    if secondary is not None:
        return Arguments(primary, _secondary("secondary", secondary, arguments, primary, client_options), options)
    variable = SECONDARY_VARIABLE if _is_connection_string(arguments["primary"]) else SECONDARY_NAMESPACE_VARIABLE
    text = environment.get(variable, "").strip()
    if not text:
        what = "its connection string" if variable == SECONDARY_VARIABLE else "its host, for the same credential"
        raise ValueError(
            f"secondary is missing: give the secondary namespace as the argument secondary, or {what} in the"
            f" environment variable {variable}"
        )
    if options.primary_name is None and environment.get(PRIMARY_NAME_VARIABLE):
        options = replace(options, primary_name=environment[PRIMARY_NAME_VARIABLE])
    return Arguments(primary, _secondary(variable, text, arguments, primary, client_options), options)


def check_connection_string(conn_str: Any) -> None:
    """Raise `TypeError` or `ValueError` if it is not a connection string. The message shows nothing of it."""
    if not isinstance(conn_str, str):
        raise TypeError(f"conn_str must be a str, the connection string of the primary, not {type(conn_str).__name__}")
    try:
        ConnectionString.parse(conn_str)
    except ValueError as error:
        raise ValueError(f"conn_str: {error}") from None


def check_names(name: Any, client: Any, recorder: Recorder | None) -> None:
    """Raise `TypeError` if names or recorder do not fit the ledger."""
    check_type("name", name, str)
    check_type("client", client, str)
    if recorder is not None and not callable(getattr(recorder, "record", None)):
        raise TypeError(f"recorder must have a method record, such as a LedgerWriter, not {type(recorder).__name__}")


def _set_once(arguments: dict[str, Any], name: str, value: Any, how: str = "without a name") -> None:
    if value is None:
        return
    if name in arguments:
        raise TypeError(f"{name} was given twice: as the argument {name}, and {how}")
    arguments[name] = value


def _primary(arguments: Mapping[str, Any], client_options: Mapping[str, Any]) -> Namespace:
    primary, credential = arguments.get("primary"), arguments.get("credential")
    if primary is None:
        raise TypeError("primary is missing: give the primary namespace, or fully_qualified_namespace and credential")
    if _is_host(primary):
        check_credential(credential)
        return Namespace(_without_scheme(primary), credential, **client_options)
    if credential is not None:
        raise TypeError(
            "credential was given twice: primary has one, unless it is the host of a namespace"
            " (fully_qualified_namespace)"
        )
    return _named("primary", primary, client_options)


def _secondary(
    name: str, secondary: Any, arguments: Mapping[str, Any], primary: Namespace, client_options: Mapping[str, Any]
) -> Namespace:
    client_options = {name: value for name, value in client_options.items() if name not in _PRIMARY_ONLY}
    # A key is valid for its own namespace only; a host needs the credential of the primary's host.
    if _is_host(secondary) and not _is_connection_string(arguments["primary"]):
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
    """Return the host of an address such as sb://contoso.servicebus.windows.net/, which the SDK accepts, too."""
    return host.strip().rpartition("://")[2].rstrip("/")
