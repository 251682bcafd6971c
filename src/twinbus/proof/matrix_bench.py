"""Where cells run: two namespaces as processes of their own, and a proxy in front of each."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from twinbus.pairing.namespaces import Namespace

from .matrix_processes import NamespaceProcess, faketime_library
from .proxy import Proxy

ProfileName = Literal["default", "azure", "impatient", "clock"]

#: `impatient` is azure with short times and a low rate, so that idle links and throttling are seen within seconds;
#: `clock` is azure with a clock that can be set.
SETTINGS: dict[ProfileName, str] = {
    "default": "",
    "azure": 'profile = "azure"',
    "impatient": 'profile = "azure"\nlink_idle = 2\nconnection_idle = 60\nthrottle = 60',
    "clock": 'profile = "azure"',
}
POLL = 0.05  # seconds between two looks at what a namespace holds


async def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until it holds; false if it does not within some seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - it comes of many small things
                await asyncio.sleep(POLL)
    return holds()


class Station:
    """A namespace, and the proxy through which everybody but ourselves reaches it."""

    def __init__(self, name: str, folder: Path, profile: ProfileName) -> None:
        # Commits are on the disk before they are acknowledged: what survives a kill is what was promised.
        faketime = faketime_library() if profile == "clock" else None
        self.namespace = NamespaceProcess(name, folder, SETTINGS[profile], faketime)
        self.proxy: Proxy
        self._stack = AsyncExitStack()
        self._administration: Any = None

    async def start(self) -> None:
        await self.namespace.start()
        self._stack.push_async_callback(self.namespace.stop)
        self.proxy = await self._stack.enter_async_context(Proxy(self.namespace.port))
        # Straight to the namespace: making entities is no part of what is tried.
        direct = Namespace.from_connection_string(self.namespace.connection_string)
        self._administration = await self._stack.enter_async_context(direct.administration())

    async def stop(self) -> None:
        await self._stack.aclose()

    @property
    def connection_string(self) -> str:
        """Leads through the proxy."""
        return re.sub(r":\d+;", f":{self.proxy.port};", self.namespace.connection_string, count=1)

    @property
    def administration(self) -> Any:
        """The SDK's administration client, past the proxy."""
        return self._administration

    async def counts(self, paths: Iterable[str]) -> dict[str, dict[str, int]]:
        """What the namespace holds in some entities, by its own word."""
        found = await self.namespace.control("GET", "entities")
        return {path: found[path] for path in paths if path in found}


@dataclass(slots=True)
class Bench:
    """A primary and a secondary, alike."""

    primary: Station
    secondary: Station
    profile: ProfileName

    @classmethod
    def of(cls, folder: Path, profile: ProfileName) -> Self:
        primary, secondary = (Station(f"{name}-{profile}", folder, profile) for name in ("contoso", "standby"))
        return cls(primary, secondary, profile)

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(self.primary.start(), self.secondary.start())
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        await asyncio.gather(self.primary.stop(), self.secondary.stop())

    def side(self, where: str) -> list[Station]:
        """The stations that `where` means: primary, secondary or both."""
        return {"primary": [self.primary], "secondary": [self.secondary], "both": [self.primary, self.secondary]}[where]
