"""Sees to it that the fault matrix can set clocks: with a libfaketime that is installed, else with one of Debian's
packages, unpacked into the virtual environment.

    python scripts/faketime.py

It needs no rights: nothing is installed on the machine. Where there can be none (another system, no network) it says
so: the cells in which clocks jump are then left out.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from twinbus.proof.matrix_processes import FAKETIME_HOME, faketime_library

PACKAGE = "libfaketime"
SECONDS = 120


def main() -> None:
    if faketime_library() is not None:
        return
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        _say_why_not("there is no apt-get here: install libfaketime, or name it in TWINBUS_FAKETIME")
        return
    try:
        _get()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        shutil.rmtree(FAKETIME_HOME, ignore_errors=True)
        _say_why_not(str(error))


def _get() -> None:
    with tempfile.TemporaryDirectory() as folder:
        download = ["apt-get", "-qq", "download", PACKAGE]
        done = subprocess.run(download, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
        packages = list(Path(folder).glob("*.deb"))
        if not packages:
            raise ValueError(done.stderr.strip() or f"apt-get knows no package {PACKAGE}")
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), str(FAKETIME_HOME)], check=True, timeout=SECONDS)
    if faketime_library() is None:
        raise ValueError(f"the package {PACKAGE} has no library where it is expected")


def _say_why_not(reason: str) -> None:
    print(f"no libfaketime, so the cells in which clocks jump are left out: {reason}")


if __name__ == "__main__":
    main()
