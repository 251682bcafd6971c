"""What the administration API needs of a namespace.

Times are seconds since the epoch; `accessed_at` is 0 until the first access, which the service shows as the
year 1. Paths are found whatever their case, and keep the case they were created with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from twinbus.broker.descriptions import Counts, QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.security import Right


class EntityExists(Exception):  # noqa: N818 - a state, not a mistake of the program
    """The path is already taken, by a queue or by a topic."""

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity '{path}' already exists.")
        self.path = path


class EntityNotFound(Exception):  # noqa: N818 - a state, not a mistake of the program
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
    """A queue and what it holds at this moment."""

    @property
    def description(self) -> QueueDescription: ...


class SubscriptionView(_EntityView, Protocol):
    """A subscription and what it holds at this moment."""

    @property
    def description(self) -> SubscriptionDescription: ...


class TopicView(_EntityView, Protocol):
    """A topic and what it holds at this moment. Its subscriptions are found by their name in lower case."""

    @property
    def description(self) -> TopicDescription: ...

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionView]: ...


def as_topic(view: QueueView | TopicView | SubscriptionView) -> TopicView | None:
    """The view of a topic, if this is one."""
    return view if isinstance(view.description, TopicDescription) else None


class Registry(Protocol):
    """The entities of one namespace. Descriptions handed to it are valid."""

    @property
    def name(self) -> str: ...

    @property
    def created_at(self) -> float: ...

    @property
    def entity_count(self) -> int:
        """How many queues and topics there are."""
        ...

    def find(self, path: str) -> QueueView | TopicView | None: ...

    def queues(self) -> Sequence[QueueView]:
        """All queues, sorted by path."""
        ...

    def topics(self) -> Sequence[TopicView]:
        """All topics, sorted by path."""
        ...

    async def create(self, description: QueueDescription | TopicDescription) -> QueueView | TopicView:
        """Raises EntityExists if a queue or topic has this path."""
        ...

    async def update(self, description: QueueDescription | TopicDescription) -> QueueView | TopicView:
        """Raises EntityNotFound if there is no such queue or topic."""
        ...

    async def delete(self, path: str) -> None:
        """Raises EntityNotFound if there is no such queue or topic."""
        ...

    async def create_subscription(self, description: SubscriptionDescription) -> SubscriptionView:
        """Raises EntityExists if the topic has one of this name, EntityNotFound if there is no such topic."""
        ...

    async def update_subscription(self, description: SubscriptionDescription) -> SubscriptionView:
        """Raises EntityNotFound if there is no such topic or subscription."""
        ...

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Raises EntityNotFound if there is no such topic or subscription."""
        ...

    def authorize(self, authorization: str | None, path: str, right: Right) -> None:
        """Raises security.Unauthorized unless the Authorization header's value gives `right` on `path`.

        The path "" is the namespace itself.
        """
        ...
