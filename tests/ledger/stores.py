"""Stores for tests: the memory of this process, and one that hangs or fails on demand, both by way of fsspec."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from twinbus.ledger.store import Store

SECONDS = 60.0


def memory_url() -> str:
    return f"memory://ledger-{uuid.uuid4().hex}"


class Obstinate(MemoryFileSystem):
    """Keeps files in memory, unless told to hang or to fail."""

    protocol = "obstinate"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False

    let_go = threading.Event()
    hangs = threading.Event()
    tried = threading.Event()
    error: Exception | None = None

    @classmethod
    def reset(cls) -> str:
        """A URL that works."""
        cls.let_go = threading.Event()
        cls.let_go.set()
        cls.hangs = threading.Event()
        cls.error = None
        cls.tried = threading.Event()
        return f"obstinate://ledger-{uuid.uuid4().hex}"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        kind = type(self)
        if not kind.let_go.is_set():
            kind.hangs.set()
            assert kind.let_go.wait(SECONDS)
        kind.tried.set()
        if kind.error is not None:
            raise kind.error
        super().pipe_file(path, value, mode=mode, **options)


fsspec.register_implementation("obstinate", Obstinate, clobber=True)


class Killed(BaseException):
    """Stands for the end of the process."""


class MortalStore:
    """A store whose process ends after a number of file changes."""

    def __init__(self, store: Store, changes: int) -> None:
        self._store = store
        self._left = changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _change(self, change: Callable[[], None]) -> None:
        if self._left == 0:
            raise Killed
        self._left -= 1
        change()

    def put(self, folder: str, name: str, data: bytes) -> None:
        self._change(lambda: self._store.put(folder, name, data))

    def delete(self, folder: str, name: str) -> None:
        self._change(lambda: self._store.delete(folder, name))


def until(condition: Callable[[], bool]) -> None:
    """Return when something that happens in another thread has happened."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
