r"""Translates what a user gives as a path or URL into what fsspec and Spark take. Pure: nothing is opened.

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
    """One place, as fsspec and as Spark name it."""

    #: The URL's scheme; "file" for a path of this machine.
    scheme: str
    #: A URL, or an absolute path of this machine.
    fsspec: str
    #: For people: no password, no query.
    shown: str
    #: What the URL says and fsspec's file system takes as an option.
    options: Mapping[str, str] = field(default_factory=dict)
    spark_url: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether fsspec's form is a path of this machine, perhaps one where a cloud's storage is mounted."""
        return self.scheme == "file"

    @property
    def spark(self) -> str:
        """A URL or path for Spark's file systems; see `escape_glob`.

        Raises:
            ValueError: The URL of an Azure container does not say the storage account.
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
    """Where a path or URL is, for fsspec and for Spark.

    Args:
        storage_options: Only `account_name` matters: the storage account of an Azure container.
        working_folder: What a relative path begins at; the process's own by default.
        is_windows: Whether a path without a drive is one of Windows.

    Raises:
        ValueError: The URL is malformed; the text has no user, password or query in it.
    """
    text = os.fspath(url)
    if not text:
        raise ValueError("the ledger's path must not be empty")
    if "\0" in text:
        raise ValueError("a path must not contain a NUL character")
    if (chained := _CHAINED.match(text)) is not None:
        return Location(chained[1].lower(), text, without_secrets(text), spark_url=text)
    if (found := _WITHOUT_SLASHES.fullmatch(text)) is not None:
        return _on_databricks(found[2]) if found[1].lower() == "dbfs" else _file(unquote(found[2]), is_windows)
    found = _SCHEME.fullmatch(text)
    if found is None:
        return _path(text, working_folder or os.getcwd(), is_windows)
    scheme, rest = found[1].lower(), found[2]
    if scheme in ("file", "local"):
        host, _, path = rest.partition("/")
        if host not in ("", "localhost"):
            raise ValueError(f"a {scheme}:// URL must not name a host: use {scheme}:///PATH, with three slashes")
        return _file("/" + unquote(path), is_windows)
    if scheme == "dbfs":
        return _on_databricks("/" + rest.lstrip("/"))
    if scheme in _BUCKETS:
        return _bucket(scheme, rest)
    if scheme in _AZURE:
        return _azure(scheme, rest, storage_options or {})
    return Location(scheme, text, without_secrets(text), spark_url=text)


def escape_glob(path: str) -> str:
    """A path for Spark's readers, which take some characters for a pattern unless they are escaped."""
    return path.translate(_GLOB)


def without_secrets(url: str) -> str:
    """A URL without its query, which may hold a signature, and without user and password.

    The container of `abfss://container@account…` stays: it is written like a user, but is none.
    """
    before, mark, rest = url.rpartition("://")
    if not mark:
        return url
    place = rest.partition("?")[0]
    host, slash, path = place.partition("/")
    user, at, machine = host.rpartition("@")
    kept = f"{user.partition(':')[0]}@" if at and before.lower() in _AZURE else ""
    # In a chained URL, what comes before is other URLs.
    return f"{without_secrets(before)}://{kept}{machine}{slash}{path}"


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
    """The place of a file URL's path, such as /a/b or /C:/a/b."""
    if _WINDOWS.match(path[1:]):
        return _windows(ntpath.normpath(path[1:]))
    return _windows(ntpath.normpath(path)) if is_windows else _posix("/" + posixpath.normpath(path).lstrip("/"))


def _posix(path: str) -> Location:
    # Hadoop does not decode what is escaped in a URL, so nothing is.
    return Location("file", path, path, spark_url=f"file://{path}")


def _windows(path: str) -> Location:
    forward = path.replace("\\", "/")
    return Location("file", path, path, spark_url=f"file://{forward}" if forward[0] == "/" else f"file:///{forward}")


def _on_databricks(path: str) -> Location:
    """The place of dbfs:/path. Databricks shows its storage as folders of the machine, volumes under the same name."""
    path = "/" + posixpath.normpath(path).lstrip("/")
    if path.startswith("/Volumes/"):
        return Location("file", path, path, spark_url=path)
    return Location("file", f"/dbfs{path}".rstrip("/"), f"dbfs:{path}", spark_url=f"dbfs:{path}")


def _bucket(scheme: str, rest: str) -> Location:
    bucket, path = _parts(scheme, rest)
    if "@" in bucket:
        raise ValueError(f"a {scheme}:// URL must not have a user or password: give them as storage options")
    if not bucket:
        raise ValueError(f"a {scheme}:// URL must name a bucket: {scheme}://BUCKET/PATH")
    for_fsspec, for_spark = _BUCKETS[scheme]
    url = f"{for_fsspec}://{bucket}{path}"
    return Location(for_fsspec, url, url, spark_url=f"{for_spark}://{bucket}{path}")


def _azure(scheme: str, rest: str, storage_options: Mapping[str, Any]) -> Location:
    authority, path = _parts(scheme, rest)
    container, at, host = authority.partition("@")
    if ":" in container or "@" in host:
        raise ValueError(f"a {scheme}:// URL must not have a password: give it as a storage option")
    if not container or "." in container or (at and not host):
        raise ValueError(
            f"a {scheme}:// URL must name a container and perhaps its account:"
            f" {scheme}://CONTAINER/PATH or {scheme}://CONTAINER@ACCOUNT.dfs.{_AZURE_CLOUD}/PATH"
        )
    wanted = storage_options.get("account_name")
    url = f"abfs://{container}{path}"
    # With TLS, unless the user asks for none of it.
    for_spark = "abfs" if scheme == "abfs" and at else "abfss"
    if not at:
        named = f"{for_spark}://{container}@{wanted}.dfs.{_AZURE_CLOUD}{path}" if wanted else None
        return Location("abfs", url, f"{scheme}://{container}{path}", spark_url=named)
    known = _AZURE_HOST.fullmatch(host.lower())
    if known is None:  # an emulator, perhaps
        given = f"{for_spark}://{container}@{host}{path}"
        return Location("abfs", url, given, spark_url=given)
    account, zone, cloud = known["account"], known["zone"] or "", known["cloud"]
    if wanted and wanted != account:
        raise ValueError(f"the storage option account_name must be {account}, as in the URL, or be left out")
    given = f"{for_spark}://{container}@{account}{zone}.dfs.{cloud}{path}"
    options = {"account_name": account}
    if zone or cloud != _AZURE_CLOUD:
        options["account_host"] = f"{account}{zone}.blob.{cloud}"
    return Location("abfs", url, given, options, given)


def _parts(scheme: str, rest: str) -> tuple[str, str]:
    """The authority and the path of a URL, the path with a slash before it and none after.

    Hadoop resolves `..` and repeated slashes, fsspec does not: both must look at the same place.
    """
    if "?" in rest:
        raise ValueError(f"a {scheme}:// URL must not have a query: give signatures and the like as storage options")
    authority, _, path = rest.partition("/")
    return authority, posixpath.normpath("/" + path.lstrip("/")).rstrip("/")
