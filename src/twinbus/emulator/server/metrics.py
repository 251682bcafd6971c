"""Writes a namespace's metrics in the Prometheus text format, for `GET /metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..entities.entity_directory import AnyEntity, TopicEntity

if TYPE_CHECKING:
    from .namespace import Namespace

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Family(NamedTuple):
    """One metric and its samples by label."""

    name: str
    kind: str
    help: str
    samples: Iterator[tuple[dict[str, str], float]]


def exposition(namespace: Namespace) -> str:
    """The metrics of a namespace. Counters restart at 0 with the namespace; deleted entities disappear."""
    lines: list[str] = []
    for family in _families(namespace):
        name = f"twinbus_{family.name}"
        lines += (f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}")
        for labels, value in family.samples:
            label_text = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{name}{{{label_text}}} {value}")
    return "\n".join(lines) + "\n"


def _families(namespace: Namespace) -> Iterator[_Family]:
    namespace_labels = {"namespace": namespace.name}
    entities = [(namespace_labels | {"entity": entity.description.path}, entity) for entity in _all_entities(namespace)]
    queues = [(labels, entity.queue) for labels, entity in entities]
    yield _Family("connections", "gauge", "AMQP connections.", iter([(namespace_labels, len(namespace.connections))]))
    pending = namespace.store.pending_bytes
    yield _Family("store_pending_bytes", "gauge", "Waiting to be written.", iter([(namespace_labels, pending)]))
    yield _Family(
        "messages",
        "gauge",
        "Messages that an entity holds, by state.",
        (
            (labels | {"state": state}, count)
            for labels, entity in entities
            for state, count in entity.counts._asdict().items()
        ),
    )
    yield _Family(
        "size_bytes",
        "gauge",
        "Size of what an entity holds.",
        ((labels, entity.size_in_bytes) for labels, entity in entities),
    )
    yield _Family(
        "locked", "gauge", "Messages that receivers hold.", ((labels, queue.locked) for labels, queue in queues)
    )
    for name, help_text in (
        ("received", "Messages that an entity took in."),
        ("delivered", "Deliveries to receivers, repeated ones too."),
        ("completed", "Messages that receivers completed."),
        ("pings", "Pings that were answered and not kept."),
    ):
        samples = ((labels, getattr(queue.activity, name)) for labels, queue in queues)
        yield _Family(f"{name}_total", "counter", help_text, samples)


def _all_entities(namespace: Namespace) -> Iterator[AnyEntity]:
    for entity in namespace.entities:
        yield entity
        if isinstance(entity, TopicEntity):
            yield from entity.subscriptions.values()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
