"""Whether duplicate detection of the primary entities reaches far enough.

An attempt that timed out may have arrived, and its message went to the backlog, too. Duplicate detection removes the
second copy only if its window is longer than outage and drain together. How long those last nobody knows before, so
there are two warnings: at the start, if the window is shorter than even the shortest outage with a failover
(`failover_interval` and one `ping_primary_interval`), and once an outage has lasted longer than the window.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Stage

from .core import Entity, Pairing
from .events import BacklogWarning
from .failover import FailedOver
from .namespaces import Namespace
from .recording import recorded

logger = logging.getLogger("twinbus.pairing")

LOOK_EVERY = 5.0
_AT_ONCE = 20


class DuplicateWindows:
    """The windows of the entities that messages are sent to, as far as the primary tells them."""

    def __init__(self, pairing: Pairing, primary: Namespace) -> None:
        self._pairing = pairing
        self._primary = primary
        self._asked: set[Entity] = set()
        self._windows: dict[Entity, float] = {}
        self._warned: dict[Entity, float] = {}

    async def look(self) -> float:
        """Ask for the windows of entities not asked for yet; returns after how many seconds to look for more.

        Best effort: what cannot be asked is not asked again.
        """
        new = [entity for entity in self._pairing.entities() if entity not in self._asked][:_AT_ONCE]
        if new:
            await self._ask_for(new)
        return LOOK_EVERY

    async def _ask_for(self, new: list[Entity]) -> None:
        self._asked.update(new)
        try:
            async with asyncio.timeout(self._pairing.options.attempt_timeout), self._primary.administration() as admin:
                for entity in new:
                    await self._look_at(admin, entity)
        except Exception as error:
            logger.debug("Duplicate detection of the primary is not known: %s", type(error).__name__)

    async def _look_at(self, admin: ServiceBusAdministrationClient, entity: Entity) -> None:
        properties = await self._get(admin.get_queue, entity) or await self._get(admin.get_topic, entity)
        window = properties.duplicate_detection_history_time_window if properties else None
        if not properties or not properties.requires_duplicate_detection or not isinstance(window, timedelta):
            return
        self._windows[entity] = window.total_seconds()
        options = self._pairing.options
        shortest = options.failover_interval + options.ping_primary_interval
        if window.total_seconds() < shortest:
            self._warn(entity, f"shorter than any outage with a failover, which lasts {shortest:g} s at least")

    async def _get(self, get: Callable[[str], Awaitable[Any]], entity: Entity) -> Any:
        with recorded(self._pairing, OperationKind.GET, Stage.MANAGE, NamespaceRole.PRIMARY, entity.path):
            try:
                return await get(entity.path)
            except ResourceNotFoundError:
                return None

    def check(self, entity: Entity) -> None:
        """Warn, once an outage, if the entity has been failed over for longer than its window."""
        window, state = self._windows.get(entity), entity.machine.state
        if window is None or not isinstance(state, FailedOver) or self._warned.get(entity) == state.since:
            return
        if self._pairing.clock() - state.since > window:
            self._warned[entity] = state.since
            self._warn(entity, "over: the outage has lasted longer")

    def _warn(self, entity: Entity, how: str) -> None:
        message = (
            f"the duplicate detection window of {self._windows[entity]:g} s is {how}; a message whose attempt timed out"
            " but had arrived may come twice"
        )
        logger.warning("%s: %s", entity.path, message)
        self._pairing.publish(BacklogWarning(entity=entity.path, message=message))
