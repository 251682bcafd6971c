"""The `twinbus` command and the options that all its subcommands share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command as get_single
from typer.main import get_group

from twinbus import __version__

from .exits import BAD_USAGE, fail
from .settings import BadSettings, apply, settings

#: Each command and where it lives: a function, or a `typer.Typer` of several commands.
HOMES = {
    "serve": "serve:serve",
    "syphon": "syphon:syphon",
    "demo": "demo:demo",
    "ledger": "ledger:app",
    "cost": "cost:app",
    "backlog": "backlog:app",
    "status": "status:status",
    "pipeline": "pipeline:app",
    "report": "report:report",
}


class Commands(Mapping[str, Any]):
    """The commands by name, each loaded when it is asked for: `twinbus serve` need not wait for what `demo` imports."""

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = HOMES[name].partition(":")
        found = getattr(import_module(f".{module}", __package__), attribute)
        if isinstance(found, typer.Typer):
            command: Any = get_group(found)
        else:
            alone = typer.Typer(add_completion=False)
            alone.command(name)(found)
            command = get_single(alone)
        command.name = name
        try:
            apply(command, name, settings(frozenset(HOMES)))
        except BadSettings as error:
            fail("twinbus", str(error), BAD_USAGE)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(HOMES)

    def __len__(self) -> int:
        return len(HOMES)


class Loading(TyperGroup):
    """A group whose commands are loaded when they are needed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": Commands()})


app = typer.Typer(
    name="twinbus",
    cls=Loading,
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
