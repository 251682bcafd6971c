"""Compares configured entities with existing ones and checks the result as a whole.

Changes nothing: a configuration that is refused must leave everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

from twinbus.servicebus.entity_descriptions import (
    AnyDescription,
    InvalidDescriptionError,
    SubscriptionDescription,
    TopicDescription,
    check_change,
)
from twinbus.servicebus.rule_descriptions import with_times

from ..entities.entity_directory import AnyEntity, Entities, TopicEntity
from ..entities.forwarding import check_forwarding
from .namespace_file import ConfigError, NamespaceConfig, QueueConfig, TopicConfig

_FORWARDING = ("forward_to", "forward_dead_lettered_messages_to")


@dataclass(slots=True)
class _Planned:
    """An entity after the configuration is applied, as `check_forwarding` needs it."""

    description: AnyDescription
    subscriptions: dict[str, _Planned] = field(default_factory=dict)


def wanted_changes(config: NamespaceConfig, entities: Entities, now: float) -> list[AnyDescription]:
    """The configured entities to create or update; topics before their subscriptions.

    Raises `ConfigError` for an entity that is not valid, or that changes a property fixed at creation.
    """
    pairs = list(_before_and_after(config, entities, now))
    for before, after in pairs:
        if before is None:
            continue
        if before.KIND != after.KIND:
            raise _error(config, after, "", f"there is a {before.KIND} of that name already")
        try:
            check_change(before, after)
        except InvalidDescriptionError as error:
            raise _error(config, after, error.field, error.message) from None
    find = _planned(entities, [after for _, after in pairs]).get
    for _, after in pairs:
        for name in _FORWARDING:
            _check_target(config, after, name, find)
    return [after for before, after in pairs if before != after]


def _before_and_after(
    config: NamespaceConfig, entities: Entities, now: float
) -> Iterator[tuple[AnyDescription | None, AnyDescription]]:
    """Each configured entity's existing description, or None, and its new one; unset keys and times stay the same."""
    configured: list[QueueConfig | TopicConfig] = [*config.queues, *config.topics]
    for entity in configured:
        existing = entities.find(entity.description.path)
        before = existing.description if existing is not None else None
        yield before, entity.describe(cast(Any, before if type(before) is type(entity.description) else None))
    for topic in config.topics:
        for subscription in topic.subscriptions:
            node = entities.resolve(subscription.path)
            known = node.entity.description if node is not None else None
            rules = known.rules if isinstance(known, SubscriptionDescription) else ()
            yield known, replace(subscription, rules=with_times(subscription.rules, rules, now))


def _planned(entities: Entities, configured: list[AnyDescription]) -> dict[str, _Planned]:
    """All queues and topics after the configuration is applied, by path in lower case."""
    planned: dict[str, _Planned] = {}
    existing: list[AnyDescription] = []
    for entity in entities:
        existing.append(entity.description)
        if isinstance(entity, TopicEntity):
            existing += [subscription.description for subscription in entity.subscriptions.values()]
    for description in (*existing, *configured):
        if isinstance(description, SubscriptionDescription):
            planned[description.topic.lower()].subscriptions[description.name.lower()] = _Planned(description)
        elif description.path.lower() in planned:
            planned[description.path.lower()].description = description
        else:
            planned[description.path.lower()] = _Planned(description)
    return planned


def _check_target(
    config: NamespaceConfig, description: AnyDescription, name: str, find: Callable[[str], _Planned | None]
) -> None:
    target = getattr(description, name, None)
    if target is None or isinstance(description, TopicDescription):
        return
    if find(target.lower()) is None:
        raise _error(config, description, name, f"The auto forwarding destination entity '{target}' does not exist.")
    # One forwarding property at a time, so that the error names the right one.
    others: dict[str, Any] = {other: None for other in _FORWARDING if other != name}
    try:
        check_forwarding(replace(description, **others), cast(Callable[[str], AnyEntity | None], find))
    except InvalidDescriptionError as error:
        raise _error(config, description, name, error.message) from None


def _error(config: NamespaceConfig, description: AnyDescription, field: str, message: str) -> ConfigError:
    table = config.places.get(description.path)
    if table is None:  # a configuration made in Python has no tables
        return ConfigError("", f"{config.name}: {description.KIND} {description.path}", field, message)
    return table.error(field, message)
