"""Connects the installed SDK to embedded namespaces, in plain text if it can and else over TLS.

azure-servicebus before 7.14 speaks TLS only, and 7.13 dials no port but 5671. So its namespaces get addresses of their
own out of 127.0.0.0/8, which works on Linux.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from twinbus.emulator import Namespace, NamespaceConfig
from twinbus.pairing.sdk.version import INSTALLED, Version, has_option

#: The oldest version that twinbus supports.
OLDEST: Version = (7, 12)
SPEAKS_PLAIN_TEXT = has_option("use_tls")
TLS_PORT = 5671
_hosts = itertools.cycle(range(1, 255))


def needs_sdk(version: Version, reason: str) -> pytest.MarkDecorator:
    """Skips a test of something that older versions do not have."""
    wanted = ".".join(map(str, version))
    return pytest.mark.skipif(version > INSTALLED, reason=f"needs azure-servicebus>={wanted}: {reason}")


needs_plain_text = needs_sdk((7, 14), "older versions speak TLS only")


def reachable(config: NamespaceConfig | str, **options: Any) -> Namespace:
    """An embedded namespace that the installed SDK can connect to; options are those of `Namespace`."""
    if SPEAKS_PLAIN_TEXT:
        return Namespace(config, **options)
    host, port = free_address()
    config = replace(NamespaceConfig(config) if isinstance(config, str) else config, port=port)
    options.setdefault("certificate_folder", _certificate_folder())
    return Namespace(config, host=host, certificate_names=(host,), **options)


def free_address() -> tuple[str, int]:
    """Where something can listen that the SDK is to connect to; port 0 stands for any."""
    if SPEAKS_PLAIN_TEXT or INSTALLED < (7, 13):
        return "127.0.0.1", 0
    process = os.getpid()
    return f"127.{1 + (process >> 8) % 254}.{process % 256}.{next(_hosts)}", TLS_PORT


def client_options(namespace: Namespace) -> dict[str, Any]:
    """What a client of the SDK or of twinbus needs besides the connection string."""
    return {} if SPEAKS_PLAIN_TEXT else {"connection_verify": ca_file(namespace)}


def address_options(namespace: Namespace) -> dict[str, Any]:
    """The same for a client that is given the address and a credential in place of a connection string."""
    return {"use_tls": False} if SPEAKS_PLAIN_TEXT else client_options(namespace)


def ca_file(namespace: Namespace) -> str:
    """The certificate authority of a namespace that speaks TLS."""
    assert namespace.certificate is not None
    return str(namespace.certificate.ca_file)


@cache
def _certificate_folder() -> Path:
    """Shared by the namespaces of this process, so that all of them have the same authority."""
    folder = tempfile.mkdtemp(prefix="twinbus-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
