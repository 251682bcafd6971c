"""`twinbus demo`, as somebody sees it who tries twinbus for the first time."""

from __future__ import annotations

import subprocess
import sys


def test_the_demo_shows_an_outage_and_loses_nothing() -> None:
    ran = subprocess.run([sys.executable, "-m", "twinbus", "demo"], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "all is well: 20 sends accepted, 20 by contoso" in ran.stdout
    assert "orders has failed over" in ran.stdout
    assert "contoso is down: 20 sends accepted, 20 by the backlog" in ran.stdout
    assert "all is well again: 20 sends accepted, 20 by contoso" in ran.stdout
    assert "the syphon has moved" in ran.stdout
    assert "acknowledged 60, arrived 60, lost 0, unexpected 0, duplicated 0" in " ".join(ran.stdout.split())
