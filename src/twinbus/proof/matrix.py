"""The fault matrix over the real wire: `python -m twinbus.proof matrix`."""

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

from .matrix_bench import Bench
from .matrix_catalogue import Plan, plans
from .matrix_cells import Result
from .matrix_report import document_of, summary, write
from .matrix_rounds import Round

FAILED, BAD_USAGE = 1, 2
ROUND_PATIENCE = 900.0  # seconds; every wait within a round has a bound of its own

Told = Callable[[Plan, list[Result], float], None]


async def run_matrix(chosen: Iterable[Plan], folder: Path, told: Told) -> None:
    """Run rounds one after the other, those of a profile at one pair of namespaces; `told` gets what comes of each."""
    for profile, group in groupby(chosen, lambda plan: plan.cells[0].profile):
        waiting = list(group)
        while waiting:
            # A round that breaks may leave namespaces in any state: the next one gets new ones.
            with tempfile.TemporaryDirectory(dir=folder) as data:
                async with Bench.of(Path(data), profile) as bench:
                    while waiting:
                        plan, began = waiting.pop(0), time.monotonic()
                        is_whole, found = await _run_round(bench, plan)
                        told(plan, found, time.monotonic() - began)
                        if not is_whole:
                            break


async def _run_round(bench: Bench, plan: Plan) -> tuple[bool, list[Result]]:
    """The results, and whether the namespaces are fit for another round."""
    tried = Round(bench, plan)
    try:
        async with asyncio.timeout(ROUND_PATIENCE):
            return True, await tried.run()
    except Exception as error:
        problem = f"the round broke while {tried.phase}: {type(error).__name__}: {error}"
        return False, [Result(cell, problems=[problem]) for cell in plan.cells]


def matrix(
    only: Annotated[
        list[str] | None, typer.Option(help="Cells whose name fits, such as 'azure/kill*'. May be given again.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="For what is left to chance; the next one swaps who detects duplicates.")
    ] = 0,
    list_only: Annotated[bool, typer.Option("--list", help="Name the cells, and run none.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    out: Annotated[
        Path | None, typer.Option("--write", help="Folder for proof.json and the table in proof.md.")
    ] = None,
    simulation: Annotated[Path | None, typer.Option(help="What `simulate --json` printed, to stand beside it.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Tell what happens within a round.")] = False,
) -> None:
    """Run the product through faults over the real wire, and judge each cell.

    Two namespaces and what can be killed are processes; between them and the SDK stands a proxy that breaks
    connections on purpose. A cell is PROFILE/FAULT/WHERE/WORK/dd or no-dd.

    Example: python -m twinbus.proof matrix --only 'default/kill*' --seed 1
    """
    chosen = list(plans(only or ("*",), seed))
    if not chosen:
        named = " or ".join(map(repr, only or ()))
        typer.echo(f"twinbus.proof matrix: no cell is called {named}; --list names them", err=True)
        raise typer.Exit(BAD_USAGE)
    if list_only:
        typer.echo("\n".join(cell.name for plan in chosen for cell in plan.cells))
        return
    logging.basicConfig(level=logging.CRITICAL, format="%(relativeCreated)7d %(message)s")
    logging.getLogger("twinbus.proof").setLevel(logging.DEBUG if verbose else logging.CRITICAL)
    began = time.monotonic()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="twinbus-proof-") as folder, contextlib.suppress(KeyboardInterrupt):
        # What was found until Ctrl-C counts.
        asyncio.run(_run(chosen, Path(folder), results))
    document = document_of([result.to_json() for result in results], seed, time.monotonic() - began)
    if simulation is not None:
        document["simulation"] = json.loads(simulation.read_text(encoding="utf-8"))
    if out is not None:
        write(document, out)
    typer.echo(json.dumps(document, indent=2) if json_output else summary(document))
    if len(results) < sum(len(plan.cells) for plan in chosen) or not all(result.is_good for result in results):
        raise typer.Exit(FAILED)


async def _run(chosen: list[Plan], folder: Path, results: list[Result]) -> None:
    """SIGTERM ends it as Ctrl-C does: no process is left behind."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    numbers = itertools.count(1)

    def tell(plan: Plan, found: list[Result], seconds: float) -> None:
        results.extend(found)
        first, good = plan.cells[0], sum(result.is_good for result in found)
        done = f"{next(numbers)}/{len(chosen)} {first.profile}/{first.fault}/{first.where}"
        typer.echo(f"{done}: {good} of {len(found)} good, {seconds:.1f} s", err=True)
        for result in found:
            for problem in result.problems:
                typer.echo(f"  {result.cell.name} (seed {result.cell.seed}): {problem}", err=True)

    await run_matrix(chosen, folder, tell)
