"""Defines the options of commands that start Spark."""

from __future__ import annotations

from typing import Annotated

import typer

MasterOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Spark master, such as spark://host:7077. Default: Spark on this machine."),
]
RemoteOption = Annotated[str | None, typer.Option(metavar="URL", help="Spark Connect server, such as sc://host.")]
MemoryOption = Annotated[str | None, typer.Option(metavar="SIZE", help="Memory for Spark, such as 4g.")]
