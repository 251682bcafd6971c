"""The entities of a namespace: kept in the store, found by path, created, changed and deleted.

Paths are case-insensitive. Each entity has a key that is never used again; a queue's messages are stored under
twice that key, its dead letters under the odd number after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .admin.registry import EntityExists, EntityNotFound
from .descriptions import (
    AnyDescription,
    Counts,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from .durations import MAX_TICKS
from .errors import ENTITY_DISABLED, BrokerError
from .inbox import TICKS_PER_MS, Counters, Environment, Limits, ttl_ms
from .queue import Queue
from .rules.ruleset import RuleSet
from .schema import PUT_ENTITY, PUT_SETTING, Change, delete_entity, delete_queue, stored_queues
from .security import AccessPolicy, Right
from .session_queue import SessionQueue
from .store import StoreError
from .topic import Topic

MEGABYTE = 1024 * 1024
UNLIMITED = 1 << 62
_DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"
_KINDS: dict[str, type[AnyDescription]] = {
    "queue": QueueDescription,
    "topic": TopicDescription,
    "subscription": SubscriptionDescription,
}


@dataclass(slots=True)
class _Entity:
    key: int
    created_at: float
    updated_at: float
    queue: Queue

    @property
    def accessed_at(self) -> float:
        return self.queue.accessed_at

    @property
    def size_in_bytes(self) -> int:
        dead = self.queue.dead_letter.counters.bytes if self.queue.dead_letter else 0
        return self.queue.counters.bytes + dead

    @property
    def counts(self) -> Counts:
        """Deferred messages count as active ones, as on the service."""
        counters, dead = self.queue.counters, self.queue.dead_letter
        return Counts(
            active=counters.active + counters.deferred,
            dead_letter=dead.counters.active + dead.counters.deferred if dead else 0,
            scheduled=counters.scheduled,
        )

    def queues(self) -> list[Queue]:
        """The queue itself and its dead-letter queue."""
        return [self.queue] if self.queue.dead_letter is None else [self.queue, self.queue.dead_letter]


@dataclass(slots=True)
class QueueEntity(_Entity):
    description: QueueDescription


@dataclass(slots=True)
class SubscriptionEntity(_Entity):
    description: SubscriptionDescription


@dataclass(slots=True)
class TopicEntity(_Entity):
    description: TopicDescription
    subscriptions: dict[str, SubscriptionEntity] = field(default_factory=dict)

    @property
    def size_in_bytes(self) -> int:
        return self.queue.counters.bytes + sum(s.size_in_bytes for s in self.subscriptions.values())

    @property
    def counts(self) -> Counts:
        return Counts(scheduled=self.queue.counters.scheduled)


AnyEntity = QueueEntity | TopicEntity | SubscriptionEntity


_ANYTHING = frozenset({Right.SEND, Right.LISTEN})
_ACTIVE = EntityStatus.ACTIVE.value
_FORBIDDEN: dict[str, frozenset[Right]] = {
    EntityStatus.SEND_DISABLED.value: frozenset({Right.SEND}),
    EntityStatus.RECEIVE_DISABLED.value: frozenset({Right.LISTEN}),
}


@dataclass(slots=True, frozen=True)
class Node:
    """Where an AMQP address leads: a queue, a dead-letter queue, a topic or a subscription."""

    entity: AnyEntity
    queue: Queue
    path: str
    is_dead_letter: bool = False

    def require_active(self, right: Right) -> None:
        """Raise if the entity's status forbids sending to it or receiving from it."""
        status = self.entity.description.status
        if status != _ACTIVE and right in _FORBIDDEN.get(status, _ANYTHING):
            raise BrokerError(
                ENTITY_DISABLED,
                f"Messaging entity '{self.path}' is currently disabled: its status is {status}.",
            )


def limits_of(description: AnyDescription, max_message_bytes: int) -> Limits:
    """What a queue checks, from what its description says."""
    size_mb = getattr(description, "max_size_in_megabytes", None)
    size_kb = getattr(description, "max_message_size_in_kilobytes", None)
    window = None
    if getattr(description, "requires_duplicate_detection", False):
        window = description.duplicate_detection_history_time_window // TICKS_PER_MS  # type: ignore[union-attr]
    return Limits(
        lock_ms=getattr(description, "lock_duration", MAX_TICKS) // TICKS_PER_MS,
        default_ttl_ms=ttl_ms(description.default_message_time_to_live),
        max_bytes=size_mb * MEGABYTE if size_mb else UNLIMITED,
        max_message_bytes=size_kb * 1024 if size_kb else max_message_bytes,
        max_delivery_count=getattr(description, "max_delivery_count", 10),
        dead_letter_expired=getattr(description, "dead_lettering_on_message_expiration", False),
        duplicate_window_ms=window,
        dead_letter_failures=getattr(description, "dead_lettering_on_filter_evaluation_exceptions", False),
    )


def dead_letter_limits(limits: Limits) -> Limits:
    """Dead letters stay until someone takes them, whatever the limits of the queue they come from."""
    return replace(
        limits,
        default_ttl_ms=None,
        max_bytes=UNLIMITED,
        max_delivery_count=UNLIMITED,
        dead_letter_expired=False,
        duplicate_window_ms=None,
    )


class Entities:
    """All entities of one namespace."""

    def __init__(self, environment: Environment, max_message_bytes: int) -> None:
        self._env = environment
        self._max_message_bytes = max_message_bytes
        self._by_path: dict[str, QueueEntity | TopicEntity] = {}
        self._by_key: dict[int, Queue] = {}
        self._next_key = 1
        self._load()

    def _load(self) -> None:
        reader = self._env.store.reader
        row = reader.execute("SELECT value FROM settings WHERE name = 'next_key'").fetchone()
        self._next_key = int(row[0]) if row else 1
        counters = {
            row[0]: Counters(*row[1:])
            for row in reader.execute(
                "SELECT key, active, deferred, scheduled, bytes, last_sequence FROM counters"
            ).fetchall()
        }
        rows = reader.execute(
            "SELECT key, kind, description, created_at, updated_at FROM entities ORDER BY kind = 'subscription', key"
        ).fetchall()
        for key, kind, text, created_at, updated_at in rows:
            description = _KINDS[kind].from_json(json.loads(text))
            self._add(key, description, created_at, updated_at, counters)
        self._drop_orphans(set(counters) | set(stored_queues(reader)))

    def _drop_orphans(self, queues: set[int]) -> None:
        """Remove what was on its way into an entity while it was being deleted."""
        for queue in queues - self._by_key.keys():
            self._env.store.submit(delete_queue(queue), lambda error: None)

    # ---- finding ----

    def find(self, path: str) -> QueueEntity | TopicEntity | None:
        return self._by_path.get(path.strip("/").lower())

    def __iter__(self) -> Iterator[QueueEntity | TopicEntity]:
        return iter(self._by_path.values())

    def queue_by_key(self, key: int) -> Queue | None:
        return self._by_key.get(key)

    def all_queues(self) -> Iterator[Queue]:
        return iter(self._by_key.values())

    def resolve(self, path: str) -> Node | None:
        """The node at an AMQP address such as `topic/Subscriptions/name/$DeadLetterQueue`."""
        path = path.strip("/")
        lower = path.lower()
        is_dead_letter = lower.endswith(_DEAD_LETTER_SUFFIX.lower())
        if is_dead_letter:
            path = path[: -len(_DEAD_LETTER_SUFFIX)]
            lower = path.lower()
        entity: AnyEntity | None = self._by_path.get(lower)
        if entity is None:
            topic_path, separator, name = lower.rpartition("/subscriptions/")
            topic = self._by_path.get(topic_path) if separator else None
            if isinstance(topic, TopicEntity):
                entity = topic.subscriptions.get(name)
        if entity is None:
            return None
        queue = entity.queue
        if is_dead_letter:
            if queue.dead_letter is None:
                return None
            queue = queue.dead_letter
        return Node(entity, queue, queue.path, is_dead_letter)

    def policies(self, path: str) -> list[AccessPolicy]:
        """The access policies of a queue or topic."""
        entity = self.find(path)
        if entity is None:
            return []
        return [
            AccessPolicy(rule.key_name, rule.primary_key, rule.secondary_key, rule.rights)
            for rule in entity.description.authorization_rules
        ]

    # ---- changing ----

    async def create(self, description: AnyDescription) -> AnyEntity:
        """Add an entity and keep it; raises `EntityExists`, or `EntityNotFound` for the topic of a subscription."""
        siblings, name = self._place(description)
        if name in siblings:
            raise EntityExists(description.path)
        key, self._next_key = self._next_key, self._next_key + 1
        now = self._env.now_ms() / 1000
        parent = None
        if isinstance(description, SubscriptionDescription):
            parent = self._topic(description.topic).key
        entity = self._add(key, description, now, now, {})
        try:
            await self._env.store.commit(
                [self._saved(entity, parent), Change(PUT_SETTING, ("next_key", str(self._next_key)))]
            )
        except Exception:
            self._remove(entity)
            raise
        return entity

    async def update(self, description: AnyDescription) -> AnyEntity:
        """Replace an entity's description; raises `EntityNotFound`."""
        siblings, name = self._place(description)
        entity: Any = siblings.get(name)
        if entity is None or type(entity.description) is not type(description):
            raise EntityNotFound(description.path)
        before, before_at = entity.description, entity.updated_at
        entity.description, entity.updated_at = description, self._env.now_ms() / 1000
        parent = None
        if isinstance(description, SubscriptionDescription):
            parent = self._topic(description.topic).key
        try:
            await self._env.store.commit([self._saved(entity, parent)])
        except Exception:
            entity.description, entity.updated_at = before, before_at
            raise
        entity.queue.limits = limits_of(description, self._max_message_bytes)
        if isinstance(description, SubscriptionDescription):
            entity.queue.rules = RuleSet(description.rules)
        if entity.queue.dead_letter is not None:
            entity.queue.dead_letter.limits = dead_letter_limits(entity.queue.limits)
        return entity  # type: ignore[no-any-return]

    async def delete(self, path: str) -> AnyEntity:
        """Remove a queue, topic or subscription with its messages; raises `EntityNotFound`."""
        node = self.resolve(path)
        if node is None or node.is_dead_letter:
            raise EntityNotFound(path)
        entity = node.entity
        doomed: list[AnyEntity] = [entity]
        if isinstance(entity, TopicEntity):
            doomed = [*entity.subscriptions.values(), entity]
        changes = []
        for one in doomed:
            self._remove(one)
            changes += delete_entity(one.key, tuple(queue.key for queue in one.queues()))
        try:
            await self._env.store.commit(changes)
        except StoreError:
            for one in reversed(doomed):
                counters = {queue.key: queue.counters for queue in one.queues()}
                self._add(one.key, one.description, one.created_at, one.updated_at, counters)
            raise
        return entity

    # ---- keeping ----

    def _place(self, description: AnyDescription) -> tuple[Mapping[str, AnyEntity], str]:
        """The mapping an entity stands in, and its name there."""
        if isinstance(description, SubscriptionDescription):
            return self._topic(description.topic).subscriptions, description.name.lower()
        return self._by_path, description.path.lower()

    def _topic(self, path: str) -> TopicEntity:
        topic = self.find(path)
        if not isinstance(topic, TopicEntity):
            raise EntityNotFound(path)
        return topic

    def _saved(self, entity: AnyEntity, parent: int | None) -> Change:
        description = entity.description
        text = json.dumps(description.to_json(), separators=(",", ":"))
        kind = description.KIND.lower()
        return Change(PUT_ENTITY, (entity.key, kind, parent, text, entity.created_at, entity.updated_at))

    def _add(
        self,
        key: int,
        description: AnyDescription,
        created_at: float,
        updated_at: float,
        counters: Mapping[int, Counters],
    ) -> AnyEntity:
        queue = self._make_queue(key, description, counters)
        entity: AnyEntity
        if isinstance(description, TopicDescription):
            entity = TopicEntity(key, created_at, updated_at, queue, description)
            self._by_path[description.path.lower()] = entity
        elif isinstance(description, QueueDescription):
            entity = QueueEntity(key, created_at, updated_at, queue, description)
            self._by_path[description.path.lower()] = entity
        else:
            entity = SubscriptionEntity(key, created_at, updated_at, queue, description)
            topic = self._topic(description.topic)
            topic.subscriptions[description.name.lower()] = entity
            assert isinstance(topic.queue, Topic)
            topic.queue.subscriptions[description.name.lower()] = queue
            queue.rules = RuleSet(description.rules)
        for one in entity.queues():
            self._by_key[one.key] = one
        return entity

    def _make_queue(self, key: int, description: AnyDescription, counters: Mapping[int, Counters]) -> Queue:
        limits = limits_of(description, self._max_message_bytes)
        counts = counters.get(2 * key, Counters())
        if isinstance(description, TopicDescription):
            return Topic(2 * key, description.path, limits, self._env, counts)
        dead_letter = Queue(
            2 * key + 1,
            description.path + _DEAD_LETTER_SUFFIX,
            dead_letter_limits(limits),
            self._env,
            counters.get(2 * key + 1, Counters()),
        )
        kind = SessionQueue if description.requires_session else Queue
        return kind(2 * key, description.path, limits, self._env, counts, dead_letter)

    def _remove(self, entity: AnyEntity) -> None:
        description = entity.description
        if isinstance(description, SubscriptionDescription):
            topic = self._topic(description.topic)
            topic.subscriptions.pop(description.name.lower(), None)
            if isinstance(topic.queue, Topic):
                topic.queue.subscriptions.pop(description.name.lower(), None)
        else:
            self._by_path.pop(description.path.lower(), None)
        for queue in entity.queues():
            self._by_key.pop(queue.key, None)
            queue.close()
