"""Where a ledger's files are kept: a folder of this machine, or anything with a URL that fsspec knows.

Both promise the same: when `put` returns the file is there for good, and nobody ever sees a part of it.
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

# Their writes become visible bit by bit, or cannot be made at all.
_NO_WHOLE_PUT = frozenset(
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
    """Folders of files, one level deep; the folder "" is the ledger itself."""

    @property
    def place(self) -> str:
        """Where it is, for people: without anything that could be a secret."""

    def exists(self) -> bool:
        """Whether there is anything at all."""

    def folders(self) -> list[str]:
        """The names of the folders."""

    def files(self, folder: str) -> list[str]:
        """The names of a folder's files, temporary ones too; none if there is no such folder."""

    def sizes(self, folder: str) -> dict[str, int]:
        """The sizes in bytes of a folder's files, by name; none if there is no such folder."""

    def put(self, folder: str, name: str, data: bytes) -> None:
        """Store a whole file, durably. May be tried again with the same name and data, which must be `bytes`."""

    def open(self, folder: str, name: str) -> IO[bytes]:
        """Read a file. Raises FileNotFoundError."""

    def delete(self, folder: str, name: str) -> None:
        """Remove a file; it may be gone already."""

    def remove_folder_if_empty(self, folder: str) -> None:
        """Remove a folder that has no files, where folders exist without any."""

    def remove_temporaries(self, folder: str, before_us: int) -> int:
        """Remove what writers that were killed left behind before that time; how many files."""


class LocalStore:
    """A folder: temporary file, fsync, rename, fsync of the folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._durable: set[Path] = set()

    @property
    def place(self) -> str:
        return str(self._root)

    def exists(self) -> bool:
        return self._root.is_dir()

    def folders(self) -> list[str]:
        with os.scandir(self._root) as entries:
            return sorted(entry.name for entry in entries if _leads_to(entry.is_dir))

    def files(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._root / folder) as entries:
                return sorted(entry.name for entry in entries if _leads_to(entry.is_file))
        except FileNotFoundError:
            return []

    def sizes(self, folder: str) -> dict[str, int]:
        try:
            with os.scandir(self._root / folder) as entries:
                return {entry.name: _size(entry) for entry in entries if _leads_to(entry.is_file)}
        except FileNotFoundError:
            return {}

    def put(self, folder: str, name: str, data: bytes) -> None:
        directory = self._root / folder
        temporary = directory / temp_name(name)
        try:
            self._make(directory)
            with temporary.open("wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                os.fsync(file.fileno())
            temporary.replace(directory / name)
            _fsync_folder(directory)
        except BaseException:
            self._durable.clear()  # perhaps somebody removed a folder: look again
            # On a full disk, what was written so far is in the way.
            with suppress(OSError):
                temporary.unlink()
            raise

    def _make(self, directory: Path) -> None:
        """Make a folder that is still there after a power cut."""
        if directory in self._durable:
            return
        if not directory.is_dir():
            self._make(directory.parent)
            directory.mkdir(exist_ok=True)
            _fsync_folder(directory.parent)
        self._durable.add(directory)

    def open(self, folder: str, name: str) -> IO[bytes]:
        path = self._root / folder / name
        if not path.is_file():  # a pipe would never answer
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(path))
        return path.open("rb")

    def delete(self, folder: str, name: str) -> None:
        (self._root / folder / name).unlink(missing_ok=True)

    def remove_folder_if_empty(self, folder: str) -> None:
        with suppress(OSError):
            (self._root / folder).rmdir()

    def remove_temporaries(self, folder: str, before_us: int) -> int:
        temporaries = [(name, parse_temp(name)) for name in self.files(folder)]
        old = [name for name, whole in temporaries if whole is not None and whole.written_us < before_us]
        for name in old:
            self.delete(folder, name)
        return len(old)


def _leads_to(what: Callable[[], bool]) -> bool:
    """Whether an entry of a folder is that, or a link to it. A link that leads nowhere, or to itself, is nothing."""
    try:
        return what()
    except OSError:
        return False


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # removed since it was listed
        return 0


def _fsync_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ObjectStore:
    """Anything that fsspec knows: one PUT under the final name, which shows the file whole or not at all."""

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
        path = self._path(folder)
        self._fs.invalidate_cache()  # other processes write here too
        try:
            entries = self._fs.ls(path, detail=True)
        except FileNotFoundError:
            return {}
        # Some stores list a folder as an empty object of the same name within itself.
        inside = [one for one in entries if one["type"] == kind and one["name"].strip("/") != path.strip("/")]
        return {one["name"].rstrip("/").rpartition("/")[2]: int(one.get("size") or 0) for one in inside}

    def _path(self, *parts: str) -> str:
        return "/".join([self._root.rstrip("/"), *filter(None, parts)])

    def put(self, folder: str, name: str, data: bytes) -> None:
        self._fs.pipe_file(self._path(folder, name), data)

    def open(self, folder: str, name: str) -> IO[bytes]:
        opened: IO[bytes] = self._fs.open(self._path(folder, name), "rb")
        return opened

    def delete(self, folder: str, name: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(folder, name))

    def remove_folder_if_empty(self, folder: str) -> None:
        pass  # a folder is no more than the beginning of names

    def remove_temporaries(self, folder: str, before_us: int) -> int:
        return 0  # there never are any


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Store:
    """The store at a path or URL; `options` go to fsspec's file system. Nothing is connected or created yet.

    Raises:
        ValueError: The URL is malformed, or its protocol cannot store a file in one go.
        ExtraMissingError: fsspec is not installed, and this needs it.
    """
    location = locate(url, options)
    if location.scheme in _NO_WHOLE_PUT:
        raise ValueError(
            f"a ledger cannot be kept at {location.scheme}://, where files do not appear whole;"
            " use a folder, a mounted one perhaps, or an object store"
        )
    if location.is_local:
        return LocalStore(Path(location.fsspec).absolute())
    return ObjectStore(location, options or {})


def require_ledger(store: Store) -> None:
    """Raises `LedgerNotFoundError` if there is nothing at this place."""
    if not store.exists():
        raise LedgerNotFoundError(f"there is no ledger at {store.place}")
