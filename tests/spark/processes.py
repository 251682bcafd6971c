"""A command as a process with all that Spark starts for it: found again by a mark in the environment."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path

from tests.pipeline.drain.backlogs import Backlogs

SECONDS = 300.0  # for what takes a minute on a machine that has nothing else to do


class Marked:
    """`python -m …` in a process group of its own, as a terminal would start it."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._mark = f"twinbus-test-{uuid.uuid4().hex}"
        self._command = [sys.executable, "-m", *arguments]
        self._environment = {**os.environ, "NO_COLOR": "1", **environment, "TWINBUS_TEST_MARK": self._mark}
        self.process: asyncio.subprocess.Process

    async def start(self, folder: Path) -> Marked:
        # Files, not pipes: a process that outlives its parent would keep a pipe open.
        self._output, self._errors = folder / f"{self._mark}.out", folder / f"{self._mark}.err"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = await asyncio.create_subprocess_exec(
                *self._command, env=self._environment, stdout=output, stderr=errors, start_new_session=True
            )
        return self

    async def ended(self) -> tuple[int, str, str]:
        """Its exit code, output and errors."""
        try:
            async with asyncio.timeout(SECONDS):
                code = await self.process.wait()
        except TimeoutError:
            self.kill_all()
            raise
        return code, self._output.read_text(), self._errors.read_text()

    def running(self, *words: str) -> list[int]:
        """The processes that belong to it and whose command line has all these words."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    is_ours = self._mark.encode() in (entry / "environ").read_bytes()
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:  # it has just ended
                    continue
                if is_ours and all(word in command for word in words):
                    found.append(int(entry.name))
        return found

    def python_workers(self) -> list[int]:
        """The processes that Spark's Python daemons have forked: the tasks run in them."""
        daemons = set(self.running("pyspark.daemon"))
        return sorted(pid for pid in daemons if _parent(pid) in daemons)

    def executors(self) -> list[int]:
        return self.running("CoarseGrainedExecutorBackend")

    def kill_all(self) -> None:
        for pid in self.running():
            _kill(pid)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def syphon(pair: Backlogs, *arguments: str) -> Marked:
    """`twinbus syphon --spark …` for a pair of namespaces with three backlog queues."""
    return Marked(
        "twinbus",
        "syphon",
        "--spark",
        "--queues",
        "3",
        "--lock",
        str(pair.lock_seconds),
        *arguments,
        TWINBUS_PRIMARY=pair.primary.connection_string,
        TWINBUS_SECONDARY=pair.secondary.connection_string,
    )
