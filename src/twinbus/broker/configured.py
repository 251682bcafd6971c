"""The entities that a configuration wants, checked as a whole against those that are there.

Nothing is changed here: a configuration that is refused must leave everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

from .config import ConfigError, NamespaceConfig, QueueConfig, TopicConfig
from .descriptions import (
    AnyDescription,
    InvalidDescription,
    SubscriptionDescription,
    TopicDescription,
    check_change,
)
from .entities import AnyEntity, Entities, TopicEntity
from .forwarding import check_forwarding
from .rules.descriptions import with_times

_FORWARDING = ("forward_to", "forward_dead_lettered_messages_to")


@dataclass(slots=True)
class _Planned:
    """An entity as it will be: what `check_forwarding` looks at."""

    description: AnyDescription
    subscriptions: dict[str, _Planned] = field(default_factory=dict)


def wanted_changes(config: NamespaceConfig, entities: Entities, now: float) -> list[AnyDescription]:
    """The entities of the configuration that are not there yet, or not like that; topics before their subscriptions.

    Raises `ConfigError` for what cannot be, or no longer be.
    """
    pairs = list(_described(config, entities, now))
    for before, wanted in pairs:
        if before is None:
            continue
        if before.KIND != wanted.KIND:
            raise _error(config, wanted, "", f"there is a {before.KIND} of that name already")
        try:
            check_change(before, wanted)
        except InvalidDescription as error:
            raise _error(config, wanted, error.field, error.message) from None
    find = _planned(entities, [wanted for _, wanted in pairs]).get
    for _, wanted in pairs:
        for name in _FORWARDING:
            _check_target(config, wanted, name, find)
    return [wanted for before, wanted in pairs if before != wanted]


def _described(
    config: NamespaceConfig, entities: Entities, now: float
) -> Iterator[tuple[AnyDescription | None, AnyDescription]]:
    """What is there, if anything, and what is wanted. Keys and times that the configuration leaves open are kept."""
    stored: list[QueueConfig | TopicConfig] = [*config.queues, *config.topics]
    for one in stored:
        existing = entities.find(one.description.path)
        before = existing.description if existing is not None else None
        yield before, one.describe(cast(Any, before if type(before) is type(one.description) else None))
    for topic in config.topics:
        for subscription in topic.subscriptions:
            node = entities.resolve(subscription.path)
            known = node.entity.description if node is not None else None
            rules = known.rules if isinstance(known, SubscriptionDescription) else ()
            yield known, replace(subscription, rules=with_times(subscription.rules, rules, now))


def _planned(entities: Entities, wanted: list[AnyDescription]) -> dict[str, _Planned]:
    """All queues and topics as they will be, by their path in lower case."""
    planned: dict[str, _Planned] = {}
    existing: list[AnyDescription] = []
    for entity in entities:
        existing.append(entity.description)
        if isinstance(entity, TopicEntity):
            existing += [one.description for one in entity.subscriptions.values()]
    for description in (*existing, *wanted):
        if isinstance(description, SubscriptionDescription):
            planned[description.topic.lower()].subscriptions[description.name.lower()] = _Planned(description)
        elif description.path.lower() in planned:
            planned[description.path.lower()].description = description
        else:
            planned[description.path.lower()] = _Planned(description)
    return planned


def _check_target(
    config: NamespaceConfig, wanted: AnyDescription, name: str, find: Callable[[str], _Planned | None]
) -> None:
    target = getattr(wanted, name, None)
    if target is None or isinstance(wanted, TopicDescription):
        return
    if find(target.lower()) is None:
        raise _error(config, wanted, name, f"The auto forwarding destination entity '{target}' does not exist.")
    # One way at a time, so that the error names the right one.
    others: dict[str, Any] = {other: None for other in _FORWARDING if other != name}
    try:
        check_forwarding(replace(wanted, **others), cast(Callable[[str], AnyEntity | None], find))
    except InvalidDescription as error:
        raise _error(config, wanted, name, error.message) from None


def _error(config: NamespaceConfig, wanted: AnyDescription, field: str, message: str) -> ConfigError:
    table = config.places.get(wanted.path)
    if table is None:  # it was made in Python
        return ConfigError("", f"{config.name}: {wanted.KIND} {wanted.path}", field, message)
    return table.error(field, message)
