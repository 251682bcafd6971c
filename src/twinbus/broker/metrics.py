"""What a namespace holds and does, in the text format of Prometheus: `GET /metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from .entities import AnyEntity, TopicEntity

if TYPE_CHECKING:
    from .namespace import Namespace

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Family(NamedTuple):
    """Series of one name, each with its labels."""

    name: str
    kind: str
    help: str
    samples: Iterator[tuple[dict[str, str], float]]


def exposition(namespace: Namespace) -> str:
    """All series of a namespace. Counters begin at 0 with each start; entities that are deleted leave."""
    lines: list[str] = []
    for family in _families(namespace):
        name = f"twinbus_{family.name}"
        lines += (f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}")
        for labels, value in family.samples:
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{name}{{{shown}}} {value}")
    return "\n".join(lines) + "\n"


def _families(namespace: Namespace) -> Iterator[_Family]:
    own = {"namespace": namespace.name}
    entities = [(own | {"entity": one.description.path}, one) for one in _all(namespace)]
    queues = [(labels, one.queue) for labels, one in entities]
    yield _Family("connections", "gauge", "AMQP connections.", iter([(own, len(namespace.connections))]))
    pending = namespace.store.pending_bytes
    yield _Family("store_pending_bytes", "gauge", "Waiting to be written.", iter([(own, pending)]))
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
    yield _Family("locked", "gauge", "Messages that receivers hold.", ((labels, one.locked) for labels, one in queues))
    for name, help_text in (
        ("received", "Messages that an entity took in."),
        ("delivered", "Deliveries to receivers, repeated ones too."),
        ("completed", "Messages that receivers completed."),
        ("pings", "Pings that were answered and not kept."),
    ):
        samples = ((labels, getattr(one.activity, name)) for labels, one in queues)
        yield _Family(f"{name}_total", "counter", help_text, samples)


def _all(namespace: Namespace) -> Iterator[AnyEntity]:
    for entity in namespace.entities:
        yield entity
        if isinstance(entity, TopicEntity):
            yield from entity.subscriptions.values()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
