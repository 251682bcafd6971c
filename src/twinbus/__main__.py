"""`python -m twinbus` is the `twinbus` command."""

from __future__ import annotations

from twinbus.cli.main import app

app(prog_name="twinbus")
