"""A separate environment with an older Service Bus SDK for Python."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = Path(__file__).with_name("older_sdk.txt")
INSTALL_SECONDS = 300.0


def install(cache: Path) -> Path:
    """Install the versions of `older_sdk.txt` into the cache once. Returns their Python."""
    digest = hashlib.sha256(VERSIONS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    ready = cache / "python" / digest
    if not ready.is_dir():
        ready.parent.mkdir(parents=True, exist_ok=True)
        # Made aside and renamed, for several workers may want it at once.
        made = Path(tempfile.mkdtemp(dir=ready.parent))
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True, timeout=INSTALL_SECONDS)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "--python", _python(made)]
        subprocess.run([*pip, "install", "--no-deps", "-r", VERSIONS], check=True, timeout=INSTALL_SECONDS)
        try:
            made.rename(ready)
        except OSError:
            shutil.rmtree(made)  # another process was faster
    return _python(ready)


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"
