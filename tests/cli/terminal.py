"""A command in a terminal, as a person has one: it can be read, typed to and interrupted."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

SECONDS = 180.0  # for what takes a few, on a machine that has much else to do
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\r")


class Terminal:
    """`twinbus …` in a terminal of 80 columns. Used as a context it leaves no process behind."""

    def __init__(self, *arguments: str, cwd: Path, env: Mapping[str, str], columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "twinbus", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**env, "TERM": "xterm", "COLUMNS": str(columns)},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it
        )
        os.close(slave)
        self.raw = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    @property
    def text(self) -> str:
        """What was written so far, without what moves the cursor or changes colours."""
        return _CONTROL.sub("", self.raw)

    def wait_for(self, words: str) -> str:
        """Read until these words were written; all that was."""
        while words not in self.text:
            assert self._read(), f"{words!r} was not written: {self.text}"
        return self.text

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.type("\x03")

    def end(self) -> tuple[int, str]:
        """Read to the end; the exit code, and all that was written."""
        while self._read():
            pass
        return self._process.wait(SECONDS), self.text

    def _read(self) -> bool:
        """Something more; False at the end."""
        deadline = time.monotonic() + SECONDS
        ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
        assert ready, f"nothing was written for {SECONDS:g} s: {self.text}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # what Linux says when the other end is closed
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)
