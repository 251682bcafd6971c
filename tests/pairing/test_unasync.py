"""The generated synchronous twins are current."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "unasync.py"


@pytest.mark.skipif(find_spec("ruff") is None, reason="needs ruff, of the extra dev, which formats the modules")
def test_the_generated_modules_are_current() -> None:
    checked = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
