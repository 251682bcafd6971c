"""A store for a process under test: it does not answer as long as there is a file called `hang` in its folder.

python -m tests.cli.slow_store syphon --ledger slow:///folder …
"""

from __future__ import annotations

import runpy
import time
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


class SlowFileSystem(LocalFileSystem):
    """Local files, written late."""

    protocol = "slow"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("slow://")))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        day = Path(self._strip_protocol(path)).parent
        while (day.parent / "hang").exists():
            time.sleep(0.01)
        day.mkdir(exist_ok=True)
        super().pipe_file(path, value, mode=mode, **options)


if __name__ == "__main__":
    fsspec.register_implementation("slow", SlowFileSystem)
    runpy.run_module("twinbus", run_name="__main__", alter_sys=False)
