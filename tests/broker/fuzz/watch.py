"""Sees whether anything unforeseen happens: errors in the log, loops that hang, memory that grows."""

from __future__ import annotations

import faulthandler
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

HANG_SECONDS = 120.0
#: Memory may grow by this much after the first fifth: the allocator keeps some of what it had.
MAX_GROWTH = 24 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory() -> int:
    """The bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


class Watch(logging.Handler):
    """Watches while its block runs. A hang ends the process with the stacks of all threads, if `hangs_end`."""

    def __init__(self, *, hangs_end: bool = False, say: Callable[[str], None] | None = None) -> None:
        super().__init__(logging.ERROR)
        self._unforeseen: list[str] = []
        self._hangs_end = hangs_end
        self._say = say
        self._next_alarm = 0.0
        self.sizes: list[int] = []
        self._loggers = [logging.getLogger(name) for name in ("twinbus", "asyncio", "aiohttp")]

    def __enter__(self) -> Self:
        for logger in self._loggers:
            logger.addHandler(self)
        self._alive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)
        if self._hangs_end:
            faulthandler.cancel_dump_traceback_later()

    def emit(self, record: logging.LogRecord) -> None:
        self._unforeseen.append(self.format(record))

    def _alive(self) -> None:
        """Something was done: now nothing has hung, and once a second the alarm is set anew."""
        if self._hangs_end and time.monotonic() >= self._next_alarm:
            self._next_alarm = time.monotonic() + 1
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)

    def check(self, what: str, is_wrong: bool = False) -> None:
        """Raise `AssertionError`, naming what is going on, if something unforeseen has happened."""
        self._alive()
        assert not self._unforeseen, f"{what}: {self._unforeseen[0]}"
        assert not is_wrong, f"{what}: answered with an error that nobody foresaw"

    def generation(self, done: int) -> None:
        """Another part is done, and everything of it thrown away: look at the memory."""
        self.sizes.append(memory())
        if self._say is not None:
            self._say(f"{done:>9,} done, {self.sizes[-1] / 2**20:6.1f} MB")

    @property
    def growth(self) -> int:
        """By how many bytes the memory has grown since the first fifth."""
        settled = self.sizes[len(self.sizes) // 5]
        return self.sizes[-1] - settled
