"""Faults of our own side: senders and syphons in processes of their own, killed or stopped at bad moments."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

from .matrix_bench import until
from .matrix_processes import ChildProcess
from .matrix_sender import Orders, content_of
from .matrix_traffic import BACKLOG_QUEUES, LOCK, OPTIONS, Traffic
from .matrix_troubles import Stage, Trouble
from .proxy import Ambush
from .proxy_frames import Point

STARTING = 30.0  # seconds
CHILD_SESSIONS = ("killed-first", "killed-second")
ENOUGH = 5  # messages of a sender before it is killed, and after


def syphon_of(traffic: Traffic, *more: str) -> ChildProcess:
    """`twinbus syphon` for the backlog of a cell, with more arguments if there are any, not started yet."""
    bench = traffic.bench
    order = ("--order", "session") if traffic.cell.work == "session" else ()
    child = ChildProcess(
        *("-m", "twinbus", "syphon", "--log-level", "error", "--queues", str(BACKLOG_QUEUES)),
        *("--primary-name", traffic.name, "--lock", f"{LOCK.total_seconds():g}", *order, *more),
        environment={
            "TWINBUS_PRIMARY": bench.primary.connection_string,
            "TWINBUS_SECONDARY": bench.secondary.connection_string,
        },
    )
    traffic.children.append(child)
    return child


class KilledSyphon(Trouble):
    """`kill -9` of a syphon after the primary has accepted a message, and before the backlog hears of it."""

    def __init__(self) -> None:
        self._ambushes: dict[str, Ambush] = {}

    async def strike(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            syphon = syphon_of(traffic)

            async def kill(_: Callable[[], Awaitable[None]], syphon: ChildProcess = syphon) -> None:
                await syphon.kill()

            ambush = Ambush(point=Point.SETTLEMENT, entity=traffic.backlog_root, then=kill)
            self._ambushes[traffic.name] = stage.bench.secondary.proxy.lie_in_wait(ambush)
            await syphon.start()

    async def repair(self, stage: Stage) -> None:
        stage.bench.secondary.proxy.clear()
        for traffic in stage.traffics:
            await syphon_of(traffic).start()

    async def fired(self, traffic: Traffic) -> int:
        return min(self._ambushes[traffic.name].fired, int(traffic.children[0].exit_code == -signal.SIGKILL))


class StoppedSyphon(Trouble):
    """A syphon that stands still for longer than its locks last, after the primary has accepted a message."""

    def __init__(self) -> None:
        self._ambushes: dict[str, Ambush] = {}

    async def strike(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            syphon = syphon_of(traffic)

            async def stop(_: Callable[[], Awaitable[None]], syphon: ChildProcess = syphon) -> None:
                syphon.send_signal(signal.SIGSTOP)

            ambush = Ambush(point=Point.OUTCOME, entity=traffic.entity, then=stop, resets=False)
            self._ambushes[traffic.name] = stage.bench.primary.proxy.lie_in_wait(ambush)
            await syphon.start()

    async def repair(self, stage: Stage) -> None:
        stopped = [one.first_at for one in self._ambushes.values() if one.first_at is not None]
        over = max(stopped, default=0.0) + LOCK.total_seconds() + 2
        await asyncio.sleep(max(0.0, over - time.monotonic()))
        stage.bench.primary.proxy.clear()
        for traffic in stage.traffics:
            traffic.children[0].send_signal(signal.SIGCONT)

    async def fired(self, traffic: Traffic) -> int:
        return self._ambushes[traffic.name].fired


class KilledSender(Trouble):
    """`kill -9` of a process that sends, at any moment; another one takes its place."""

    def __init__(self) -> None:
        self._killed: dict[str, int] = {}

    async def strike(self, stage: Stage) -> None:
        await asyncio.gather(*(self._begin(traffic, "first") for traffic in stage.traffics))
        for traffic in stage.traffics:
            self._killed[traffic.name] = await traffic.children[0].kill()

    async def repair(self, stage: Stage) -> None:
        await asyncio.gather(*(self._begin(traffic, "second") for traffic in stage.traffics))
        for traffic in stage.traffics:
            await traffic.children[1].kill()

    async def fired(self, traffic: Traffic) -> int:
        return self._killed[traffic.name]

    async def _begin(self, traffic: Traffic, prefix: str) -> None:
        """Start a sender, and wait until some of its messages were accepted."""
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
        child = ChildProcess("-m", "twinbus.proof.matrix_sender", environment=orders.as_environment())
        traffic.children.append(child)
        await child.start()
        accepted: list[str] = []
        traffic.listen(_listen(child, traffic, session, accepted))
        await until(lambda: len(accepted) >= ENOUGH, STARTING)


async def _listen(child: ChildProcess, traffic: Traffic, session: str | None, accepted: list[str]) -> None:
    """Write down what a sender says, until it ends."""
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
