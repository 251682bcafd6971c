"""Simulates a full disk: with a small tmpfs where permitted, else with a file size limit on the process."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

import pytest
from tests.emulator.wire import ServeProcess

resource = pytest.importorskip("resource")  # not on Windows

MEGABYTE = 1 << 20
DISK_BYTES = 8 * MEGABYTE


class Disk(Protocol):
    """A disk for a namespace's data that a test can fill."""

    folder: Path

    def fill(self, serve: ServeProcess) -> None:
        """Leave no room for writes of `serve`."""

    def free(self, serve: ServeProcess) -> None:
        """Free the room again."""

    def close(self) -> None:
        """Clean up."""


class SmallFileSystem:
    """A tmpfs filled by other files: the operating system really has no space left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if shutil.which("mount") is None:
            pytest.skip("there is no mount here")
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True, check=False
        )
        if mounted.returncode != 0:
            pytest.skip("file systems cannot be mounted here")
        self._filler = folder / "filler"

    def fill(self, serve: ServeProcess) -> None:
        with self._filler.open("ab", buffering=0) as file:
            for size in (65536, 4096):
                while True:
                    try:
                        written = file.write(bytes(size))
                    except OSError:
                        break
                    if written < size:
                        break

    def free(self, serve: ServeProcess) -> None:
        self._filler.unlink()

    def close(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)


class LimitedProcess:
    """A limit on the process's file size, which makes its writes fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, serve: ServeProcess) -> None:
        self._limit(serve, 0)

    def free(self, serve: ServeProcess) -> None:
        self._limit(serve, resource.RLIM_INFINITY)

    @staticmethod
    def _limit(serve: ServeProcess, size: int) -> None:
        assert serve.process is not None
        resource.prlimit(serve.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def close(self) -> None:
        os.sync()
