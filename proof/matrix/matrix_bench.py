"""Runs two namespaces as processes, each behind a proxy."""

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

from twinbus.pairing.namespace import Namespace

from ..breaking_proxy import Proxy
from .namespace_processes import NamespaceProcess, faketime_library

ProfileName = Literal["default", "azure", "impatient", "clock"]

#: `impatient` is azure with short idle times and a low rate, so that idle links and throttling show within seconds;
#: `clock` is azure with an adjustable clock.
SETTINGS: dict[ProfileName, str] = {
    "default": "",
    "azure": 'profile = "azure"',
    "impatient": 'profile = "azure"\nlink_idle = 2\nconnection_idle = 60\nthrottle = 60',
    "clock": 'profile = "azure"',
}
POLL = 0.05  # seconds between two checks


async def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until `holds()` is true; return false after `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - there is no single event to wait for
                await asyncio.sleep(POLL)
    return holds()


class ProxiedNamespace:
    """A namespace process and the proxy through which clients reach it."""

    def __init__(self, name: str, folder: Path, profile: ProfileName) -> None:
        # Commits are on disk before they are acknowledged, so that a kill loses nothing that was promised.
        faketime = faketime_library() if profile == "clock" else None
        self.namespace = NamespaceProcess(name, folder, SETTINGS[profile], faketime)
        self.proxy: Proxy
        self._stack = AsyncExitStack()
        self._administration: Any = None

    async def start(self) -> None:
        await self.namespace.start()
        self._stack.push_async_callback(self.namespace.stop)
        self.proxy = await self._stack.enter_async_context(Proxy(self.namespace.port))
        # Bypass the proxy: creating entities is not under test.
        direct = Namespace.from_connection_string(self.namespace.connection_string)
        self._administration = await self._stack.enter_async_context(direct.administration())

    async def stop(self) -> None:
        await self._stack.aclose()

    @property
    def connection_string(self) -> str:
        """The connection string that leads through the proxy."""
        return re.sub(r":\d+;", f":{self.proxy.port};", self.namespace.connection_string, count=1)

    @property
    def administration(self) -> Any:
        """The SDK's administration client, which bypasses the proxy."""
        return self._administration

    async def counts(self, paths: Iterable[str]) -> dict[str, dict[str, int]]:
        """Message counts of some entities, as the namespace reports them."""
        entities = await self.namespace.control("GET", "entities")
        return {path: entities[path] for path in paths if path in entities}


@dataclass(slots=True)
class Bench:
    """A primary and a secondary with the same profile."""

    primary: ProxiedNamespace
    secondary: ProxiedNamespace
    profile: ProfileName

    @classmethod
    def of(cls, folder: Path, profile: ProfileName) -> Self:
        primary, secondary = (ProxiedNamespace(f"{name}-{profile}", folder, profile) for name in ("contoso", "standby"))
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

    def side(self, where: str) -> list[ProxiedNamespace]:
        """The namespaces that `where` names: primary, secondary or both."""
        return {"primary": [self.primary], "secondary": [self.secondary], "both": [self.primary, self.secondary]}[where]
