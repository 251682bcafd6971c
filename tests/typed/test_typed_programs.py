"""Typed programs accept our clients and senders where they want the SDK's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import twinbus

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("sdk_program.py")


def check(program: Path, folder: Path) -> str:
    """What `mypy --strict` says, without the settings of this repository."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        os.devnull,
        "--cache-dir",
        str(folder / "mypy"),
    ]
    environment = {**os.environ, "MYPYPATH": str(Path(twinbus.__file__).parents[1])}
    return subprocess.run(
        [*command, str(program)], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    ).stdout


def test_a_typed_program_for_the_sdk_passes_mypy_strict(tmp_path: Path) -> None:
    assert check(PROGRAM, tmp_path) == "Success: no issues found in 1 source file\n"
    # Were the types lost on the way, this would pass as well.
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        PROGRAM.read_text().replace("print(receipt.queue)", "print(receipt.place)").replace("-> Receipt:", "-> str:")
    )
    said = check(wrong, tmp_path)
    assert '"Receipt" has no attribute "place"' in said
    assert said.count('got "Receipt", expected "str"') == 2
