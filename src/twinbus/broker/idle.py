"""Which entities nobody has used for longer than `auto_delete_on_idle` allows."""

from __future__ import annotations

from collections.abc import Iterable

from .durations import MAX_TICKS, TICKS_PER_SECOND
from .entities import AnyEntity, QueueEntity, TopicEntity
from .forwarding import Forwarder


def idle_paths(entities: Iterable[QueueEntity | TopicEntity], now: float) -> list[str]:
    """The paths of the entities that are to be deleted at `now` (seconds since the epoch)."""
    paths = []
    for entity in entities:
        if _is_idle(entity, now):
            paths.append(entity.description.path)
        elif isinstance(entity, TopicEntity):
            paths += [one.description.path for one in entity.subscriptions.values() if _is_idle(one, now)]
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
    """A receiver uses what it waits at, whether or not messages come; so does a message that waits for its time."""
    receivers = [receiver for queue in entity.queues() for receiver in queue.receivers]
    return entity.queue.counters.scheduled > 0 or any(not isinstance(one, Forwarder) for one in receivers)
