"""Runs cells that share a fault from beginning to end, and judges each."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from .checker import NotDrainedError, check
from .matrix_bench import POLL, Bench, until
from .matrix_catalogue import Entry, Plan, Promise
from .matrix_cells import Result
from .matrix_traffic import Traffic
from .matrix_troubles import Stage
from .proxy import Spell, Weather

WARM = 3  # calls of each sender that the primary accepts before anything goes wrong
STRUCK = 3  # calls of each sender that end while it goes wrong, or fewer if that takes too long
STRIKING = 6.0  # seconds
AFTER = 2  # calls of each sender that the primary accepts when all is well again
BACKLOG = 8  # messages of each cell in the backlog, before something goes wrong there
PATIENCE = 40.0  # seconds; of a machine that is busy with other things, too
# The syphon waits for a minute or so for an outcome that never comes, and Spark takes its time to start.
HOME_PATIENCE = 180.0
DRAIN_PATIENCE = 120.0

logger = logging.getLogger("twinbus.proof")
_numbers = itertools.count(1)


class Round:
    """One fault, and the cells that it strikes."""

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
        self._results = {one.name: Result(one.cell) for one in self._traffics}
        self._stage = Stage(bench, plan.cells[0].where, self._traffics)
        self._trouble = entry.make()
        self._outage: Spell | None = None
        #: What it is at, for whoever has to tell why it broke.
        self.phase = ""

    async def run(self) -> list[Result]:
        """The results, one for each cell, good or bad. Raises only what nobody expects."""
        try:
            self._enter("cells start")
            await self._trouble.prepare(self._stage)
            await self._all(Traffic.start)
            await self._warm_up()
            self._enter("the fault strikes")
            await self._strike()
            self._enter("it is repaired")
            await self._repair()
            self._enter("senders go back")
            repaired = time.monotonic()
            await self._go_home()
            self._enter("senders stop")
            await self._all(Traffic.stop_sending)
            self._enter("the backlog is drained")
            await asyncio.gather(*(self._drained(one, repaired) for one in self._traffics))
            self._enter("cells are judged")
            for traffic in self._traffics:
                await self._judge(traffic)
            self._enter("cells are closed")
        finally:
            await self._all(Traffic.close)
        return list(self._results.values())

    def _enter(self, phase: str) -> None:
        self.phase = phase
        logger.debug("%s at %s: %s", self._entry.name, self._stage.where, phase)

    async def _all(self, what: Callable[[Traffic], Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*map(what, self._traffics))

    async def _each(self, problem: str, holds: Callable[[Traffic], bool], seconds: float = PATIENCE) -> None:
        """Wait until it holds of every cell; of which it does not, that is a problem."""
        await until(lambda: all(map(holds, self._traffics)), seconds)
        for traffic in self._traffics:
            if not holds(traffic):
                self._results[traffic.name].problems.append(f"{problem} within {seconds:g} s")

    async def _warm_up(self) -> None:
        came = await asyncio.gather(*(one.get_through(WARM, PATIENCE) for one in self._traffics))
        for traffic, has_sent in zip(self._traffics, came, strict=True):
            if not has_sent:
                self._results[traffic.name].problems.append(f"it never sent within {PATIENCE:g} s")

    async def _go_home(self) -> None:
        came = await asyncio.gather(*(one.go_home(AFTER, HOME_PATIENCE) for one in self._traffics))
        for traffic, is_home in zip(self._traffics, came, strict=True):
            if not is_home:
                self._results[traffic.name].problems.append(f"it did not go back within {HOME_PATIENCE:g} s")

    # ---- the fault ----

    async def _strike(self) -> None:
        is_drain, primary = self._entry.phase == "drain", self._bench.primary
        if is_drain or self._stage.where == "secondary":
            # The backlog is used only while the primary is away.
            self._note_strike()
            self._outage = primary.proxy.begin(Spell(weather=Weather.REFUSE))
            await self._each("it never diverted", lambda one: one.diverted >= BACKLOG)
        if is_drain:
            await self._paused()
        if self._stage.where == "primary" and not is_drain:
            self._note_strike()
        for traffic in self._traffics:
            traffic.mark()
        await self._trouble.strike(self._stage)
        if self._entry.promise == "errors":
            # What began before all of it had struck may rightly be accepted.
            for traffic in self._traffics:
                traffic.mark()
        if is_drain:
            await self._end_outage()
        await self._fired()
        if not is_drain and not self._trouble.pauses_senders:
            await until(lambda: all(one.has_each(STRUCK, one.ended) for one in self._traffics), STRIKING)
            await self._each("its senders got no answer", lambda one: one.has_each(1, one.ended))

    def _note_strike(self) -> None:
        """From now on it is counted how long senders take to fail over."""
        now = time.monotonic()
        for traffic in self._traffics:
            traffic.struck_at = now

    async def _paused(self) -> None:
        for traffic in self._traffics:
            traffic.pause()
            traffic.mark()
        await until(lambda: all(one.is_idle for one in self._traffics), PATIENCE)

    async def _fired(self) -> None:
        ends = time.monotonic() + self._trouble.firing_seconds
        waiting = list(self._traffics)
        while waiting and time.monotonic() < ends:
            waiting = [one for one in waiting if not await self._trouble.fired(one)]
            await asyncio.sleep(POLL)

    async def _repair(self) -> None:
        for traffic in self._traffics:
            result = self._results[traffic.name]
            result.fired = await self._trouble.fired(traffic)
            result.problems += _broken_while_struck(self._entry.promise, traffic)
        await self._trouble.repair(self._stage)
        await self._end_outage()
        for traffic in self._traffics:
            traffic.mark()
            traffic.resume()
            if not self._trouble.spares_receivers:
                traffic.reopen_receivers()

    async def _end_outage(self) -> None:
        if self._outage is not None:
            await self._bench.primary.proxy.end(self._outage)
            self._outage = None

    # ---- the verdict ----

    async def _drained(self, traffic: Traffic, since: float) -> None:
        await traffic.drained(DRAIN_PATIENCE)
        self._results[traffic.name].drain_seconds = time.monotonic() - since

    async def _judge(self, traffic: Traffic) -> None:
        result, entry = self._results[traffic.name], self._entry
        result.diverted, result.refused = traffic.diverted, dict(traffic.refused)
        result.failover_seconds = list(traffic.failover_seconds.values())
        if not result.fired:
            result.problems.append("the fault never fired")
        _check_promise(entry, traffic, result)
        result.problems += _wrong_calls(entry.promise, traffic, self._trouble.wrong(traffic))
        try:
            verdict = result.verdict = check(traffic.history)
        except NotDrainedError as error:
            result.problems.append(str(error))
            return
        has_order = traffic.cell.work == "session"
        if not (verdict.is_clean if has_order else verdict.is_safe):
            result.problems.append(verdict.describe())
        if traffic.cell.detects and verdict.duplicated:
            result.problems.append(f"{len(verdict.duplicated)} duplicated, though the entity detects duplicates")


def _broken_while_struck(promise: Promise, traffic: Traffic) -> Iterator[str]:
    """What is not as promised at the end of the fault."""
    if promise == "errors" and traffic.accepted.total():
        yield f"{traffic.accepted.total()} calls were accepted while it could not be"
    if promise == "takes" and traffic.raised.total():
        yield f"{traffic.raised.total()} calls raised while a backlog queue took messages: {dict(traffic.refused)}"
    if promise == "fails over" and not traffic.alarms["FailedOver"]:
        yield "it did not fail over"
    if promise in ("calm", "no alarm"):
        yield from _false_alarms(traffic)


def _false_alarms(traffic: Traffic) -> Iterator[str]:
    # Where the backlog is at stake the primary is away on purpose.
    is_primary = traffic.cell.where == "primary"
    alarms = {name: count for name, count in traffic.alarms.items() if is_primary or name == "BacklogQueueRetired"}
    if alarms:
        yield f"false alarm: {alarms}"


def _wrong_calls(promise: Promise, traffic: Traffic, wrong: Mapping[str, int]) -> Iterator[str]:
    """What callers of a crowd were promised and did not get."""
    if promise == "no alarm":
        return
    for what, count in wrong.items():
        is_always_wrong = "timeout raised" not in what and "timeout diverted" not in what and "sent again" not in what
        is_of_primary = "diverted" in what or "sent again" in what
        if is_always_wrong or (promise == "calm" and (traffic.cell.where == "primary" or not is_of_primary)):
            yield f"{count} {what}"


def _check_promise(entry: Entry, traffic: Traffic, result: Result) -> None:
    if entry.promise in ("calm", "no alarm"):
        result.problems += _false_alarms(traffic)
    is_calm = entry.promise == "calm" and traffic.cell.where == "primary" and not entry.is_impatient
    if (is_calm or entry.promise == "stays") and (traffic.failovers or traffic.diverted):
        result.problems.append(f"{traffic.failovers} failovers and {traffic.diverted} diverted, and no reason for any")
    if entry.promise == "diverts" and not traffic.diverted:
        result.problems.append("nothing was diverted")
