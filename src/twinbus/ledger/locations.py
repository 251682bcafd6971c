r"""Translates a path or URL into the forms that fsspec and Spark expect. Pure: opens nothing.

| given | fsspec | Spark |
|---|---|---|
| `ledger`, `C:\ledger`, `file:///a/ledger` | the absolute path | `file:///…` |
| `s3://b/p`, `s3a://b/p` | `s3://b/p` | `s3a://b/p` |
| `abfss://c@account.dfs.core.windows.net/p`, also `abfs://`, `az://` | `abfs://c/p` and `account_name` | as given |
| `abfs://c/p`, `az://c/p` with the option `account_name` | `abfs://c/p` | `abfss://c@account.dfs.core.windows.net/p` |
| `gs://b/p`, `gcs://b/p` | `gs://b/p` | `gs://b/p` |
| `dbfs:/p`, `/dbfs/p` | `/dbfs/p` | `dbfs:/p` |
| `/Volumes/…`, `dbfs:/Volumes/…` | `/Volumes/…` | `/Volumes/…` |
| any other URL | as given | as given |
"""

from __future__ import annotations

import ntpath
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://(.*)", re.DOTALL)
_CHAINED = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)::.*://", re.DOTALL)
_WITHOUT_SLASHES = re.compile(r"(dbfs|file):(/(?!/).*)", re.DOTALL | re.IGNORECASE)
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_AZURE_HOST = re.compile(r"(?P<account>[a-z0-9\-]+)(?P<zone>\.[a-z0-9\-]+)?\.(?:dfs|blob)\.(?P<cloud>[a-z0-9.\-]+)")
_AZURE_CLOUD = "core.windows.net"
_BUCKETS = {"s3": ("s3", "s3a"), "s3a": ("s3", "s3a"), "gs": ("gs", "gs"), "gcs": ("gs", "gs")}
_AZURE = ("abfs", "abfss", "az")
_GLOB = str.maketrans({character: f"\\{character}" for character in "{}[]*?\\"})


@dataclass(frozen=True, slots=True)
class Location:
    """A path or URL, in the forms of fsspec and Spark."""

    #: The URL's scheme; "file" for a local path.
    scheme: str
    #: A URL or an absolute local path.
    fsspec: str
    #: For messages to people: without password and query.
    shown: str
    #: Options for fsspec that the URL implies.
    options: Mapping[str, str] = field(default_factory=dict)
    spark_url: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether fsspec's form is a local path, which includes mounted cloud storage."""
        return self.scheme == "file"

    @property
    def spark(self) -> str:
        """A URL or path for Spark's file systems; see `escape_glob`.

        Raises:
            ValueError: The URL of an Azure container does not name the storage account.
        """
        if self.spark_url is None:
            raise ValueError(
                f"{self.shown} does not name a storage account, which Spark needs:"
                f" give abfss://CONTAINER@ACCOUNT.dfs.{_AZURE_CLOUD}/PATH, or the storage option account_name"
            )
        return self.spark_url


def locate(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    working_folder: str | None = None,
    is_windows: bool = os.name == "nt",
) -> Location:
    """Return the location of a path or URL.

    Args:
        storage_options: Only `account_name` is used: the storage account of an Azure container.
        working_folder: The base of relative paths; the current folder by default.
        is_windows: Whether a path without a drive is a Windows path.

    Raises:
        ValueError: The URL is malformed; the text does not contain its user, password or query.
    """
    text = os.fspath(url)
    if not text:
        raise ValueError("the ledger's path must not be empty")
    if "\0" in text:
        raise ValueError("a path must not contain a NUL character")
    if (chained := _CHAINED.match(text)) is not None:
        return Location(chained[1].lower(), text, without_secrets(text), spark_url=text)
    if (short := _WITHOUT_SLASHES.fullmatch(text)) is not None:
        return _on_databricks(short[2]) if short[1].lower() == "dbfs" else _file(unquote(short[2]), is_windows)
    match = _SCHEME.fullmatch(text)
    if match is None:
        return _path(text, working_folder or os.getcwd(), is_windows)
    scheme, address = match[1].lower(), match[2]
    if scheme in ("file", "local"):
        host, _, path = address.partition("/")
        if host not in ("", "localhost"):
            raise ValueError(f"a {scheme}:// URL must not name a host: use {scheme}:///PATH, with three slashes")
        return _file("/" + unquote(path), is_windows)
    if scheme == "dbfs":
        return _on_databricks("/" + address.lstrip("/"))
    if scheme in _BUCKETS:
        return _bucket(scheme, address)
    if scheme in _AZURE:
        return _azure(scheme, address, storage_options or {})
    return Location(scheme, text, without_secrets(text), spark_url=text)


def escape_glob(path: str) -> str:
    """Return a path with glob characters escaped, for Spark's readers."""
    return path.translate(_GLOB)


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query, which may hold a signature.

    Keeps the container of `abfss://container@account…`, which has the form of a user.
    """
    prefix, separator, address = url.rpartition("://")
    if not separator:
        return url
    authority, slash, path = address.partition("?")[0].partition("/")
    user, at, host = authority.rpartition("@")
    container = f"{user.partition(':')[0]}@" if at and prefix.lower() in _AZURE else ""
    # In a chained URL the prefix contains other URLs.
    return f"{without_secrets(prefix)}://{container}{host}{slash}{path}"


def _path(text: str, working_folder: str, is_windows: bool) -> Location:
    if is_windows or _WINDOWS.match(text):
        return _windows(ntpath.normpath(ntpath.join(working_folder, text)))
    path = "/" + posixpath.normpath(posixpath.join(working_folder, text)).lstrip("/")
    if path.startswith("/dbfs/"):
        return _on_databricks(path.removeprefix("/dbfs"))
    if path.startswith("/Volumes/"):
        return _on_databricks(path)
    return _posix(path)


def _file(path: str, is_windows: bool) -> Location:
    """Return the location of a file URL's path, such as /a/b or /C:/a/b."""
    if _WINDOWS.match(path[1:]):
        return _windows(ntpath.normpath(path[1:]))
    return _windows(ntpath.normpath(path)) if is_windows else _posix("/" + posixpath.normpath(path).lstrip("/"))


def _posix(path: str) -> Location:
    # Not percent-encoded: Hadoop does not decode URLs.
    return Location("file", path, path, spark_url=f"file://{path}")


def _windows(path: str) -> Location:
    forward = path.replace("\\", "/")
    return Location("file", path, path, spark_url=f"file://{forward}" if forward[0] == "/" else f"file:///{forward}")


def _on_databricks(path: str) -> Location:
    """Return the location of dbfs:/path. Databricks mounts it at /dbfs, and volumes at /Volumes."""
    path = "/" + posixpath.normpath(path).lstrip("/")
    if path.startswith("/Volumes/"):
        return Location("file", path, path, spark_url=path)
    return Location("file", f"/dbfs{path}".rstrip("/"), f"dbfs:{path}", spark_url=f"dbfs:{path}")


def _bucket(scheme: str, address: str) -> Location:
    bucket, path = _authority_and_path(scheme, address)
    if "@" in bucket:
        raise ValueError(f"a {scheme}:// URL must not have a user or password: give them as storage options")
    if not bucket:
        raise ValueError(f"a {scheme}:// URL must name a bucket: {scheme}://BUCKET/PATH")
    fsspec_scheme, spark_scheme = _BUCKETS[scheme]
    url = f"{fsspec_scheme}://{bucket}{path}"
    return Location(fsspec_scheme, url, url, spark_url=f"{spark_scheme}://{bucket}{path}")


def _azure(scheme: str, address: str, storage_options: Mapping[str, Any]) -> Location:
    authority, path = _authority_and_path(scheme, address)
    container, at, host = authority.partition("@")
    if ":" in container or "@" in host:
        raise ValueError(f"a {scheme}:// URL must not have a password: give it as a storage option")
    if not container or "." in container or (at and not host):
        raise ValueError(
            f"a {scheme}:// URL must name a container, and optionally its account:"
            f" {scheme}://CONTAINER/PATH or {scheme}://CONTAINER@ACCOUNT.dfs.{_AZURE_CLOUD}/PATH"
        )
    account_option = storage_options.get("account_name")
    url = f"abfs://{container}{path}"
    # With TLS, unless the URL asks for none.
    spark_scheme = "abfs" if scheme == "abfs" and at else "abfss"
    if not at:
        account_host = f"{account_option}.dfs.{_AZURE_CLOUD}"
        spark_url = f"{spark_scheme}://{container}@{account_host}{path}" if account_option else None
        return Location("abfs", url, f"{scheme}://{container}{path}", spark_url=spark_url)
    parts = _AZURE_HOST.fullmatch(host.lower())
    if parts is None:  # such as the host of an emulator
        full_url = f"{spark_scheme}://{container}@{host}{path}"
        return Location("abfs", url, full_url, spark_url=full_url)
    account, zone, cloud = parts["account"], parts["zone"] or "", parts["cloud"]
    if account_option and account_option != account:
        raise ValueError(f"the storage option account_name must be {account}, as in the URL, or be left out")
    full_url = f"{spark_scheme}://{container}@{account}{zone}.dfs.{cloud}{path}"
    options = {"account_name": account}
    if zone or cloud != _AZURE_CLOUD:
        options["account_host"] = f"{account}{zone}.blob.{cloud}"
    return Location("abfs", url, full_url, options, full_url)


def _authority_and_path(scheme: str, address: str) -> tuple[str, str]:
    """Return the authority and the path of a URL. The path is empty, or begins but does not end with a slash.

    Resolves `..` and repeated slashes, because Hadoop does so and fsspec does not. Raises `ValueError` for a query.
    """
    if "?" in address:
        raise ValueError(f"a {scheme}:// URL must not have a query: give signatures and the like as storage options")
    authority, _, path = address.partition("/")
    return authority, posixpath.normpath("/" + path.lstrip("/")).rstrip("/")
