"""`python -m twinbus.proof simulate`: runs of the production code on a simulated network, from seeds; `matrix`: faults
over the real wire; `soak`: such faults for a long time, and nothing may grow."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from .matrix import matrix
from .simulation.progress import STATE, Progress, StateError, commit_of, load, save
from .simulation.run import simulate as simulate_one
from .simulation.summary import Summary, replay_command, simulate_all
from .soak import soak

FAILED, BAD_USAGE = 1, 2
#: Runs between two lines of progress.
PROGRESS = 1000

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)


@app.callback()
def proof() -> None:
    """The proof that no accepted message is lost."""


@app.command()
def simulate(
    seed: Annotated[int | None, typer.Option(min=0, help="The first seed; 0 unless given.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="How many seeds, one after the other.")] = 1,
    trace: Annotated[bool, typer.Option("--trace", help="Show what happened, event for event (of one run).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    go_on: Annotated[
        bool,
        typer.Option(
            "--continue", help="Go on where the runs of this commit ended, and print the sums of all of them."
        ),
    ] = False,
    state: Annotated[Path, typer.Option(help="Where --continue keeps the sums.")] = STATE,
) -> None:
    """Run the production code through faults drawn from a seed, and judge each run.

    Example: python -m twinbus.proof simulate --runs 1000
    """
    if trace:
        if runs != 1 or go_on:
            raise typer.BadParameter("a trace is of one run: leave out --runs and --continue", param_hint="--trace")
        _show(seed or 0)
        return
    if go_on:
        if seed is not None:
            raise typer.BadParameter("the runs of this commit say which seed is next", param_hint="--seed")
        _go_on(state, runs, as_json)
        return
    summary = Summary()
    for summary in simulate_all(range(seed or 0, (seed or 0) + runs)):
        _tell(summary)
    typer.echo(json.dumps(summary.to_json(), indent=2) if as_json else summary.describe())
    if summary.failed:
        raise typer.Exit(FAILED)


def _tell(summary: Summary) -> None:
    if summary.runs % PROGRESS == 0 and sys.stderr.isatty():
        typer.echo(f"{summary.runs:,} runs, {len(summary.failed):,} failed", err=True)


def _go_on(path: Path, runs: int, as_json: bool) -> None:
    """Add runs to those of the commit that is checked out. What was done until Ctrl-C counts."""
    try:
        progress = load(path, commit_of(Path.cwd()))
    except StateError as error:
        typer.echo(f"twinbus.proof simulate: {error}", err=True)
        raise typer.Exit(BAD_USAGE) from None
    with contextlib.suppress(KeyboardInterrupt):
        _add_runs(path, progress, runs)
    save(path, progress)
    summary = progress.summary
    if as_json:
        typer.echo(json.dumps(progress.to_json(), indent=2))
    else:
        typer.echo(f"commit {progress.commit}, seeds 0 to {progress.next_seed - 1:,}\n{summary.describe()}")
    if summary.failed:
        raise typer.Exit(FAILED)


def _add_runs(path: Path, progress: Progress, runs: int) -> None:
    for _ in simulate_all(range(progress.next_seed, progress.next_seed + runs), progress.summary):
        progress.next_seed += 1
        _tell(progress.summary)
        if progress.summary.runs % PROGRESS == 0:
            save(path, progress)


def _show(seed: int) -> None:
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
    app(prog_name="python -m twinbus.proof")
