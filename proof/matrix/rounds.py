"""Runs the cells that share a fault, and checks each."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from ..breaking_proxy import FaultKind, LastingFault
from ..checker import NotDrainedError, check
from .catalogue import Entry, Plan, Promise
from .cells import Result
from .faults import FaultScope
from .matrix_bench import POLL, Bench, until
from .traffic import Traffic

WARM_UP_CALLS = 3  # per sender, accepted by the primary before the fault
FAULT_CALLS = 3  # per sender, ended during the fault; fewer if that takes longer than FAULT_SECONDS
FAULT_SECONDS = 6.0
RECOVERY_CALLS = 2  # per sender, accepted by the primary after the fault
BACKLOG = 8  # messages per cell in the backlog before a fault strikes there
WAIT_SECONDS = 40.0  # long enough for a busy machine
# The syphon waits about a minute for an outcome that never comes, and Spark starts slowly.
RECOVERY_SECONDS = 180.0
DRAIN_SECONDS = 120.0

logger = logging.getLogger("proof")
_numbers = itertools.count(1)


class Round:
    """One fault and the cells that it strikes."""

    def __init__(self, bench: Bench, plan: Plan) -> None:
        entry = plan.entry
        self._bench, self._entry = bench, entry
        number = next(_numbers)
        self._traffics = [
            Traffic(
                bench,
                cell,
                f"cell-{number}-{index}",
                syphon=entry.hosts_syphon,
                policy=entry.policy(),
                more_sessions=entry.more_sessions,
                options=entry.options,
            )
            for index, cell in enumerate(plan.cells)
        ]
        self._results = {traffic.name: Result(traffic.cell) for traffic in self._traffics}
        self._scope = FaultScope(bench, plan.cells[0].where, self._traffics)
        self._fault = entry.make()
        self._outage: LastingFault | None = None
        #: Current phase, for error reports.
        self.phase = ""

    async def run(self) -> list[Result]:
        """Return one result per cell, good or bad. Raises only unexpected errors."""
        try:
            self._enter("start")
            await self._fault.prepare(self._scope)
            await self._all(Traffic.start)
            await self._warm_up()
            self._enter("fault")
            await self._strike()
            self._enter("repair")
            await self._repair()
            self._enter("recovery")
            repaired = time.monotonic()
            await self._recover()
            self._enter("stop sending")
            await self._all(Traffic.stop_sending)
            self._enter("drain")
            await asyncio.gather(*(self._drained(traffic, repaired) for traffic in self._traffics))
            self._enter("check")
            for traffic in self._traffics:
                await self._judge(traffic)
            self._enter("close")
        finally:
            await self._all(Traffic.close)
        return list(self._results.values())

    def _enter(self, phase: str) -> None:
        self.phase = phase
        logger.debug("Fault %s at %s: phase %s", self._entry.name, self._scope.where, phase)

    async def _all(self, action: Callable[[Traffic], Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*map(action, self._traffics))

    async def _each(self, problem: str, holds: Callable[[Traffic], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait until `holds` is true for every cell; note the problem for the others."""
        await until(lambda: all(map(holds, self._traffics)), seconds)
        for traffic in self._traffics:
            if not holds(traffic):
                self._results[traffic.name].problems.append(f"{problem} within {seconds:g} s")

    async def _warm_up(self) -> None:
        sent = await asyncio.gather(*(traffic.get_through(WARM_UP_CALLS, WAIT_SECONDS) for traffic in self._traffics))
        for traffic, has_sent in zip(self._traffics, sent, strict=True):
            if not has_sent:
                self._results[traffic.name].problems.append(
                    f"no successful send to the primary within {WAIT_SECONDS:g} s"
                )

    async def _recover(self) -> None:
        recovered = await asyncio.gather(
            *(traffic.recover(RECOVERY_CALLS, RECOVERY_SECONDS) for traffic in self._traffics)
        )
        for traffic, has_recovered in zip(self._traffics, recovered, strict=True):
            if not has_recovered:
                self._results[traffic.name].problems.append(f"not back on the primary within {RECOVERY_SECONDS:g} s")

    # ---- fault ----

    async def _strike(self) -> None:
        is_drain, primary = self._entry.phase == "drain", self._bench.primary
        if is_drain or self._scope.where == "secondary":
            # The backlog is used only while the primary is unavailable.
            self._mark_fault_start()
            self._outage = primary.proxy.begin(LastingFault(kind=FaultKind.REFUSE))
            await self._each("not enough diverted", lambda traffic: traffic.diverted >= BACKLOG)
        if is_drain:
            await self._pause()
        if self._scope.where == "primary" and not is_drain:
            self._mark_fault_start()
        for traffic in self._traffics:
            traffic.mark()
        await self._fault.strike(self._scope)
        if self._entry.promise == "errors":
            # Calls that began before the whole fault was in place may be accepted.
            for traffic in self._traffics:
                traffic.mark()
        if is_drain:
            await self._end_outage()
        await self._wait_fired()
        if not is_drain and not self._fault.pauses_senders:
            await until(
                lambda: all(traffic.has_each(FAULT_CALLS, traffic.ended) for traffic in self._traffics), FAULT_SECONDS
            )
            await self._each("no call of a sender ended", lambda traffic: traffic.has_each(1, traffic.ended))

    def _mark_fault_start(self) -> None:
        """Start the clock for the failover time of each sender."""
        now = time.monotonic()
        for traffic in self._traffics:
            traffic.fault_began_at = now

    async def _pause(self) -> None:
        for traffic in self._traffics:
            traffic.pause()
            traffic.mark()
        await until(lambda: all(traffic.is_idle for traffic in self._traffics), WAIT_SECONDS)

    async def _wait_fired(self) -> None:
        deadline = time.monotonic() + self._fault.firing_seconds
        waiting = list(self._traffics)
        while waiting and time.monotonic() < deadline:
            waiting = [traffic for traffic in waiting if not await self._fault.fired(traffic)]
            await asyncio.sleep(POLL)

    async def _repair(self) -> None:
        for traffic in self._traffics:
            result = self._results[traffic.name]
            result.fired = await self._fault.fired(traffic)
            result.problems += _broken_promises(self._entry.promise, traffic)
        await self._fault.repair(self._scope)
        await self._end_outage()
        for traffic in self._traffics:
            traffic.mark()
            traffic.resume()
            if not self._fault.spares_receivers:
                traffic.reopen_receivers()

    async def _end_outage(self) -> None:
        if self._outage is not None:
            await self._bench.primary.proxy.end(self._outage)
            self._outage = None

    # ---- verdict ----

    async def _drained(self, traffic: Traffic, since: float) -> None:
        await traffic.drained(DRAIN_SECONDS)
        self._results[traffic.name].drain_seconds = time.monotonic() - since

    async def _judge(self, traffic: Traffic) -> None:
        result, entry = self._results[traffic.name], self._entry
        result.diverted, result.refused = traffic.diverted, dict(traffic.refused)
        result.failover_seconds = list(traffic.failover_seconds.values())
        if not result.fired:
            result.problems.append("the fault never fired")
        _check_promise(entry, traffic, result)
        result.problems += _wrong_calls(entry.promise, traffic, self._fault.violations(traffic))
        try:
            verdict = result.verdict = check(traffic.history)
        except NotDrainedError as error:
            result.problems.append(str(error))
            return
        has_order = traffic.cell.work == "session"
        if not (verdict.is_clean if has_order else verdict.is_safe):
            result.problems.append(verdict.describe())
        if traffic.cell.detects and verdict.duplicated:
            result.problems.append(f"{len(verdict.duplicated)} duplicated despite duplicate detection")


def _broken_promises(promise: Promise, traffic: Traffic) -> Iterator[str]:
    """Problems visible at the end of the fault."""
    if promise == "errors" and traffic.accepted.total():
        yield f"{traffic.accepted.total()} calls accepted, expected none"
    if promise == "takes" and traffic.raised.total():
        yield f"{traffic.raised.total()} calls raised while a backlog queue accepted messages: {dict(traffic.refused)}"
    if promise == "fails over" and not traffic.alarms["FailedOver"]:
        yield "no failover"
    if promise in ("calm", "no alarm"):
        yield from _false_alarms(traffic)


def _false_alarms(traffic: Traffic) -> Iterator[str]:
    # In cells about the backlog the primary is unavailable on purpose.
    is_primary = traffic.cell.where == "primary"
    alarms = {name: count for name, count in traffic.alarms.items() if is_primary or name == "BacklogQueueRetired"}
    if alarms:
        yield f"false alarm: {alarms}"


def _wrong_calls(promise: Promise, traffic: Traffic, violations: Mapping[str, int]) -> Iterator[str]:
    """Broken promises to the callers of a crowd."""
    if promise == "no alarm":
        return
    for what, count in violations.items():
        is_unconditional = "timeout raised" not in what and "timeout diverted" not in what and "sent again" not in what
        is_of_primary = "diverted" in what or "sent again" in what
        if is_unconditional or (promise == "calm" and (traffic.cell.where == "primary" or not is_of_primary)):
            yield f"{count} {what}"


def _check_promise(entry: Entry, traffic: Traffic, result: Result) -> None:
    if entry.promise in ("calm", "no alarm"):
        result.problems += _false_alarms(traffic)
    is_calm = entry.promise == "calm" and traffic.cell.where == "primary" and not entry.has_short_timeouts
    if (is_calm or entry.promise == "stays") and (traffic.failovers or traffic.diverted):
        result.problems.append(f"{traffic.failovers} failovers and {traffic.diverted} diverted messages, expected none")
    if entry.promise == "diverts" and not traffic.diverted:
        result.problems.append("nothing was diverted")
