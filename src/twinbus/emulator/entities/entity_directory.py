"""Loads, finds, creates, updates and deletes the entities of a namespace.

Paths are case-insensitive. Each entity has a key that is never reused: its messages are stored under twice that key,
its dead letters under the next odd number. Its transfer dead-letter queue, created on first use, has a key in a
separate range.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.entity_descriptions import (
    AnyDescription,
    Counts,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    check_change,
)

from ..admin.registry import EntityExistsError, NoSuchEntityError
from ..auth.security import AccessPolicy
from ..protocol.error_conditions import ENTITY_DISABLED, NOT_ALLOWED, BrokerError
from ..storage.schema import PUT_ENTITY, PUT_SETTING, Change, delete_entity, delete_queue, stored_queues
from ..storage.store import StoreError
from .forwarding import Forwarder, SessionForwarder, check_forwarding
from .inbox import Counters, Environment
from .limits import dead_letter_limits, limits_of
from .queue import Queue
from .rules.ruleset import RuleSet
from .session_queue import SessionQueue
from .topic import Topic

_DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"
_TRANSFER_SUFFIX = "/$Transfer/$DeadLetterQueue"
# A queue's key has 23 bits in the key of a message.
_FIRST_TRANSFER_KEY = 1 << 22
MAX_KEY = _FIRST_TRANSFER_KEY // 2 - 1
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
    #: The transfer dead-letter queue; None until it is first used.
    transfer: Queue | None = field(default=None, init=False)
    forwarders: list[Forwarder] = field(default_factory=list, init=False)

    @property
    def accessed_at(self) -> float:
        return max(queue.accessed_at for queue in self.queues())

    @property
    def size_in_bytes(self) -> int:
        return sum(queue.counters.bytes for queue in self.queues())

    @property
    def counts(self) -> Counts:
        """Deferred messages count as active, as on the service; messages to be forwarded count as transfer."""
        active = _receivable(self.queue)
        forwards = any(forwarder.queue is self.queue for forwarder in self.forwarders)
        return Counts(
            active=0 if forwards else active,
            dead_letter=_receivable(self.queue.dead_letter),
            scheduled=self.queue.counters.scheduled,
            transfer=active if forwards else 0,
            transfer_dead_letter=_receivable(self.transfer),
        )

    def queues(self) -> list[Queue]:
        """The queue itself and its dead-letter queues."""
        return [queue for queue in (self.queue, self.queue.dead_letter, self.transfer) if queue is not None]


def _receivable(queue: Queue | None) -> int:
    """The number of active and deferred messages."""
    return 0 if queue is None else queue.counters.active + queue.counters.deferred


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


_SEND_AND_LISTEN = frozenset({Right.SEND, Right.LISTEN})
_ACTIVE = EntityStatus.ACTIVE.value
_FORBIDDEN: dict[str, frozenset[Right]] = {
    EntityStatus.SEND_DISABLED.value: frozenset({Right.SEND}),
    EntityStatus.RECEIVE_DISABLED.value: frozenset({Right.LISTEN}),
}


@dataclass(slots=True, frozen=True)
class Node:
    """What an AMQP address names: a queue, a dead-letter queue, a topic or a subscription."""

    entity: AnyEntity
    queue: Queue
    path: str
    is_dead_letter: bool = False

    def require_receivable(self) -> None:
        """Raise `BrokerError` if the node's messages are forwarded to another entity."""
        if any(forwarder.queue is self.queue for forwarder in self.entity.forwarders):
            message = f"Cannot create a message receiver on '{self.path}', an entity with auto-forwarding enabled."
            raise BrokerError(NOT_ALLOWED, message)

    def require_active(self, right: Right) -> None:
        """Raise `BrokerError` if the entity's status does not allow sending (or listening)."""
        status = self.entity.description.status
        if status != _ACTIVE and right in _FORBIDDEN.get(status, _SEND_AND_LISTEN):
            raise BrokerError(
                ENTITY_DISABLED,
                f"Messaging entity '{self.path}' is currently disabled: its status is {status}.",
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
        stored = set(counters) | set(stored_queues(reader))
        for entity in self._all():
            if _FIRST_TRANSFER_KEY + entity.key in stored:
                self._transfer_queue(entity, counters)
        self._drop_orphans(stored)
        # After all are loaded: a message forwarded to an entity that is not loaded yet would be dead-lettered.
        for entity in self._all():
            self._forward(entity)

    def _drop_orphans(self, queues: set[int]) -> None:
        """Delete messages that were being stored in an entity while it was deleted."""
        for queue in queues - self._by_key.keys():
            self._env.store.submit(delete_queue(queue), lambda error: None)

    # ---- finding ----

    def find(self, path: str) -> QueueEntity | TopicEntity | None:
        """The queue or topic at a path; None if there is none."""
        return self._by_path.get(path.strip("/").lower())

    def __len__(self) -> int:
        return len(self._by_path)

    def __iter__(self) -> Iterator[QueueEntity | TopicEntity]:
        return iter(self._by_path.values())

    def queue_by_key(self, key: int) -> Queue | None:
        return self._by_key.get(key)

    def all_queues(self) -> Iterator[Queue]:
        return iter(self._by_key.values())

    def counted(self) -> list[tuple[int, ...]]:
        """The counters of every queue that ever had a message, as rows of the store."""
        used = ((queue.key, queue.counters) for queue in self._by_key.values() if queue.counters.last_sequence)
        return [(key, held.active, held.deferred, held.scheduled, held.bytes, held.last_sequence) for key, held in used]

    def _all(self) -> list[AnyEntity]:
        entities: list[AnyEntity] = []
        for entity in self._by_path.values():
            entities.append(entity)
            if isinstance(entity, TopicEntity):
                entities += entity.subscriptions.values()
        return entities

    def resolve(self, path: str) -> Node | None:
        """The node at an AMQP address such as `topic/Subscriptions/name/$DeadLetterQueue`; None if there is none."""
        lower = path.strip("/").lower()
        suffixes = (_TRANSFER_SUFFIX, _DEAD_LETTER_SUFFIX)
        suffix = next((suffix for suffix in suffixes if lower.endswith(suffix.lower())), "")
        lower = lower.removesuffix(suffix.lower())
        entity: AnyEntity | None = self._by_path.get(lower)
        if entity is None:
            topic_path, separator, name = lower.rpartition("/subscriptions/")
            topic = self._by_path.get(topic_path) if separator else None
            if isinstance(topic, TopicEntity):
                entity = topic.subscriptions.get(name)
        if entity is None:
            return None
        queue: Queue | None = entity.queue
        if suffix:
            queue = entity.queue.dead_letter
        if suffix == _TRANSFER_SUFFIX and queue is not None:
            queue = self._transfer_queue(entity, {})
        return None if queue is None else Node(entity, queue, queue.path, bool(suffix))

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
        """Add an entity and store it.

        Raises:
            EntityExistsError: the path is taken.
            NoSuchEntityError: the topic of a subscription does not exist.
            InvalidDescriptionError: forwarding would return messages to the entity.
            StoreError: the entity could not be stored.
        """
        siblings, name = self._place(description)
        if name in siblings:
            raise EntityExistsError(description.path)
        key = self._new_key()
        check_forwarding(description, self.find)
        self._next_key = key + 1
        now = self._env.now_ms() / 1000
        parent = None
        if isinstance(description, SubscriptionDescription):
            parent = self._topic(description.topic).key
        entity = self._add(key, description, now, now, {})
        try:
            await self._env.store.commit(
                [self._saved(entity, parent), (PUT_SETTING, ("next_key", str(self._next_key)))]
            )
        except Exception:
            self._remove(entity)
            raise
        self._forward(entity)
        return entity

    async def update(self, description: AnyDescription) -> AnyEntity:
        """Replace an entity's description; raises `NoSuchEntityError` or `InvalidDescriptionError`."""
        siblings, name = self._place(description)
        entity: Any = siblings.get(name)
        if entity is None or type(entity.description) is not type(description):
            raise NoSuchEntityError(description.path)
        check_change(entity.description, description)
        check_forwarding(description, self.find)
        before, before_at = entity.description, entity.updated_at
        # Always increases, even if the clock goes back: clients use it as the entity's version (ETag).
        entity.description, entity.updated_at = description, max(self._env.now_ms() / 1000, before_at + 0.001)
        parent = None
        if isinstance(description, SubscriptionDescription):
            parent = self._topic(description.topic).key
        try:
            await self._env.store.commit([self._saved(entity, parent)])
        except Exception:
            entity.description, entity.updated_at = before, before_at
            raise
        self._apply_description(entity)
        return entity  # type: ignore[no-any-return]

    async def put_all(self, descriptions: Sequence[AnyDescription]) -> None:
        """Add or replace entities in one commit, topics before their subscriptions. The caller has checked them.

        Raises `StoreError`: nothing was stored, and this object must no longer be used.
        """
        changes: list[Change] = []
        put: list[AnyEntity] = []
        now = self._env.now_ms() / 1000
        for description in descriptions:
            siblings, name = self._place(description)
            entity: Any = siblings.get(name)
            if entity is None:
                key = self._new_key()
                self._next_key = key + 1
                entity = self._add(key, description, now, now, {})
            else:
                entity.description, entity.updated_at = description, max(now, entity.updated_at + 0.001)
            parent = self._topic(description.topic).key if isinstance(description, SubscriptionDescription) else None
            changes.append(self._saved(entity, parent))
            put.append(entity)
        if changes:
            await self._env.store.commit([*changes, (PUT_SETTING, ("next_key", str(self._next_key)))])
        # After all are in place: in between there could have been forwarding loops.
        for entity in put:
            self._apply_description(entity)

    def _apply_description(self, entity: AnyEntity) -> None:
        """Apply an entity's changed description to its queues."""
        entity.queue.limits = limits_of(entity.description, self._max_message_bytes)
        if isinstance(entity, SubscriptionEntity):
            entity.queue.rules = RuleSet(entity.description.rules)
        if entity.queue.dead_letter is not None:
            entity.queue.dead_letter.limits = dead_letter_limits(entity.queue.limits)
        entity.queue.accessed_at = entity.updated_at
        self._forward(entity)

    def _new_key(self) -> int:
        if self._next_key > MAX_KEY:
            raise StoreError(
                f"{MAX_KEY:,} entities were created in this data folder, which is the maximum; use a new folder"
            )
        return self._next_key

    async def delete(self, path: str) -> AnyEntity:
        """Delete a queue, topic or subscription with its messages.

        Raises:
            NoSuchEntityError: there is none at this path.
            StoreError: the deletion could not be stored; the entity is still there.
        """
        node = self.resolve(path)
        if node is None or node.is_dead_letter:
            raise NoSuchEntityError(path)
        entity = node.entity
        deleted: list[AnyEntity] = [entity]
        if isinstance(entity, TopicEntity):
            deleted = [*entity.subscriptions.values(), entity]
        changes = []
        for part in deleted:
            self._remove(part)
            changes += delete_entity(part.key, tuple(queue.key for queue in part.queues()))
        try:
            await self._env.store.commit(changes)
        except StoreError:
            for part in reversed(deleted):
                counters = {queue.key: queue.counters for queue in part.queues()}
                restored = self._add(part.key, part.description, part.created_at, part.updated_at, counters)
                if part.transfer is not None:
                    self._transfer_queue(restored, counters)
                self._forward(restored)
            raise
        return entity

    # ---- forwarding ----

    def _forward(self, entity: AnyEntity) -> None:
        """Replace an entity's forwarders by those of its description."""
        description, dead_letter = entity.description, entity.queue.dead_letter
        if isinstance(description, TopicDescription) or dead_letter is None:
            return
        for forwarder in entity.forwarders:
            forwarder.stop()
        entity.forwarders.clear()
        transfer_queue = partial(self._transfer_queue, entity, {})
        if description.forward_to is not None:
            kind = SessionForwarder if isinstance(entity.queue, SessionQueue) else Forwarder
            entity.forwarders.append(kind(entity.queue, description.forward_to, self.resolve, transfer_queue))
        target = description.forward_dead_lettered_messages_to
        if target is not None:
            entity.forwarders.append(Forwarder(dead_letter, target, self.resolve, transfer_queue, description.path))
        for forwarder in entity.forwarders:
            forwarder.start()

    def _transfer_queue(self, entity: AnyEntity, counters: Mapping[int, Counters]) -> Queue:
        """The queue for messages that an entity could not forward; created on first use."""
        if entity.transfer is None:
            key, path = _FIRST_TRANSFER_KEY + entity.key, entity.description.path + _TRANSFER_SUFFIX
            limits = dead_letter_limits(entity.queue.limits)
            entity.transfer = Queue(key, path, limits, self._env, counters.get(key, Counters()))
            self._by_key[key] = entity.transfer
        return entity.transfer

    # ---- storing ----

    def _place(self, description: AnyDescription) -> tuple[Mapping[str, AnyEntity], str]:
        """The mapping that holds an entity, and its key there."""
        if isinstance(description, SubscriptionDescription):
            return self._topic(description.topic).subscriptions, description.name.lower()
        return self._by_path, description.path.lower()

    def _topic(self, path: str) -> TopicEntity:
        topic = self.find(path)
        if not isinstance(topic, TopicEntity):
            raise NoSuchEntityError(path)
        return topic

    def _saved(self, entity: AnyEntity, parent: int | None) -> Change:
        description = entity.description
        text = json.dumps(description.to_json(), separators=(",", ":"))
        kind = description.KIND.lower()
        return PUT_ENTITY, (entity.key, kind, parent, text, entity.created_at, entity.updated_at)

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
        for part in entity.queues():
            self._by_key[part.key] = part
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
