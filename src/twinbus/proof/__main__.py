"""`python -m twinbus.proof simulate`: runs of the production code on a simulated network, from seeds; `matrix`: faults
over the real wire; `soak`: such faults for a long time, and nothing may grow."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from .matrix import matrix
from .simulation.run import simulate as simulate_one
from .simulation.summary import Summary, replay_command, simulate_all
from .soak import soak

FAILED = 1
#: Runs between two lines of progress.
PROGRESS = 1000

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)


@app.callback()
def proof() -> None:
    """The proof that no accepted message is lost."""


@app.command()
def simulate(
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    runs: Annotated[int, typer.Option(min=1, help="How many seeds, one after the other.")] = 1,
    trace: Annotated[bool, typer.Option("--trace", help="Show what happened, event for event (of one run).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run the production code through faults drawn from a seed, and judge each run.

    Example: python -m twinbus.proof simulate --runs 1000
    """
    if trace:
        if runs != 1:
            raise typer.BadParameter("a trace is of one run: leave out --runs", param_hint="--trace")
        _show(seed)
        return
    summary = Summary()
    for summary in simulate_all(range(seed, seed + runs)):
        if summary.runs % PROGRESS == 0 and sys.stderr.isatty():
            typer.echo(f"{summary.runs:,} runs, {len(summary.failed):,} failed", err=True)
    typer.echo(json.dumps(summary.to_json(), indent=2) if as_json else summary.describe())
    if summary.failed:
        raise typer.Exit(FAILED)


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
