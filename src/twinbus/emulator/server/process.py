"""Serves several namespaces in one process, with one control port for all."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from ..auth.certificate import load_certificate
from ..config.namespace_file import Config
from ..storage.store import Durability
from .control import Control
from .file_limit import raise_file_limit
from .namespace import LOOPBACK, Namespace


class Server:
    """Serves the namespaces of a configuration while its context is entered."""

    def __init__(self, config: Config, *, control_port: int = 0, control_token: str | None = None) -> None:
        self._config = config
        self._stack = AsyncExitStack()
        self.namespaces: dict[str, Namespace] = {}
        self.control = Control(self.namespaces, control_port, control_token)

    async def __aenter__(self) -> Server:
        """Start all namespaces, or none.

        The whole configuration is checked before any of it is applied. Raises what `Namespace.start` raises.
        """
        raise_file_limit()
        config = self._config
        certificate = load_certificate(config.certificate, config.key) if config.certificate is not None else None
        for namespace_config in config.namespaces:
            name = namespace_config.name
            is_durable = namespace_config.durability is not Durability.MEMORY
            self.namespaces[name] = Namespace(
                namespace_config,
                data=config.data / name if config.data is not None and is_durable else None,
                host=config.host or LOOPBACK,
                certificate=certificate,
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
        """The certificate authority that clients must trust for TLS; None if the certificate was configured."""
        for namespace in self.namespaces.values():
            if namespace.certificate is not None:
                return namespace.certificate.ca_file
        return None
