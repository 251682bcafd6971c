"""Defines the `twinbus` command and loads its subcommands on demand."""

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
from .options.settings import SettingsError, apply, settings

#: The module and attribute of each command: a function, or a `typer.Typer` of several commands.
COMMAND_LOCATIONS = {
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
    """The commands by name, each imported on first use: `twinbus serve` does not wait for the imports of `demo`."""

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = COMMAND_LOCATIONS[name].partition(":")
        implementation = getattr(import_module(f".commands.{module}", __package__), attribute)
        if isinstance(implementation, typer.Typer):
            command: Any = get_group(implementation)
        else:
            wrapper = typer.Typer(add_completion=False)
            wrapper.command(name)(implementation)
            command = get_single(wrapper)
        command.name = name
        try:
            apply(command, name, settings(frozenset(COMMAND_LOCATIONS)))
        except SettingsError as error:
            fail("twinbus", str(error), BAD_USAGE)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMAND_LOCATIONS)

    def __len__(self) -> int:
        return len(COMMAND_LOCATIONS)


class LazyGroup(TyperGroup):
    """A group that imports its commands on first use."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": Commands()})


app = typer.Typer(
    name="twinbus",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables would print keys and message bodies.
    pretty_exceptions_show_locals=False,
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
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
