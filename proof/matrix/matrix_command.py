"""Runs the fault matrix over real connections: `python -m proof matrix`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from .catalogue import Plan, plans
from .cells import Result
from .matrix_bench import Bench
from .matrix_report import document_of, summary, write
from .rounds import Round

FAILED, BAD_USAGE = 1, 2
ROUND_SECONDS = 900.0  # every wait within a round has its own, shorter timeout

OnResults = Callable[[Plan, list[Result], float], None]


async def run_matrix(selected: Iterable[Plan], folder: Path, on_results: OnResults) -> None:
    """Run rounds in order, with one pair of namespaces per profile; call `on_results` after each round."""
    for profile, group in groupby(selected, lambda plan: plan.cells[0].profile):
        waiting = list(group)
        while waiting:
            # A failed round may leave the namespaces in any state: the next round gets new ones.
            with tempfile.TemporaryDirectory(dir=folder) as data:
                async with Bench.of(Path(data), profile) as bench:
                    while waiting:
                        plan, began = waiting.pop(0), time.monotonic()
                        is_reusable, results = await _run_round(bench, plan)
                        on_results(plan, results, time.monotonic() - began)
                        if not is_reusable:
                            break


async def _run_round(bench: Bench, plan: Plan) -> tuple[bool, list[Result]]:
    """Return whether the namespaces can be reused, and the results."""
    current_round = Round(bench, plan)
    try:
        async with asyncio.timeout(ROUND_SECONDS):
            return True, await current_round.run()
    except Exception as error:
        problem = f"the round failed in the phase '{current_round.phase}': {type(error).__name__}: {error}"
        return False, [Result(cell, problems=[problem]) for cell in plan.cells]


def matrix(
    only: Annotated[
        list[str] | None, typer.Option(help="Run cells whose name matches, such as 'azure/kill*' (repeatable).")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of random choices; the next seed swaps which cells have duplicate detection."),
    ] = 0,
    list_only: Annotated[bool, typer.Option("--list", help="List the cells without running them.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    out: Annotated[
        Path | None, typer.Option("--write", help="Write proof.json and the table in proof.md to this folder.")
    ] = None,
    simulation: Annotated[Path | None, typer.Option(help="Include this output of `simulate --json`.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log the phases of each round.")] = False,
) -> None:
    """Run twinbus with faults over real connections, and check each cell.

    The namespaces, and everything that gets killed, are separate processes. A proxy between them and the SDK
    breaks connections. A cell is PROFILE/FAULT/WHERE/WORK/dd or no-dd.

    Example: python -m proof matrix --only 'default/kill*' --seed 1
    """
    selected = list(plans(only or ("*",), seed))
    if not selected:
        patterns = " or ".join(map(repr, only or ()))
        typer.echo(f"proof matrix: no cell matches {patterns}; --list prints all names", err=True)
        raise typer.Exit(BAD_USAGE)
    if list_only:
        typer.echo("\n".join(cell.name for plan in selected for cell in plan.cells))
        return
    logging.basicConfig(level=logging.CRITICAL, format="%(relativeCreated)7d %(message)s")
    logging.getLogger("proof").setLevel(logging.DEBUG if verbose else logging.CRITICAL)
    began = time.monotonic()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="twinbus-proof-") as folder, contextlib.suppress(KeyboardInterrupt):
        # Ctrl-C keeps the results so far.
        asyncio.run(_run(selected, Path(folder), results))
    document = document_of([result.to_json() for result in results], seed, time.monotonic() - began)
    if simulation is not None:
        document["simulation"] = json.loads(simulation.read_text(encoding="utf-8"))
    if out is not None:
        write(document, out)
    typer.echo(json.dumps(document, indent=2) if json_output else summary(document))
    if len(results) < sum(len(plan.cells) for plan in selected) or not all(result.is_good for result in results):
        raise typer.Exit(FAILED)


async def _run(selected: list[Plan], folder: Path, results: list[Result]) -> None:
    """Run the rounds. SIGTERM stops them like Ctrl-C, so that no process is left behind."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    numbers = itertools.count(1)

    def report(plan: Plan, new_results: list[Result], seconds: float) -> None:
        results.extend(new_results)
        first, good = plan.cells[0], sum(result.is_good for result in new_results)
        progress = f"{next(numbers)}/{len(selected)} {first.profile}/{first.fault}/{first.where}"
        typer.echo(f"{progress}: {good} of {len(new_results)} good, {seconds:.1f} s", err=True)
        for result in new_results:
            for problem in result.problems:
                typer.echo(f"  {result.cell.name} (seed {result.cell.seed}): {problem}", err=True)

    await run_matrix(selected, folder, report)
