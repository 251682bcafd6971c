"""An in-memory `Registry` for the tests of the administration API."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from twinbus.emulator.admin import EntityExistsError, NoSuchEntityError
from twinbus.emulator.auth.security import AccessPolicy, Authority, UnauthorizedError
from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.entity_descriptions import Counts, QueueDescription, SubscriptionDescription, TopicDescription


@dataclass
class _Entity:
    created_at: float
    updated_at: float
    accessed_at: float = 0.0
    size_in_bytes: int = 0
    counts: Counts = field(default_factory=Counts)


@dataclass
class MemoryQueue(_Entity):
    description: QueueDescription = field(kw_only=True)


@dataclass
class MemorySubscription(_Entity):
    description: SubscriptionDescription = field(kw_only=True)


@dataclass
class MemoryTopic(_Entity):
    description: TopicDescription = field(kw_only=True)
    subscriptions: dict[str, MemorySubscription] = field(default_factory=dict)


class MemoryRegistry:
    """Keeps descriptions; tests may change the views' counts and sizes."""

    def __init__(self, policy: AccessPolicy, *, name: str = "contoso", clock: Callable[[], float] = time.time) -> None:
        self.name = name
        self.created_at = clock()
        self._clock = clock
        # No clock is passed: the SDK makes its tokens with the real time.
        self._authority = Authority([policy])
        self._entities: dict[str, MemoryQueue | MemoryTopic] = {}

    def find(self, path: str) -> MemoryQueue | MemoryTopic | None:
        return self._entities.get(path.lower())

    @property
    def entity_count(self) -> int:
        return len(self._entities)

    def queues(self) -> Sequence[MemoryQueue]:
        return [entity for _, entity in sorted(self._entities.items()) if isinstance(entity, MemoryQueue)]

    def topics(self) -> Sequence[MemoryTopic]:
        return [entity for _, entity in sorted(self._entities.items()) if isinstance(entity, MemoryTopic)]

    async def create(self, description: QueueDescription | TopicDescription) -> MemoryQueue | MemoryTopic:
        if self.find(description.path) is not None:
            raise EntityExistsError(description.path)
        now = self._clock()
        entity = (
            MemoryQueue(now, now, description=description)
            if isinstance(description, QueueDescription)
            else MemoryTopic(now, now, description=description)
        )
        self._entities[description.path.lower()] = entity
        return entity

    async def update(self, description: QueueDescription | TopicDescription) -> MemoryQueue | MemoryTopic:
        entity = self._get(description.path)
        entity.description = description
        entity.updated_at = self._clock()
        return entity

    async def delete(self, path: str) -> None:
        self._get(path)
        del self._entities[path.lower()]

    async def create_subscription(self, description: SubscriptionDescription) -> MemorySubscription:
        subscriptions = self._topic(description.topic).subscriptions
        if description.name.lower() in subscriptions:
            raise EntityExistsError(description.path)
        now = self._clock()
        subscription = MemorySubscription(now, now, description=description)
        subscriptions[description.name.lower()] = subscription
        return subscription

    async def update_subscription(self, description: SubscriptionDescription) -> MemorySubscription:
        subscription = self._subscription(description.topic, description.name)
        subscription.description = description
        subscription.updated_at = self._clock()
        return subscription

    async def delete_subscription(self, topic: str, name: str) -> None:
        self._subscription(topic, name)
        del self._topic(topic).subscriptions[name.lower()]

    def authorize(self, authorization: str | None, path: str, right: Right) -> None:
        grant = self._authority.verify(authorization, self._policies_of, resource=path)
        if not grant.allows(path, right):
            raise UnauthorizedError(f"{right.value} claim is required for this operation on '{path}'.")

    def _policies_of(self, path: str) -> list[AccessPolicy]:
        entity = self.find(path)
        rules = entity.description.authorization_rules if entity else ()
        return [AccessPolicy(r.key_name, r.primary_key, r.secondary_key, r.rights) for r in rules]

    def _get(self, path: str) -> MemoryQueue | MemoryTopic:
        entity = self.find(path)
        if entity is None:
            raise NoSuchEntityError(path)
        return entity

    def _topic(self, path: str) -> MemoryTopic:
        entity = self._get(path)
        if not isinstance(entity, MemoryTopic):
            raise NoSuchEntityError(path)
        return entity

    def _subscription(self, topic: str, name: str) -> MemorySubscription:
        subscription = self._topic(topic).subscriptions.get(name.lower())
        if subscription is None:
            raise NoSuchEntityError(SubscriptionDescription(topic, name).path)
        return subscription
