"""Finds entities that have been idle for longer than `auto_delete_on_idle`."""

from __future__ import annotations

from collections.abc import Iterable

from twinbus.servicebus.durations import MAX_TICKS, TICKS_PER_SECOND

from .entity_directory import AnyEntity, QueueEntity, TopicEntity
from .forwarding import Forwarder


def idle_paths(entities: Iterable[QueueEntity | TopicEntity], now: float) -> list[str]:
    """The paths of the entities to delete at `now` (seconds since the epoch)."""
    paths = []
    for entity in entities:
        if _is_idle(entity, now):
            paths.append(entity.description.path)
        elif isinstance(entity, TopicEntity):
            subscriptions = entity.subscriptions.values()
            paths += [subscription.description.path for subscription in subscriptions if _is_idle(subscription, now)]
    return paths


def _is_idle(entity: AnyEntity, now: float) -> bool:
    limit = entity.description.auto_delete_on_idle
    if limit >= MAX_TICKS:
        return False
    parts: list[AnyEntity] = [entity]
    if isinstance(entity, TopicEntity):
        parts += entity.subscriptions.values()
    return not any(_is_in_use(part) or now - part.accessed_at < limit / TICKS_PER_SECOND for part in parts)


def _is_in_use(entity: AnyEntity) -> bool:
    """Whether a client's receiver is attached or a scheduled message is waiting; a forwarder does not count."""
    receivers = [receiver for queue in entity.queues() for receiver in queue.receivers]
    return entity.queue.counters.scheduled > 0 or any(not isinstance(receiver, Forwarder) for receiver in receivers)
