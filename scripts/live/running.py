"""Runs the checks independently of each other, and removes the entities they created."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import administration, clocks, diverting, load, long_waits, our_client, pings, refusals, sending, transport
from .checks import Check, Findings, Result, Verdict, describe
from .drill import Drill

PARALLEL_CHECKS = 4
CANCEL_SECONDS = 15.0  # for cancelled checks to end

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

#: Checks that are too expensive for a drill.
TOO_EXPENSIVE = {"refused: a full queue": "the smallest queue takes 1 GB"}


@dataclass(frozen=True)
class Outcome:
    """The result of the drill. `left_behind` are entities that could not be removed."""

    results: tuple[Result, ...]
    left_out: dict[str, str]
    left_behind: tuple[str, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(result.verdict is verdict for result in self.results)

    @property
    def is_as_expected(self) -> bool:
        return self.count(Verdict.AS_EXPECTED) == len(self.results) and not self.left_behind

    def to_json(self) -> dict[str, Any]:
        """The results in plain JSON types."""
        return {
            "as_expected": self.count(Verdict.AS_EXPECTED),
            "different": self.count(Verdict.DIFFERENT),
            "could_not_be_checked": self.count(Verdict.UNCHECKED),
            "checks": [
                {
                    "name": result.name,
                    "expected": result.expected,
                    "seen": result.seen,
                    "verdict": result.verdict.value,
                    "seconds": round(result.seconds, 2),
                }
                for result in self.results
            ],
            "left_out": self.left_out,
            "left_behind": list(self.left_behind),
        }


def choose(*, long: bool, throttle: bool, only: str = "") -> tuple[list[Check], dict[str, str]]:
    """The checks to run, and the reason why each other one is not."""
    selected, left_out = list(ORDINARY), dict(TOO_EXPENSIVE)
    for is_enabled, checks, variable in ((long, LONG, "LONG=1"), (throttle, THROTTLE, "THROTTLE=1")):
        if is_enabled:
            selected += checks
        else:
            left_out |= {check.name: f"needs {variable}" for check in checks}
    if only:
        left_out |= {check.name: f"ONLY={only}" for check in selected if only.lower() not in check.name.lower()}
        selected = [check for check in selected if only.lower() in check.name.lower()]
    return selected, left_out


async def perform(
    drill: Drill,
    checks: Sequence[Check],
    left_out: dict[str, str],
    on_result: Callable[[Result], None] = lambda _: None,
) -> Outcome:
    """Run the checks, and always remove all entities of the drill. Calls `on_result` for each result."""
    slots = asyncio.Semaphore(PARALLEL_CHECKS)

    async def run_check(check: Check) -> Result:
        if check in LONG:  # they wait most of the time
            result = await _run(drill, check)
        else:
            async with slots:
                result = await _run(drill, check)
        on_result(result)
        return result

    async with drill.at_primary, drill.at_secondary:
        ordinary = [asyncio.create_task(run_check(check)) for check in checks if check not in THROTTLE]
        try:
            results = list(await asyncio.gather(*ordinary))
            # Last and alone, because throttling would affect the others.
            results += [await run_check(check) for check in checks if check in THROTTLE]
        finally:
            for task in ordinary:
                task.cancel()
            if ordinary:
                await asyncio.wait(ordinary, timeout=CANCEL_SECONDS)
            left = [path for site in drill.sites for path in await site.remove_all()]
    return Outcome(tuple(results), left_out, tuple(left))


async def _run(drill: Drill, check: Check) -> Result:
    """Run one check, with a hard time limit."""
    findings, started, seconds = Findings(), time.monotonic(), check.seconds(drill.times)
    task = asyncio.ensure_future(check.function(drill, findings))
    failure = ""
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            task.result()
        else:
            failure = f"no answer within {seconds:g} s"
    except Exception as error:
        failure = describe(error)
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_SECONDS)
    verdict = Verdict.AS_EXPECTED
    if findings.has_difference:
        verdict = Verdict.DIFFERENT
    elif failure or not findings:
        verdict = Verdict.UNCHECKED
    text = "; ".join(filter(None, (str(findings), failure)))
    return Result(check.name, check.expected, drill.clean(text), verdict, time.monotonic() - started)
