"""Provides stores for tests: in memory, hanging or failing on demand, and ending the process."""

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
    """Return the URL of a new ledger in memory."""
    return f"memory://ledger-{uuid.uuid4().hex}"


class Obstinate(MemoryFileSystem):
    """A file system in memory whose writes hang or fail on demand.

    Writes hang while `let_go` is not set, and raise `error` if it is set. `hangs` is set when a write hangs;
    `tried` is set when a write is about to end or fail.
    """

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
        """Reset the behaviour to normal; return the URL of a new ledger."""
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
    """Simulates the end of the process."""


class MortalStore:
    """A store that raises `Killed` after a number of file changes."""

    def __init__(self, store: Store, changes: int) -> None:
        self._store = store
        self._remaining = changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _change(self, change: Callable[[], None]) -> None:
        if self._remaining == 0:
            raise Killed
        self._remaining -= 1
        change()

    def put(self, folder: str, name: str, data: bytes) -> None:
        self._change(lambda: self._store.put(folder, name, data))

    def delete(self, folder: str, name: str) -> None:
        self._change(lambda: self._store.delete(folder, name))


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, which another thread makes true."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
