"""Options of the commands that start Spark."""

from __future__ import annotations

from typing import Annotated

import typer

MasterOption = Annotated[
    str | None, typer.Option(metavar="URL", help="Where Spark runs, such as spark://host:7077. Else on this machine.")
]
RemoteOption = Annotated[str | None, typer.Option(metavar="URL", help="A Spark Connect server, such as sc://host.")]
MemoryOption = Annotated[str | None, typer.Option(metavar="SIZE", help="What Spark gets, such as 4g.")]
