"""Defines the interface between the administration API and a namespace.

Times are seconds since the epoch; `accessed_at` is 0 until the first access, which the service shows as the year 1.
Paths are case-insensitive and keep the case they were created with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.entity_descriptions import Counts, QueueDescription, SubscriptionDescription, TopicDescription


class EntityExistsError(Exception):
    """The path is already taken by a queue or topic."""

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity '{path}' already exists.")
        self.path = path


class NoSuchEntityError(Exception):
    """There is no such queue, topic or subscription."""

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity '{path}' could not be found.")
        self.path = path


class _EntityView(Protocol):
    @property
    def created_at(self) -> float: ...

    @property
    def updated_at(self) -> float: ...

    @property
    def accessed_at(self) -> float: ...

    @property
    def size_in_bytes(self) -> int: ...

    @property
    def counts(self) -> Counts: ...


class QueueView(_EntityView, Protocol):
    """A queue with its current counts."""

    @property
    def description(self) -> QueueDescription: ...


class SubscriptionView(_EntityView, Protocol):
    """A subscription with its current counts."""

    @property
    def description(self) -> SubscriptionDescription: ...


class TopicView(_EntityView, Protocol):
    """A topic with its current counts. Its subscriptions are keyed by name in lower case."""

    @property
    def description(self) -> TopicDescription: ...

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionView]: ...


def as_topic(view: QueueView | TopicView | SubscriptionView) -> TopicView | None:
    """The view as a topic; None if it is another entity."""
    return view if isinstance(view.description, TopicDescription) else None


class Registry(Protocol):
    """The entities of one namespace. The caller validates descriptions."""

    @property
    def name(self) -> str: ...

    @property
    def created_at(self) -> float: ...

    @property
    def entity_count(self) -> int:
        """The number of queues and topics."""
        ...

    def find(self, path: str) -> QueueView | TopicView | None: ...

    def queues(self) -> Sequence[QueueView]:
        """All queues, sorted by path."""
        ...

    def topics(self) -> Sequence[TopicView]:
        """All topics, sorted by path."""
        ...

    async def create(self, description: QueueDescription | TopicDescription) -> QueueView | TopicView:
        """Raises EntityExistsError if a queue or topic has this path."""
        ...

    async def update(self, description: QueueDescription | TopicDescription) -> QueueView | TopicView:
        """Raises NoSuchEntityError if there is no such queue or topic."""
        ...

    async def delete(self, path: str) -> None:
        """Raises NoSuchEntityError if there is no such queue or topic."""
        ...

    async def create_subscription(self, description: SubscriptionDescription) -> SubscriptionView:
        """Raises EntityExistsError if the topic has one of this name, NoSuchEntityError if there is no such topic."""
        ...

    async def update_subscription(self, description: SubscriptionDescription) -> SubscriptionView:
        """Raises NoSuchEntityError if there is no such topic or subscription."""
        ...

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Raises NoSuchEntityError if there is no such topic or subscription."""
        ...

    def authorize(self, authorization: str | None, path: str, right: Right) -> None:
        """Raise `security.UnauthorizedError` unless the Authorization header's value grants `right` on `path`.

        The path "" is the namespace itself.
        """
        ...
