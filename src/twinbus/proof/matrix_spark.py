"""The syphon on Spark, of which the driver or the Python workers are killed at a bad moment."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from .matrix_children import syphon_of
from .matrix_processes import ChildProcess
from .matrix_traffic import BACKLOG_QUEUES, Traffic
from .matrix_troubles import Stage, Trouble
from .proxy import Ambush
from .proxy_frames import Point

Victim = Literal["driver", "worker"]

ON_SPARK = ("--spark", "--pumps", str(BACKLOG_QUEUES), "--slice", "10", "--memory", "1g")


def has_spark() -> bool:
    """Whether the extra `spark` is installed."""
    return importlib.util.find_spec("pyspark") is not None


class KilledSpark(Trouble):
    """`kill -9` after the primary has accepted a message, and before the backlog hears of it.

    A driver takes all of its Spark with it, and another one is started; for workers Spark has to find new ones.
    """

    firing_seconds = 300.0  # Spark starts slowly on a machine that has other things to do

    def __init__(self, victim: Victim) -> None:
        self._victim = victim
        self._ambushes: dict[str, Ambush] = {}
        self._killed: Counter[str] = Counter()

    async def strike(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            syphon = syphon_of(traffic, *ON_SPARK)

            async def kill(
                _: Callable[[], Awaitable[None]], syphon: ChildProcess = syphon, name: str = traffic.name
            ) -> None:
                self._killed[name] += await self._kill(syphon)

            ambush = Ambush(point=Point.SETTLEMENT, entity=traffic.backlog_root, then=kill)
            self._ambushes[traffic.name] = stage.bench.secondary.proxy.lie_in_wait(ambush)
            await syphon.start()

    async def _kill(self, syphon: ChildProcess) -> int:
        if self._victim == "driver":
            return await syphon.kill()
        workers = python_workers(syphon.process.pid)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        return len(workers)

    async def repair(self, stage: Stage) -> None:
        stage.bench.secondary.proxy.clear()
        if self._victim == "driver":
            for traffic in stage.traffics:
                await syphon_of(traffic, *ON_SPARK).start()

    async def fired(self, traffic: Traffic) -> int:
        return min(self._ambushes[traffic.name].fired, self._killed[traffic.name])


def python_workers(session: int) -> list[int]:
    """The processes in which tasks of a Spark run: what its Python daemons have forked, in a session of processes."""
    parents = dict(_daemons(session))
    return sorted(pid for pid, parent in parents.items() if parent in parents)


def _daemons(session: int) -> list[tuple[int, int]]:
    """The Python daemons and their children, each with its parent."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # Behind the name, which may have anything in it: state, parent, group, session.
                _, parent, _, of_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                command = (folder / "cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            if int(of_session) == session and b"pyspark.daemon" in command:
                found.append((int(folder.name), int(parent)))
    return found
