"""Many callers on one sender of a cell: far away, impatient, cancelled or starved; and backlog queues in bad states."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus import Route

from .matrix_bench import Station, until
from .matrix_traffic import Traffic
from .matrix_troubles import BrokerFaults, Spells, Stage, Trouble
from .proxy import Weather

#: Sessions that a crowd sends to, where the work has sessions.
CROWD_SESSIONS = tuple(f"crowd-{number}" for number in range(4))
#: Calls that a crowd begins in a second, about: what one process of Python can do beside other cells.
RATE = 60.0
#: Seconds for which a crowd calls, and for which it is waited for after that.
CALLING, ENDING = 5.0, 40.0
#: Seconds by which a call may outlast its timeout on a machine that is busy with other things.
MARGIN = 2.0
#: How long the event loop is blocked each time, longer than an attempt may take, and how often.
BLOCK, BLOCKS = 2.5, 3
#: How many calls are the last ones before a silence, their timeout, and how long it may take to notice.
LAST_CALLS, IMPATIENT, NOTICING = 2, 0.2, 20.0
#: Threads that do nothing but use the CPU, and for how long.
SPINNERS, SPINNING = 4, 6.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Callers of one sender; times are in seconds."""

    callers: int
    #: How much longer the namespace takes for each send.
    latency: float = 0.03
    #: Between which bounds the timeouts of calls are; None: calls have none.
    timeouts: tuple[float, float] | None = None
    #: The share of calls that are cancelled.
    cancelled: float = 0.0


class Callers:
    """The crowd of one cell, and what its calls came to."""

    def __init__(self, traffic: Traffic, crowd: Crowd) -> None:
        self._traffic = traffic
        self._crowd = crowd
        self._random = random.Random(f"crowd {traffic.cell.seed} {traffic.cell.name}")
        self._is_over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._sender: Any = None
        self.ended = 0
        #: What must not be, and how often.
        self.wrong: Counter[str] = Counter()

    def begin(self) -> None:
        self._sender = self._traffic.new_sender()
        self._tasks = [asyncio.create_task(self._keep_calling(caller)) for caller in range(self._crowd.callers)]

    async def end(self) -> None:
        """Begin no more calls, and wait for those under way."""
        self._is_over.set()
        done, left = await asyncio.wait(self._tasks, timeout=ENDING)
        for task in left:
            self.wrong["calls that did not end"] += 1
            task.cancel()
        for task in done:
            task.result()

    async def _keep_calling(self, caller: int) -> None:
        pause = self._crowd.callers / RATE
        for number in range(10_000):
            if self._is_over.is_set():
                break
            await self.call(f"crowd-{caller}-{number}", caller)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause * (0.5 + self._random.random())):
                    await self._is_over.wait()

    async def call(self, name: str, caller: int, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send one message, with a timeout of the crowd unless one is given, and note what comes of it."""
        crowd, traffic = self._crowd, self._traffic
        has_session = traffic.cell.work == "session"
        session = CROWD_SESSIONS[caller % len(CROWD_SESSIONS)] if has_session else None
        message = ServiceBusMessage(f"body of {name}", message_id=name, session_id=session)
        if timeout is None and crowd.timeouts is not None:
            timeout = self._random.uniform(*crowd.timeouts)
        traffic.history.attempt(traffic.entity, name, session=session, content=str(message), at=time.time())
        began = time.monotonic()
        call = asyncio.create_task(self._sender.send_messages(message, timeout=timeout))
        if self._random.random() < crowd.cancelled:
            await asyncio.wait([call], timeout=self._random.uniform(0.0, 2 * crowd.latency))
            call.cancel()
        await asyncio.wait([call])
        self.ended += 1
        if call.cancelled():
            return
        seconds, error = time.monotonic() - began, call.exception()
        if timeout is not None and seconds > timeout + MARGIN:
            self.wrong["calls longer than their timeout"] += 1
        if error is not None:
            self._note_error(error, timeout)
            return
        receipt = call.result()
        traffic.acknowledge(message, receipt.route)
        if timeout is None and receipt.route is Route.BACKLOG:
            self.wrong["calls without a timeout diverted"] += 1
        if timeout is None and receipt.attempts > 1:
            self.wrong["calls without a timeout sent again"] += 1

    def _note_error(self, error: BaseException, timeout: float | None) -> None:
        if not isinstance(error, ServiceBusError):
            raise error
        self._traffic.refused[type(error).__name__] += 1
        if timeout is None:
            self.wrong[f"calls without a timeout raised {type(error).__name__}"] += 1


class Crowds(Trouble):
    """A crowd in each cell, while nothing else is wrong, or while something is."""

    spares_receivers = True

    def __init__(self, crowd: Crowd, outage: Weather | None = None) -> None:
        self._crowd = crowd
        self._callers: dict[str, Callers] = {}
        self._latency = BrokerFaults("slow", ("send",), delay=crowd.latency)
        self._outage = None if outage is None else Spells(outage)

    async def strike(self, stage: Stage) -> None:
        await self._latency.strike(stage)
        for traffic in stage.traffics:
            self._callers[traffic.name] = callers = Callers(traffic, self._crowd)
            callers.begin()
        # Links are open, and some calls were answered, when the rest begins.
        await until(lambda: all(one.ended >= self._crowd.callers for one in self._callers.values()), ENDING)
        await self._trouble_callers(stage)

    async def _trouble_callers(self, stage: Stage) -> None:
        """Let the crowd call for a while."""
        if self._outage is not None:
            await self._outage.strike(stage)
        await asyncio.sleep(CALLING)

    async def repair(self, stage: Stage) -> None:
        if self._outage is not None:
            await self._outage.repair(stage)
        await asyncio.gather(*(callers.end() for callers in self._callers.values()))
        await self._latency.repair(stage)

    async def fired(self, traffic: Traffic) -> int:
        if self._outage is not None and not await self._outage.fired(traffic):
            return 0
        return self._callers[traffic.name].ended

    def wrong(self, traffic: Traffic) -> dict[str, int]:
        """What calls of the crowd came to that must not be while all is well."""
        return dict(self._callers[traffic.name].wrong)


class Blocked(Crowds):
    """The event loop of the process is blocked again and again, for longer than an attempt may take."""

    async def _trouble_callers(self, stage: Stage) -> None:
        for _ in range(BLOCKS):
            time.sleep(BLOCK)  # noqa: ASYNC251 - that is the point
            await asyncio.sleep(BLOCK / 5)


class Spinning(Crowds):
    """Threads of the process use all of the CPU that it gets."""

    async def _trouble_callers(self, stage: Stage) -> None:
        ends = time.monotonic() + SPINNING

        def spin() -> None:
            while time.monotonic() < ends:
                pass

        threads = [threading.Thread(target=spin, name="proof-spinner") for _ in range(SPINNERS)]
        for thread in threads:
            thread.start()
        await until(lambda: not any(thread.is_alive() for thread in threads), 10 * SPINNING)


class LastCalls(Crowds):
    """Nothing is heard from the primary any more, and only some impatient calls on open links have noticed."""

    pauses_senders = True

    async def _trouble_callers(self, stage: Stage) -> None:
        for traffic in stage.traffics:
            traffic.pause()
        await asyncio.gather(*(callers.end() for callers in self._callers.values()))
        await until(lambda: all(traffic.is_idle for traffic in stage.traffics), ENDING)
        assert self._outage is not None
        await self._outage.strike(stage)
        calls = [
            callers.call(f"crowd-last-{number}", number, IMPATIENT)
            for callers in self._callers.values()
            for number in range(LAST_CALLS)
        ]
        await asyncio.gather(*calls)
        await until(lambda: all(traffic.alarms["FailedOver"] for traffic in stage.traffics), NOTICING)


class QueueState(BrokerFaults):
    """Something is wrong with one of the two backlog queues: the one that is in use."""

    def targets(self, stage: Stage, traffic: Traffic) -> list[tuple[Station, str]]:
        return [(stage.bench.secondary, traffic.last_queue or traffic.backlog[0])]
