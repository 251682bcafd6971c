"""Command line of the proof: `python -m proof simulate`, `matrix` and `soak`.

`simulate` runs the production code on a simulated network from seeds, `matrix` injects faults into real connections,
and `soak` injects random faults for a long time and checks that nothing grows.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from .matrix.matrix_command import matrix
from .simulation.progress import STATE, Progress, StateError, code_version, load, save
from .simulation.run import simulate as simulate_one
from .simulation.summary import Summary, replay_command, simulate_all
from .soak.soak_command import soak

FAILED, BAD_USAGE = 1, 2
#: Runs between two progress lines.
PROGRESS = 1000

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)


@app.callback()
def proof() -> None:
    """Check that no accepted message is lost."""


@app.command()
def simulate(
    seed: Annotated[int | None, typer.Option(min=0, help="First seed (default 0).")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Number of consecutive seeds to run.")] = 1,
    trace: Annotated[bool, typer.Option("--trace", help="Print every event of one run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    continue_runs: Annotated[
        bool,
        typer.Option(
            "--continue", help="Continue after the last seed run with this code, and print the totals of all runs."
        ),
    ] = False,
    state: Annotated[Path, typer.Option(help="File in which --continue stores the totals.")] = STATE,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
) -> None:
    """Run the production code with faults drawn from a seed, and check each run.

    Example: python -m proof simulate --runs 1000
    """
    if trace:
        if runs != 1 or continue_runs:
            raise typer.BadParameter(
                "expected a single run, got --runs or --continue; a trace shows one run only", param_hint="--trace"
            )
        _print_trace(seed or 0)
        return
    if continue_runs:
        if seed is not None:
            raise typer.BadParameter(
                "expected no --seed with --continue, which continues after the last seed", param_hint="--seed"
            )
        _continue_runs(state, runs, as_json, jobs)
        return
    summary = Summary()
    for summary in simulate_all(range(seed or 0, (seed or 0) + runs), jobs=jobs):
        _print_progress(summary)
    typer.echo(json.dumps(summary.to_json(), indent=2) if as_json else summary.describe())
    if summary.failed:
        raise typer.Exit(FAILED)


def _print_progress(summary: Summary) -> None:
    if summary.runs % PROGRESS == 0 and sys.stderr.isatty():
        typer.echo(f"{summary.runs:,} runs, {len(summary.failed):,} failed", err=True)


def _continue_runs(path: Path, runs: int, as_json: bool, jobs: int) -> None:
    """Add runs to those of the same code. Ctrl-C keeps the runs done so far."""
    try:
        progress = load(path, code_version(Path.cwd()))
    except StateError as error:
        typer.echo(f"proof simulate: {error}", err=True)
        raise typer.Exit(BAD_USAGE) from None
    with contextlib.suppress(KeyboardInterrupt):
        _add_runs(path, progress, runs, jobs)
    save(path, progress)
    summary = progress.summary
    if as_json:
        typer.echo(json.dumps(progress.to_json(), indent=2))
    else:
        typer.echo(f"code {progress.code}, seeds 0 to {progress.next_seed - 1:,}\n{summary.describe()}")
    if summary.failed:
        raise typer.Exit(FAILED)


def _add_runs(path: Path, progress: Progress, runs: int, jobs: int) -> None:
    for _ in simulate_all(range(progress.next_seed, progress.next_seed + runs), progress.summary, jobs):
        progress.next_seed += 1
        _print_progress(progress.summary)
        if progress.summary.runs % PROGRESS == 0:
            save(path, progress)


def _print_trace(seed: int) -> None:
    result = simulate_one(seed, trace=True)
    typer.echo("\n".join(result.trace))
    if result.verdict is not None:
        typer.echo(result.verdict.describe())
    typer.echo(f"digest {result.digest}; again: {replay_command(seed)}")
    for complaint in result.complaints:
        typer.echo(f"WRONG: {complaint}", err=True)
    if not result.is_good:
        raise typer.Exit(FAILED)


app.command()(matrix)
app.command()(soak)

if __name__ == "__main__":
    app(prog_name="python -m proof")
