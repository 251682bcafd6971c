"""Implements faults of the syphon on Spark: a killed driver or killed Python workers."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from ..breaking_proxy import FrameFault
from ..proxy_frames import FaultPoint
from .child_processes import syphon_of
from .faults import FaultScope, MatrixFault
from .namespace_processes import ChildProcess
from .traffic import BACKLOG_QUEUES, Traffic

Victim = Literal["driver", "worker"]

ON_SPARK = ("--spark", "--pumps", str(BACKLOG_QUEUES), "--slice", "10", "--memory", "1g")


def has_spark() -> bool:
    """Whether the extra `spark` is installed."""
    return importlib.util.find_spec("pyspark") is not None


class KilledSpark(MatrixFault):
    """Kills Spark processes after the primary accepted a message, before it is completed in the backlog.

    A killed driver ends the whole Spark application, and another one is started; killed workers are replaced by Spark.
    """

    firing_seconds = 300.0  # Spark starts slowly on a busy machine

    def __init__(self, victim: Victim) -> None:
        self._victim = victim
        self._faults: dict[str, FrameFault] = {}
        self._killed: Counter[str] = Counter()

    async def strike(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            syphon = syphon_of(traffic, *ON_SPARK)

            async def kill(
                _: Callable[[], Awaitable[None]], syphon: ChildProcess = syphon, name: str = traffic.name
            ) -> None:
                self._killed[name] += await self._kill(syphon)

            fault = FrameFault(point=FaultPoint.SETTLEMENT, entity=traffic.backlog_root, then=kill)
            self._faults[traffic.name] = scope.bench.secondary.proxy.arm(fault)
            await syphon.start()

    async def _kill(self, syphon: ChildProcess) -> int:
        if self._victim == "driver":
            return await syphon.kill()
        workers = python_workers(syphon.process.pid)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        return len(workers)

    async def repair(self, scope: FaultScope) -> None:
        scope.bench.secondary.proxy.clear()
        if self._victim == "driver":
            for traffic in scope.traffics:
                await syphon_of(traffic, *ON_SPARK).start()

    async def fired(self, traffic: Traffic) -> int:
        return min(self._faults[traffic.name].fired, self._killed[traffic.name])


def python_workers(session: int) -> list[int]:
    """Process ids of Spark's Python workers: the children of its Python daemons, within a process session."""
    parents = dict(_daemons(session))
    return sorted(pid for pid, parent in parents.items() if parent in parents)


def _daemons(session: int) -> list[tuple[int, int]]:
    """Process ids of the Python daemons and their children, each with its parent."""
    daemons = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # The fields after the name, which may contain anything: state, parent, group, session.
                _, parent, _, of_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                command = (folder / "cmdline").read_bytes()
            except OSError:  # the process has just ended
                continue
            if int(of_session) == session and b"pyspark.daemon" in command:
                daemons.append((int(folder.name), int(parent)))
    return daemons
