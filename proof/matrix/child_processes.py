"""Implements faults of the client side: killed or stopped sender and syphon processes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

from ..breaking_proxy import FrameFault
from ..proxy_frames import FaultPoint
from .faults import FaultScope, MatrixFault
from .killed_sender import Orders, content_of
from .matrix_bench import until
from .namespace_processes import ChildProcess
from .traffic import BACKLOG_QUEUES, LOCK, OPTIONS, Traffic

START_SECONDS = 30.0
CHILD_SESSIONS = ("killed-first", "killed-second")
MIN_ACCEPTED = 5  # messages of a sender before it is killed


def syphon_of(traffic: Traffic, *arguments: str) -> ChildProcess:
    """A `twinbus syphon` process for the backlog of a cell, not started yet."""
    bench = traffic.bench
    order = ("--order", "session") if traffic.cell.work == "session" else ()
    child = ChildProcess(
        *("-m", "twinbus", "syphon", "--log-level", "error", "--queues", str(BACKLOG_QUEUES)),
        *("--primary-name", traffic.name, "--lock", f"{LOCK.total_seconds():g}", *order, *arguments),
        environment={
            "TWINBUS_PRIMARY": bench.primary.connection_string,
            "TWINBUS_SECONDARY": bench.secondary.connection_string,
        },
    )
    traffic.children.append(child)
    return child


class KilledSyphon(MatrixFault):
    """Kills a syphon (`kill -9`) after the primary accepted a message, before it is completed in the backlog."""

    def __init__(self) -> None:
        self._faults: dict[str, FrameFault] = {}

    async def strike(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            syphon = syphon_of(traffic)

            async def kill(_: Callable[[], Awaitable[None]], syphon: ChildProcess = syphon) -> None:
                await syphon.kill()

            fault = FrameFault(point=FaultPoint.SETTLEMENT, entity=traffic.backlog_root, then=kill)
            self._faults[traffic.name] = scope.bench.secondary.proxy.arm(fault)
            await syphon.start()

    async def repair(self, scope: FaultScope) -> None:
        scope.bench.secondary.proxy.clear()
        for traffic in scope.traffics:
            await syphon_of(traffic).start()

    async def fired(self, traffic: Traffic) -> int:
        return min(self._faults[traffic.name].fired, int(traffic.children[0].exit_code == -signal.SIGKILL))


class StoppedSyphon(MatrixFault):
    """Freezes a syphon for longer than its locks last, after the primary accepted a message."""

    def __init__(self) -> None:
        self._faults: dict[str, FrameFault] = {}

    async def strike(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            syphon = syphon_of(traffic)

            async def stop(_: Callable[[], Awaitable[None]], syphon: ChildProcess = syphon) -> None:
                syphon.send_signal(signal.SIGSTOP)

            fault = FrameFault(point=FaultPoint.OUTCOME, entity=traffic.entity, then=stop, resets=False)
            self._faults[traffic.name] = scope.bench.primary.proxy.arm(fault)
            await syphon.start()

    async def repair(self, scope: FaultScope) -> None:
        stopped = [fault.first_at for fault in self._faults.values() if fault.first_at is not None]
        locks_expire_at = max(stopped, default=0.0) + LOCK.total_seconds() + 2
        await asyncio.sleep(max(0.0, locks_expire_at - time.monotonic()))
        scope.bench.primary.proxy.clear()
        for traffic in scope.traffics:
            traffic.children[0].send_signal(signal.SIGCONT)

    async def fired(self, traffic: Traffic) -> int:
        return self._faults[traffic.name].fired


class KilledSender(MatrixFault):
    """Kills a sending process (`kill -9`) at any moment; another one replaces it."""

    def __init__(self) -> None:
        self._killed: dict[str, int] = {}

    async def strike(self, scope: FaultScope) -> None:
        await asyncio.gather(*(self._begin(traffic, "first") for traffic in scope.traffics))
        for traffic in scope.traffics:
            self._killed[traffic.name] = await traffic.children[0].kill()

    async def repair(self, scope: FaultScope) -> None:
        await asyncio.gather(*(self._begin(traffic, "second") for traffic in scope.traffics))
        for traffic in scope.traffics:
            await traffic.children[1].kill()

    async def fired(self, traffic: Traffic) -> int:
        return self._killed[traffic.name]

    async def _begin(self, traffic: Traffic, prefix: str) -> None:
        """Start a sender, and wait until some of its messages are accepted."""
        session = f"killed-{prefix}" if traffic.cell.work == "session" else None
        bench = traffic.bench
        orders = Orders(
            bench.primary.connection_string,
            bench.secondary.connection_string,
            traffic.entity,
            prefix,
            session,
            {**OPTIONS, "primary_name": traffic.name, "order": "session" if session else None},
        )
        child = ChildProcess("-m", "proof.matrix.killed_sender", environment=orders.as_environment())
        traffic.children.append(child)
        await child.start()
        accepted: list[str] = []
        traffic.listen(_record_output(child, traffic, session, accepted))
        await until(lambda: len(accepted) >= MIN_ACCEPTED, START_SECONDS)


async def _record_output(child: ChildProcess, traffic: Traffic, session: str | None, accepted: list[str]) -> None:
    """Record what a sender prints, until it ends."""
    history, entity = traffic.history, traffic.entity
    while line := await child.line():
        match line.split():
            case ["attempt", message_id]:
                history.attempt(entity, message_id, session=session, content=content_of(message_id), at=time.time())
            case ["accepted", message_id, route]:
                history.acknowledge(entity, message_id, route, at=time.time())
                accepted.append(message_id)
            case ["refused", error]:
                traffic.refused[error] += 1
