"""Installs libfaketime for the fault matrix, unless it is installed: `python -m scripts.faketime`.

Unpacks a Debian package into the virtual environment; needs no root rights. If that is impossible (other system, no
network) it says so, and the clock cells of the matrix are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from proof.matrix.namespace_processes import FAKETIME_FOLDER, faketime_library

PACKAGE = "libfaketime"
SECONDS = 120


def main() -> None:
    if faketime_library() is not None:
        return
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        _print_reason("apt-get not found: install libfaketime, or set TWINBUS_FAKETIME to its path")
        return
    try:
        _download()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        shutil.rmtree(FAKETIME_FOLDER, ignore_errors=True)
        _print_reason(str(error))


def _download() -> None:
    with tempfile.TemporaryDirectory() as folder:
        download = ["apt-get", "-qq", "download", PACKAGE]
        result = subprocess.run(download, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
        packages = list(Path(folder).glob("*.deb"))
        if not packages:
            raise ValueError(result.stderr.strip() or f"apt-get found no package {PACKAGE}")
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), str(FAKETIME_FOLDER)], check=True, timeout=SECONDS)
    if faketime_library() is None:
        raise ValueError(f"no libfaketime.so.1 in the package {PACKAGE}")


def _print_reason(reason: str) -> None:
    print(f"libfaketime not available, clock cells of the matrix are skipped: {reason}")


if __name__ == "__main__":
    main()
