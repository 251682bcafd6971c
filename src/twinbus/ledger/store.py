"""Stores a ledger's files in a local folder or at a URL that fsspec supports.

Both give the same guarantee: when `put` returns, the file is durable, and readers never see an incomplete file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import ENOENT
from pathlib import Path
from typing import IO, Any, Protocol

from .layout import parse_temp, temp_name
from .ledger_errors import ExtraMissingError, LedgerNotFoundError
from .locations import Location, locate

# Protocols of fsspec that show incomplete files during a write, or cannot write.
_WITHOUT_ATOMIC_PUT = frozenset(
    [
        "arrow_hdfs",
        "dask",
        "ftp",
        "git",
        "github",
        "hdfs",
        "http",
        "https",
        "sftp",
        "smb",
        "ssh",
        "tar",
        "webhdfs",
        "zip",
    ]
)


class Store(Protocol):
    """Folders of files, one level deep. The folder "" is the root of the ledger."""

    @property
    def place(self) -> str:
        """Folder or URL for messages to people, without secrets."""

    def exists(self) -> bool:
        """Return whether the root exists."""

    def folders(self) -> list[str]:
        """Return the names of the folders."""

    def files(self, folder: str) -> list[str]:
        """Return the names of a folder's files, temporary ones included; none if the folder does not exist."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of a folder's files, by name; none if the folder does not exist."""

    def put(self, folder: str, name: str, data: bytes) -> None:
        """Store a file durably and atomically. May be retried with the same name and data. `data` must be `bytes`."""

    def open(self, folder: str, name: str) -> IO[bytes]:
        """Open a file for reading. Raises `FileNotFoundError`."""

    def delete(self, folder: str, name: str) -> None:
        """Remove a file if it exists."""

    def remove_folder_if_empty(self, folder: str) -> None:
        """Remove a folder that has no files. Does nothing where folders only exist with files."""

    def remove_temporaries(self, folder: str, before_us: int) -> int:
        """Remove temporary files of killed writers from before this time; return their number."""


class LocalStore:
    """A local folder. Writes a temporary file, fsyncs it, renames it and fsyncs the folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._durable_folders: set[Path] = set()

    @property
    def place(self) -> str:
        return str(self._root)

    def exists(self) -> bool:
        return self._root.is_dir()

    def folders(self) -> list[str]:
        with os.scandir(self._root) as entries:
            return sorted(entry.name for entry in entries if _is_kind(entry.is_dir))

    def files(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._root / folder) as entries:
                return sorted(entry.name for entry in entries if _is_kind(entry.is_file))
        except FileNotFoundError:
            return []

    def sizes(self, folder: str) -> dict[str, int]:
        try:
            with os.scandir(self._root / folder) as entries:
                return {entry.name: _size(entry) for entry in entries if _is_kind(entry.is_file)}
        except FileNotFoundError:
            return {}

    def put(self, folder: str, name: str, data: bytes) -> None:
        directory = self._root / folder
        temporary = directory / temp_name(name)
        try:
            self._make_durable_folder(directory)
            with temporary.open("wb", buffering=0) as file:
                unwritten = memoryview(data)
                while unwritten:
                    unwritten = unwritten[file.write(unwritten) :]
                os.fsync(file.fileno())
            temporary.replace(directory / name)
            _fsync_folder(directory)
        except BaseException:
            self._durable_folders.clear()  # a folder may have been removed: check again
            # On a full disk the incomplete file takes up space.
            with suppress(OSError):
                temporary.unlink()
            raise

    def _make_durable_folder(self, directory: Path) -> None:
        """Create a folder, with its parents, so that it survives a power cut."""
        if directory in self._durable_folders:
            return
        if not directory.is_dir():
            self._make_durable_folder(directory.parent)
            directory.mkdir(exist_ok=True)
            _fsync_folder(directory.parent)
        self._durable_folders.add(directory)

    def open(self, folder: str, name: str) -> IO[bytes]:
        path = self._root / folder / name
        if not path.is_file():  # opening a named pipe would block
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(path))
        return path.open("rb")

    def delete(self, folder: str, name: str) -> None:
        (self._root / folder / name).unlink(missing_ok=True)

    def remove_folder_if_empty(self, folder: str) -> None:
        with suppress(OSError):
            (self._root / folder).rmdir()

    def remove_temporaries(self, folder: str, before_us: int) -> int:
        temporaries = [(name, parse_temp(name)) for name in self.files(folder)]
        old = [name for name, target in temporaries if target is not None and target.written_us < before_us]
        for name in old:
            self.delete(folder, name)
        return len(old)


def _is_kind(check: Callable[[], bool]) -> bool:
    """Return the result of `entry.is_dir` or `entry.is_file`; False for a broken or circular link."""
    try:
        return check()
    except OSError:
        return False


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # removed after the listing
        return 0


def _fsync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ObjectStore:
    """A URL that fsspec supports. Writes each file with one atomic PUT under its final name."""

    def __init__(self, location: Location, options: Mapping[str, Any]) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ExtraMissingError from error
        self._fs, self._root = url_to_fs(location.fsspec, **{**location.options, **options})
        self.place = location.shown

    def exists(self) -> bool:
        self._fs.invalidate_cache()
        return bool(self._fs.exists(self._root))

    def folders(self) -> list[str]:
        return sorted(self._entries("", "directory"))

    def files(self, folder: str) -> list[str]:
        return sorted(self.sizes(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        return self._entries(folder, "file")

    def _entries(self, folder: str, kind: str) -> dict[str, int]:
        """Return the sizes of a folder's entries of one kind, "file" or "directory", by name."""
        path = self._path(folder)
        self._fs.invalidate_cache()  # other processes write files too
        try:
            entries = self._fs.ls(path, detail=True)
        except FileNotFoundError:
            return {}
        # Some stores list a folder as an empty object of the same name within itself.
        inside = [entry for entry in entries if entry["type"] == kind and entry["name"].strip("/") != path.strip("/")]
        return {entry["name"].rstrip("/").rpartition("/")[2]: int(entry.get("size") or 0) for entry in inside}

    def _path(self, *parts: str) -> str:
        return "/".join([self._root.rstrip("/"), *filter(None, parts)])

    def put(self, folder: str, name: str, data: bytes) -> None:
        self._fs.pipe_file(self._path(folder, name), data)

    def open(self, folder: str, name: str) -> IO[bytes]:
        file: IO[bytes] = self._fs.open(self._path(folder, name), "rb")
        return file

    def delete(self, folder: str, name: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(folder, name))

    def remove_folder_if_empty(self, folder: str) -> None:
        pass  # object stores have no empty folders

    def remove_temporaries(self, folder: str, before_us: int) -> int:
        return 0  # an atomic PUT needs no temporary files


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Store:
    """Return the store at a path or URL, without connecting or creating anything. `options` are those of fsspec.

    Raises:
        ValueError: The URL is malformed, or its protocol cannot store files atomically.
        ExtraMissingError: fsspec is needed and not installed.
    """
    location = locate(url, options)
    if location.scheme in _WITHOUT_ATOMIC_PUT:
        raise ValueError(
            f"a ledger cannot be kept at {location.scheme}://, where files do not appear whole;"
            " use a local or mounted folder, or an object store"
        )
    if location.is_local:
        return LocalStore(Path(location.fsspec).absolute())
    return ObjectStore(location, options or {})


def require_ledger(store: Store) -> None:
    """Raise `LedgerNotFoundError` if the store does not exist."""
    if not store.exists():
        raise LedgerNotFoundError(f"there is no ledger at {store.place}")
