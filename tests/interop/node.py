"""Runs the scripts of this folder with Node, and reads their JSON lines.

Node and npm come from the machine or, if it has none, from PyPI; the packages from the npm registry.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scripts.node import node_and_npm

HERE = Path(__file__).parent
INSTALL_SECONDS = 300.0
PATIENCE = 60.0


def install(cache: Path, folder: Path = HERE) -> Path:
    """Install the packages of `package-lock.json` into the cache once. Returns their folder."""
    lock = (folder / "package-lock.json").read_bytes()
    ready = cache / "node" / hashlib.sha256(lock).hexdigest()[:16]
    if (ready / "node_modules").is_dir():
        return ready / "node_modules"
    ready.parent.mkdir(parents=True, exist_ok=True)
    # Made aside and renamed, for several workers may want it at once.
    made = Path(tempfile.mkdtemp(dir=ready.parent))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(folder / name, made)
    _, npm = node_and_npm()
    command = [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    subprocess.run(command, cwd=made, check=True, timeout=INSTALL_SECONDS, stdout=subprocess.DEVNULL)
    try:
        made.rename(ready)
    except OSError:
        shutil.rmtree(made)  # another process was faster
    return ready / "node_modules"


class Script:
    """A script that runs during the block and reports events."""

    def __init__(
        self, modules: Path, name: str, *arguments: Any, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._environment = {**os.environ, **environment, "NODE_PATH": str(modules)}
        node, _ = node_and_npm()
        self._command = [node, str(HERE / name), *(json.dumps(argument) for argument in arguments)]
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Script:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), PATIENCE)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            raise

    async def event(self) -> dict[str, Any] | None:
        """The next event; None when the script has ended."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE)
        if not line:
            return None
        said: dict[str, Any] = json.loads(line)
        assert said["event"] != "failed", said
        return said

    async def until(self, event: str) -> dict[str, Any]:
        """The next event of this name."""
        while (said := await self.event()) is not None:
            if said["event"] == event:
                return said
        raise AssertionError(f"the script ended without {event}")

    async def all_events(self) -> list[dict[str, Any]]:
        """All events until the script ends."""
        found = []
        while (said := await self.event()) is not None:
            found.append(said)
        return found
