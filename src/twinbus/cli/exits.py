"""Exit codes of every command: 0 done, 1 failed or something is left to do, 2 bad usage."""

from __future__ import annotations

from typing import NoReturn

import typer

FAILED = 1
BAD_USAGE = 2


def fail(command: str, message: str, code: int = FAILED) -> NoReturn:
    """Print the reason in one line on standard error, and exit."""
    typer.echo(f"{command}: {message}", err=True)
    raise typer.Exit(code) from None
