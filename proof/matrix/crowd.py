"""Implements faults around many callers of one sender: short timeouts, cancellation, starvation, broken queues."""

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

from ..breaking_proxy import FaultKind
from .faults import BrokerFaults, FaultScope, LastingFaults, MatrixFault
from .matrix_bench import ProxiedNamespace, until
from .traffic import Traffic

#: Sessions of a crowd, if the work has sessions.
CROWD_SESSIONS = tuple(f"crowd-{number}" for number in range(4))
#: Calls per second of a crowd: what one Python process can do beside other cells.
RATE = 60.0
#: Seconds for which a crowd calls, and timeout for its last calls.
CALL_SECONDS, END_SECONDS = 5.0, 40.0
#: Tolerance in seconds for calls that outlast their timeout on a busy machine.
MARGIN = 2.0
#: Seconds for which the event loop is blocked, longer than an attempt timeout, and number of times.
BLOCK_SECONDS, BLOCKS = 2.5, 3
#: Number of last calls after the primary stops answering, their timeout, and seconds until failover.
LAST_CALLS, LAST_CALL_TIMEOUT, NOTICE_SECONDS = 2, 0.2, 20.0
#: Threads that only use the CPU, and for how long.
SPIN_THREADS, SPIN_SECONDS = 4, 6.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Settings of the callers of one sender. Times are in seconds."""

    callers: int
    #: Latency that the namespace adds to each send.
    latency: float = 0.03
    #: Range of call timeouts; `None` for calls without a timeout.
    timeouts: tuple[float, float] | None = None
    #: The share of calls that are cancelled.
    cancelled: float = 0.0


class Callers:
    """The crowd of one cell and the outcome of its calls."""

    def __init__(self, traffic: Traffic, crowd: Crowd) -> None:
        self._traffic = traffic
        self._crowd = crowd
        self._random = random.Random(f"crowd {traffic.cell.seed} {traffic.cell.name}")
        self._is_over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._sender: Any = None
        self.ended = 0
        #: Counts of what must not happen.
        self.violations: Counter[str] = Counter()

    def begin(self) -> None:
        self._sender = self._traffic.new_sender()
        self._tasks = [asyncio.create_task(self._keep_calling(caller)) for caller in range(self._crowd.callers)]

    async def end(self) -> None:
        """Start no more calls, and wait for pending ones."""
        self._is_over.set()
        done, left = await asyncio.wait(self._tasks, timeout=END_SECONDS)
        for task in left:
            self.violations["calls that did not end"] += 1
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
        """Send one message, by default with a timeout of the crowd, and record the outcome."""
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
            self.violations["calls longer than their timeout"] += 1
        if error is not None:
            self._note_error(error, timeout)
            return
        receipt = call.result()
        traffic.acknowledge(message, receipt.route)
        if timeout is None and receipt.route is Route.BACKLOG:
            self.violations["calls without a timeout diverted"] += 1
        if timeout is None and receipt.attempts > 1:
            self.violations["calls without a timeout sent again"] += 1

    def _note_error(self, error: BaseException, timeout: float | None) -> None:
        if not isinstance(error, ServiceBusError):
            raise error
        self._traffic.refused[type(error).__name__] += 1
        if timeout is None:
            self.violations[f"calls without a timeout raised {type(error).__name__}"] += 1


class CrowdFault(MatrixFault):
    """Runs a crowd in each cell, optionally during an outage."""

    spares_receivers = True

    def __init__(self, crowd: Crowd, outage: FaultKind | None = None) -> None:
        self._crowd = crowd
        self._callers: dict[str, Callers] = {}
        self._latency = BrokerFaults("slow", ("send",), delay=crowd.latency)
        self._outage = None if outage is None else LastingFaults(outage)

    async def strike(self, scope: FaultScope) -> None:
        await self._latency.strike(scope)
        for traffic in scope.traffics:
            self._callers[traffic.name] = callers = Callers(traffic, self._crowd)
            callers.begin()
        # Continue when links are open and some calls have been answered.
        await until(
            lambda: all(callers.ended >= self._crowd.callers for callers in self._callers.values()), END_SECONDS
        )
        await self._disturb_callers(scope)

    async def _disturb_callers(self, scope: FaultScope) -> None:
        """Start the outage, if any, and let the crowd call for a while."""
        if self._outage is not None:
            await self._outage.strike(scope)
        await asyncio.sleep(CALL_SECONDS)

    async def repair(self, scope: FaultScope) -> None:
        if self._outage is not None:
            await self._outage.repair(scope)
        await asyncio.gather(*(callers.end() for callers in self._callers.values()))
        await self._latency.repair(scope)

    async def fired(self, traffic: Traffic) -> int:
        if self._outage is not None and not await self._outage.fired(traffic):
            return 0
        return self._callers[traffic.name].ended

    def violations(self, traffic: Traffic) -> dict[str, int]:
        """Counts of what must not happen to the crowd while the namespaces are healthy."""
        return dict(self._callers[traffic.name].violations)


class BlockedLoop(CrowdFault):
    """Blocks the event loop repeatedly, for longer than an attempt timeout."""

    async def _disturb_callers(self, scope: FaultScope) -> None:
        for _ in range(BLOCKS):
            time.sleep(BLOCK_SECONDS)  # noqa: ASYNC251 - blocks on purpose
            await asyncio.sleep(BLOCK_SECONDS / 5)


class StarvedProcess(CrowdFault):
    """Starves the process with threads that use all of its CPU time."""

    async def _disturb_callers(self, scope: FaultScope) -> None:
        ends = time.monotonic() + SPIN_SECONDS

        def spin() -> None:
            while time.monotonic() < ends:
                pass

        threads = [threading.Thread(target=spin, name="proof-spinner") for _ in range(SPIN_THREADS)]
        for thread in threads:
            thread.start()
        await until(lambda: not any(thread.is_alive() for thread in threads), 10 * SPIN_SECONDS)


class LastCalls(CrowdFault):
    """Stops the primary's answers so that only a few calls with short timeouts on open links notice."""

    pauses_senders = True

    async def _disturb_callers(self, scope: FaultScope) -> None:
        for traffic in scope.traffics:
            traffic.pause()
        await asyncio.gather(*(callers.end() for callers in self._callers.values()))
        await until(lambda: all(traffic.is_idle for traffic in scope.traffics), END_SECONDS)
        assert self._outage is not None
        await self._outage.strike(scope)
        calls = [
            callers.call(f"crowd-last-{number}", number, LAST_CALL_TIMEOUT)
            for callers in self._callers.values()
            for number in range(LAST_CALLS)
        ]
        await asyncio.gather(*calls)
        await until(lambda: all(traffic.alarms["FailedOver"] for traffic in scope.traffics), NOTICE_SECONDS)


class QueueState(BrokerFaults):
    """Breaks one of the two backlog queues: the one in use."""

    def targets(self, scope: FaultScope, traffic: Traffic) -> list[tuple[ProxiedNamespace, str]]:
        return [(scope.bench.secondary, traffic.last_queue or traffic.backlog[0])]
