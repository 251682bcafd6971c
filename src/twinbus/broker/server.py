"""Several namespaces in one process, each on its own port, with one control port for all."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from .certificate import given_certificate
from .config import Config
from .control import Control
from .file_limit import raise_file_limit
from .namespace import LOOPBACK, Namespace
from .store import Durability


class Server:
    """Serves what a configuration says while its context is entered."""

    def __init__(self, config: Config, *, control_port: int = 0, control_token: str | None = None) -> None:
        self._config = config
        self._stack = AsyncExitStack()
        self.namespaces: dict[str, Namespace] = {}
        self.control = Control(self.namespaces, control_port, control_token)

    async def __aenter__(self) -> Server:
        """Start everything, or nothing: raises what a namespace raises that could not start.

        All of the configuration is checked before any of it is applied.
        """
        raise_file_limit()
        config = self._config
        given = given_certificate(config.certificate, config.key) if config.certificate is not None else None
        for one in config.namespaces:
            keeps = config.data is not None and one.durability is not Durability.MEMORY
            self.namespaces[one.name] = Namespace(
                one,
                data=config.data / one.name if config.data is not None and keeps else None,
                host=config.host or LOOPBACK,
                certificate=given,
                certificate_folder=config.data,
                certificate_names=config.certificate_names,
            )
        try:
            for namespace in self.namespaces.values():
                await namespace.open()
            for namespace in self.namespaces.values():
                await self._stack.enter_async_context(namespace)
            await self._stack.enter_async_context(self.control)
        except BaseException:
            await self._stack.aclose()
            for namespace in self.namespaces.values():
                await namespace.abandon()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def certificate_file(self) -> Path | None:
        """The certificate authority that clients must trust for TLS, if it is one of our own."""
        for namespace in self.namespaces.values():
            if namespace.certificate is not None:
                return namespace.certificate.ca_file
        return None
