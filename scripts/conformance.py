"""Runs Microsoft's live tests of the Service Bus SDK against an embedded namespace: `make conformance`.

Downloads the SDK's source distribution, which contains the tests, to `.conformance/`, starts `twinbus serve` on a free
port, and runs the harness on it. Arguments are passed to the harness (`make conformance ARGS="--fast"`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HARNESS = Path(os.environ.get("TWINBUS_CONFORMANCE", ROOT.parent / "shared" / "conformance"))
CACHE = ROOT / ".conformance"
PACKAGE = "azure-servicebus"


def sdk_tests() -> Path:
    """The tests of the installed SDK's version, downloaded once."""
    release = version(PACKAGE)
    folder = CACHE / f"azure_servicebus-{release}"
    if not (folder / "tests").is_dir():
        CACHE.mkdir(exist_ok=True)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE),
                *("--dest", str(CACHE), f"{PACKAGE}=={release}"),
            ],
            check=True,
        )
        with tarfile.open(CACHE / f"azure_servicebus-{release}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return folder / "tests"


def main() -> int:
    if not (HARNESS / "run").is_file():
        print(f"conformance harness not found in {HARNESS}; set TWINBUS_CONFORMANCE to its folder", file=sys.stderr)
        return 2
    tests = sdk_tests()
    with tempfile.TemporaryDirectory(prefix="twinbus-conformance-") as data:
        serve = [sys.executable, "-m", "twinbus", "serve", "--json", "--data", data, "--namespace", "conformance=0"]
        server = subprocess.Popen([*serve, "--durability", "normal"], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline())
            environment = os.environ | {
                "TWINBUS_NAMESPACE": ready["namespaces"]["conformance"]["connection_string"],
                "SDK_TESTS": str(tests),
            }
            return subprocess.run([sys.executable, str(HARNESS / "run"), *sys.argv[1:]], env=environment).returncode
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    sys.exit(main())
