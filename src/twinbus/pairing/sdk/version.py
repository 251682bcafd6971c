"""Reports what the installed version of azure-servicebus can do.

The SDK ignores unknown keyword options. Dropping a timeout or a TLS context silently does harm, so options that some
supported version lacks are checked before they are passed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from azure.servicebus import __version__

#: Major and minor version.
Version = tuple[int, int]

#: Client options that not every supported version has, and the first version that has each.
OPTION_SINCE: Mapping[str, Version] = MappingProxyType(
    {"ssl_context": (7, 13), "use_tls": (7, 14), "try_timeout": (7, 15)}
)
#: The same for client methods.
METHOD_SINCE: Mapping[str, Version] = MappingProxyType(
    {"list_queue_sessions": (7, 15), "list_subscription_sessions": (7, 15)}
)
_INSTEAD = MappingProxyType(
    {
        "ssl_context": "give connection_verify, a file of certificate authorities",
        "use_tls": "give connection_verify, the file of the namespace's certificate authority, to connect over TLS",
        "try_timeout": "leave it out (attempts of paired senders end after the option attempt_timeout)",
    }
)

#: From this version on the SDK drops a port from the host name if it connects over TLS.
_DROPS_TLS_PORT: Version = (7, 13)
_TLS_PORT = 5671
_DEVELOPMENT_PORT = 5672


def version_of(text: str) -> Version:
    """Return major and minor version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(f"expected a version such as 7.15.0, got {text!r}")
    return int(match[1]), int(match[2])


INSTALLED = version_of(__version__)


def has_option(name: str, installed: Version | None = None) -> bool:
    """Return whether the SDK's clients have the option; defaults to the installed version."""
    return (installed or INSTALLED) >= OPTION_SINCE.get(name, (0, 0))


def check_options(options: Mapping[str, Any], installed: Version | None = None) -> None:
    """Refuse options that the installed SDK would ignore.

    Raises:
        ValueError: the message names the option, the versions that have it, and what to do instead.
    """
    installed = installed or INSTALLED
    for name, since in OPTION_SINCE.items():
        value = options.get(name)
        # TLS is what a version without `use_tls` does anyway.
        if value is None or (name == "use_tls" and value) or has_option(name, installed):
            continue
        option = "use_tls=False (plain text, as UseDevelopmentEmulator=true has it)" if name == "use_tls" else name
        raise ValueError(
            f"azure-servicebus {_text(installed)} does not support {option}:"
            f" {_INSTEAD[name]}, or install azure-servicebus>={_text(since)}"
        )


def check_method(name: str, installed: Version | None = None) -> None:
    """Refuse to call a method that the installed SDK does not have.

    Raises:
        NotImplementedError: the message names the version that has it.
    """
    installed, since = installed or INSTALLED, METHOD_SINCE[name]
    if installed < since:
        raise NotImplementedError(
            f"azure-servicebus {_text(installed)} has no {name}: install azure-servicebus>={_text(since)}"
        )


def attempt_bound(seconds: float, installed: Version | None = None) -> dict[str, float]:
    """Return the client option that ends a single attempt, if the SDK has it; set your own deadline, too."""
    return {"try_timeout": seconds} if has_option("try_timeout", installed) else {}


def development_address(
    host: str, port: int | None, options: Mapping[str, Any], installed: Version | None = None
) -> tuple[str, dict[str, Any]]:
    """Return host name and client options for a connection string with `UseDevelopmentEmulator=true`.

    Such a namespace speaks plain text. A version that speaks TLS only uses TLS on the same port if the options name an
    authority to trust; 7.13 can do that on a port other than 5671 only over WebSockets.
    """
    installed = installed or INSTALLED
    authority = host if port is None else f"{host}:{port}"
    is_trusted = any(options.get(name) is not None for name in ("connection_verify", "ssl_context"))
    if has_option("use_tls", installed) or not is_trusted:
        return authority, {"use_tls": False, **options}
    port = _DEVELOPMENT_PORT if port is None else port
    authority = f"{host}:{port}"
    if installed < _DROPS_TLS_PORT or port == _TLS_PORT:
        return authority, dict(options)
    return authority, {"custom_endpoint_address": f"sb://{authority}", **options}


def _text(version: Version) -> str:
    return ".".join(map(str, version))
