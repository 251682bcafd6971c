"""Plan which pumps run in the next slice, and how fast. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from twinbus.pairing.options import Order

#: Fewer messages for each pump are not worth the connections and the start of another one.
LEAST_PER_PUMP = 2_000
#: Slices grow to their full length, so that the first results come soon.
FIRST_SECONDS, GROWTH = 10.0, 3.0
LEAST_SECONDS, MOST_SECONDS = 1.0, 60.0
MAX_PUMPS = 1_000


@dataclass(frozen=True, slots=True)
class Depth:
    """Estimate of the messages in a backlog queue: waiting or locked, and deferred."""

    queue: str
    active: int
    deferred: int = 0

    @property
    def total(self) -> int:
        return self.active + self.deferred


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one task does: pump these queues, or help with one that another task pumps, too."""

    queues: tuple[str, ...]
    is_extra: bool = False
    #: Most messages a second.
    rate: float | None = None


def plan(
    depths: Sequence[Depth], *, pumps: int, order: Order | None = None, rate: float | None = None
) -> tuple[Assignment, ...]:
    """Assign queues that have messages to at most `pumps` tasks: each to at least one, deep ones to several.

    With `order`, each queue has one pump. The rate is divided evenly. Raises `ValueError` for a number of pumps
    out of bounds.
    """
    if not 1 <= pumps <= MAX_PUMPS:
        raise ValueError(f"pumps must be 1 to {MAX_PUMPS}, not {pumps}")
    busy = [depth for depth in depths if depth.total]
    if len(busy) > pumps:
        groups = [Assignment(queues) for queues in _grouped(busy, pumps)]
    else:
        groups = [Assignment((depth.queue,)) for depth in busy]
        if order is None:
            groups += [Assignment((queue,), is_extra=True) for queue in _extra(busy, pumps)]
    share = None if rate is None or not groups else rate / len(groups)
    return tuple(Assignment(group.queues, group.is_extra, share) for group in groups)


def _extra(depths: Sequence[Depth], pumps: int) -> list[str]:
    """The queues of extra pumps: each helps where a pump has most to do."""
    queues: list[str] = []
    heap = [(-float(depth.active), 1, depth.queue, depth.active) for depth in depths]
    heapq.heapify(heap)
    while heap and len(depths) + len(queues) < pumps:
        _, count, queue, active = heapq.heappop(heap)
        if active < (count + 1) * LEAST_PER_PUMP:
            continue
        queues.append(queue)
        heapq.heappush(heap, (-active / (count + 1), count + 1, queue, active))
    return queues


def _grouped(depths: Sequence[Depth], groups: int) -> list[tuple[str, ...]]:
    """Groups of queues with about as many messages for each pump."""
    heap: list[tuple[int, int, list[str]]] = [(0, index, []) for index in range(groups)]
    for depth in sorted(depths, key=lambda depth: -depth.total):
        load, index, queues = heapq.heappop(heap)
        queues.append(depth.queue)
        heapq.heappush(heap, (load + depth.total, index, queues))
    return [tuple(queues) for _, _, queues in sorted(heap, key=lambda group: group[1])]


def slice_seconds(number: int, most: float) -> float:
    """How long the pumps of a slice receive new messages, by its 0-based number."""
    # Larger powers make no difference, and would not fit.
    return min(most, FIRST_SECONDS * GROWTH ** min(number, 10))
