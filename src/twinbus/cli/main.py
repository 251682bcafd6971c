"""The `twinbus` command and the options that all its subcommands share."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus import __version__

from .cost import app as cost
from .demo import demo
from .ledger import app as ledger
from .serve import serve
from .syphon import syphon

app = typer.Typer(
    name="twinbus",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables would print keys and message bodies.
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"twinbus {__version__}")
        raise typer.Exit


@app.callback()
def twinbus(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Paired namespaces for Azure Service Bus: your sends outlive your namespace."""


app.command()(serve)
app.command()(syphon)
app.command()(demo)
app.add_typer(ledger, name="ledger")
app.add_typer(cost, name="cost")
