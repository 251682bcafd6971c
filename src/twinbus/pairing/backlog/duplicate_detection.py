"""Warns if a primary entity's duplicate detection window is too short.

An attempt that timed out may have arrived, and its message went to the backlog, too. Duplicate detection removes the
second copy only if its window is longer than outage and drain together. How long those last is not known in advance, so
there are two warnings: at the start, if the window is shorter than the shortest possible outage with a failover
(`failover_interval` and one `ping_primary_interval`), and when an outage has lasted longer than the window.
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

from ..events import BacklogWarning
from ..failover.entity_failover import FailedOver
from ..namespace import Namespace
from ..operation_recording import recorded
from ..pairing_state import Entity, Pairing

logger = logging.getLogger("twinbus.pairing")

LOOK_EVERY = 5.0
_AT_ONCE = 20


class DuplicateWindows:
    """The duplicate detection windows of the entities that messages are sent to."""

    def __init__(self, pairing: Pairing, primary: Namespace) -> None:
        self._pairing = pairing
        self._primary = primary
        self._fetched: set[Entity] = set()
        self._windows: dict[Entity, float] = {}
        self._warned: dict[Entity, float] = {}

    async def fetch_new(self) -> float:
        """Fetch the windows of new entities; return after how many seconds to look for more.

        Best effort: a failed request is not repeated.
        """
        new = [entity for entity in self._pairing.entities() if entity not in self._fetched][:_AT_ONCE]
        if new:
            await self._fetch_all(new)
        return LOOK_EVERY

    async def _fetch_all(self, new: list[Entity]) -> None:
        self._fetched.update(new)
        try:
            async with asyncio.timeout(self._pairing.options.attempt_timeout), self._primary.administration() as admin:
                for entity in new:
                    await self._fetch(admin, entity)
        except Exception as error:
            logger.debug("Reading duplicate detection settings of the primary failed: %s", type(error).__name__)

    async def _fetch(self, admin: ServiceBusAdministrationClient, entity: Entity) -> None:
        properties = await self._get(admin.get_queue, entity) or await self._get(admin.get_topic, entity)
        window = properties.duplicate_detection_history_time_window if properties else None
        if not properties or not properties.requires_duplicate_detection or not isinstance(window, timedelta):
            return
        self._windows[entity] = window.total_seconds()
        options = self._pairing.options
        shortest = options.failover_interval + options.ping_primary_interval
        if window.total_seconds() < shortest:
            self._warn(entity, f"shorter than any outage with a failover, which lasts at least {shortest:g} s")

    async def _get(self, get: Callable[[str], Awaitable[Any]], entity: Entity) -> Any:
        with recorded(self._pairing, OperationKind.GET, Stage.MANAGE, NamespaceRole.PRIMARY, entity.path):
            try:
                return await get(entity.path)
            except ResourceNotFoundError:
                return None

    def check(self, entity: Entity) -> None:
        """Warn, once per outage, if the entity has been failed over for longer than its window."""
        window, state = self._windows.get(entity), entity.machine.state
        if window is None or not isinstance(state, FailedOver) or self._warned.get(entity) == state.since:
            return
        if self._pairing.clock() - state.since > window:
            self._warned[entity] = state.since
            self._warn(entity, "exceeded: the outage has lasted longer")

    def _warn(self, entity: Entity, problem: str) -> None:
        message = (
            f"the duplicate detection window of {self._windows[entity]:g} s is {problem}; a message whose attempt"
            " timed out but had arrived may come twice"
        )
        logger.warning("%s: %s", entity.path, message)
        self._pairing.publish(BacklogWarning(entity=entity.path, message=message))
