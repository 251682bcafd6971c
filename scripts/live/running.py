"""Runs the checks, none of which can stop another, and puts away what they have made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import administration, clocks, diverting, load, long_waits, our_client, pings, refusals, sending, transport
from .checks import Check, Result, Seen, Verdict, described
from .drill import Drill

AT_ONCE = 4
ENDING = 15.0  # seconds for what was cancelled to end

ORDINARY: tuple[Check, ...] = (
    *transport.CHECKS,
    *our_client.CHECKS,
    *administration.CHECKS,
    *pings.CHECKS,
    *diverting.CHECKS,
    *clocks.CHECKS,
    *sending.CHECKS,
    *refusals.CHECKS,
)
LONG = long_waits.CHECKS
THROTTLE = load.CHECKS

#: What no drill can ask at a price that anybody would pay.
TOO_DEAR = {"refused: a full queue": "the smallest queue takes 1 GB"}


@dataclass(frozen=True)
class Outcome:
    """What came of the drill. `left_behind` are entities that could not be removed."""

    results: tuple[Result, ...]
    left_out: dict[str, str]
    left_behind: tuple[str, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(result.verdict is verdict for result in self.results)

    @property
    def is_as_expected(self) -> bool:
        return self.count(Verdict.AS_EXPECTED) == len(self.results) and not self.left_behind

    def to_json(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {
            "as_expected": self.count(Verdict.AS_EXPECTED),
            "different": self.count(Verdict.DIFFERENT),
            "could_not_be_checked": self.count(Verdict.UNCHECKED),
            "checks": [
                {
                    "name": one.name,
                    "expected": one.expected,
                    "seen": one.seen,
                    "verdict": one.verdict.value,
                    "seconds": round(one.seconds, 2),
                }
                for one in self.results
            ],
            "left_out": self.left_out,
            "left_behind": list(self.left_behind),
        }


def choose(*, long: bool, throttle: bool, only: str = "") -> tuple[list[Check], dict[str, str]]:
    """The checks to run, and why the others are left out."""
    chosen, left_out = list(ORDINARY), dict(TOO_DEAR)
    for wanted, checks, variable in ((long, LONG, "LONG=1"), (throttle, THROTTLE, "THROTTLE=1")):
        if wanted:
            chosen += checks
        else:
            left_out |= {one.name: f"asked for with {variable}" for one in checks}
    if only:
        left_out |= {one.name: f"ONLY={only}" for one in chosen if only.lower() not in one.name.lower()}
        chosen = [one for one in chosen if only.lower() in one.name.lower()]
    return chosen, left_out


async def perform(
    drill: Drill, checks: Sequence[Check], left_out: dict[str, str], tell: Callable[[Result], None] = lambda _: None
) -> Outcome:
    """Run the checks, and remove all entities of the drill whatever happens. `tell` hears of each result."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def in_turn(check: Check) -> Result:
        if check in LONG:  # they hardly do anything, for a long time
            result = await _run(drill, check)
        else:
            async with turns:
                result = await _run(drill, check)
        tell(result)
        return result

    async with drill.at_primary, drill.at_secondary:
        ordinary = [asyncio.create_task(in_turn(one)) for one in checks if one not in THROTTLE]
        try:
            results = list(await asyncio.gather(*ordinary))
            # By itself: what it does to the namespace would be seen by the others.
            results += [await in_turn(one) for one in checks if one in THROTTLE]
        finally:
            for task in ordinary:
                task.cancel()
            if ordinary:
                await asyncio.wait(ordinary, timeout=ENDING)
            left = [path for site in drill.sites for path in await site.remove_all()]
    return Outcome(tuple(results), left_out, tuple(left))


async def _run(drill: Drill, check: Check) -> Result:
    """One check. It is waited for so long and no longer, whatever it hangs in."""
    seen, started, seconds = Seen(), time.monotonic(), check.seconds(drill.times)
    looking = asyncio.ensure_future(check.look(drill, seen))
    failure = ""
    try:
        await asyncio.wait({looking}, timeout=seconds)
        if looking.done():
            looking.result()
        else:
            failure = f"no answer within {seconds:g} s"
    except Exception as error:
        failure = described(error)
    finally:
        looking.cancel()
        await asyncio.wait({looking}, timeout=ENDING)
    verdict = Verdict.AS_EXPECTED
    if seen.is_different:
        verdict = Verdict.DIFFERENT
    elif failure or not seen:
        verdict = Verdict.UNCHECKED
    words = "; ".join(filter(None, (str(seen), failure)))
    return Result(check.name, check.expected, drill.clean(words), verdict, time.monotonic() - started)
