"""Watches a fuzz run for logged errors, hangs and growing memory."""

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
#: Allowed memory growth after the first fifth: the allocator keeps some freed memory.
MAX_GROWTH = 24 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory() -> int:
    """The resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


class Watch(logging.Handler):
    """Watches while its block runs. With `exit_on_hang`, a hang ends the process with all stacks."""

    def __init__(self, *, exit_on_hang: bool = False, say: Callable[[str], None] | None = None) -> None:
        super().__init__(logging.ERROR)
        self._errors: list[str] = []
        self._exit_on_hang = exit_on_hang
        self._say = say
        self._next_alarm = 0.0
        self.sizes: list[int] = []
        self._loggers = [logging.getLogger(name) for name in ("twinbus", "asyncio", "aiohttp")]

    def __enter__(self) -> Self:
        for logger in self._loggers:
            logger.addHandler(self)
        self._reset_alarm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)
        if self._exit_on_hang:
            faulthandler.cancel_dump_traceback_later()

    def emit(self, record: logging.LogRecord) -> None:
        self._errors.append(self.format(record))

    def _reset_alarm(self) -> None:
        """Reset the hang alarm, at most once a second."""
        if self._exit_on_hang and time.monotonic() >= self._next_alarm:
            self._next_alarm = time.monotonic() + 1
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)

    def check(self, what: str, is_wrong: bool = False) -> None:
        """Raise `AssertionError`, naming `what` runs, if an error was logged or answered."""
        self._reset_alarm()
        assert not self._errors, f"{what}: {self._errors[0]}"
        assert not is_wrong, f"{what}: answered with an internal error"

    def generation(self, done: int) -> None:
        """Record the memory after a generation was discarded."""
        self.sizes.append(memory())
        if self._say is not None:
            self._say(f"{done:>9,} done, {self.sizes[-1] / 2**20:6.1f} MB")

    @property
    def growth(self) -> int:
        """Memory growth in bytes since the first fifth."""
        settled = self.sizes[len(self.sizes) // 5]
        return self.sizes[-1] - settled
