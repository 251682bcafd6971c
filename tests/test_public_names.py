"""The public names are a promise: adding or removing one must be meant."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from types import ModuleType

import twinbus

PUBLIC_NAMES = ["__version__"]


def test_the_package_exports_exactly_the_promised_names() -> None:
    assert sorted(twinbus.__all__) == sorted(PUBLIC_NAMES)


def test_no_name_is_public_without_being_exported() -> None:
    names = {name for name, value in vars(twinbus).items() if not isinstance(value, ModuleType)}
    # `from __future__ import annotations` leaves its own name behind.
    assert {name for name in names if not name.startswith("_")} - {"annotations"} <= set(twinbus.__all__)


def test_the_installed_version_is_the_one_the_package_names() -> None:
    assert importlib.metadata.version("twinbus") == twinbus.__version__


def test_the_command_prints_its_version() -> None:
    command = [sys.executable, "-m", "twinbus", "--version"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout == f"twinbus {twinbus.__version__}\n"
