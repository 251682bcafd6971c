"""What a group of changes comes to: which statements run with which rows, and what they do to the counters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .schema import INSERT, INSERT_PLAIN, Change

Rows = list[tuple[object, ...]]
#: By queue: how many more messages are active, deferred and scheduled, their bytes, and the last sequence number.
Counters = dict[int, list[int]]


def sorted_out(group: Iterable[Sequence[Change]]) -> tuple[dict[str, Rows], list[tuple[str, Rows]], Counters]:
    """New messages, the other changes in order with equal statements together, and what they do to the counters."""
    inserts: dict[str, Rows] = {INSERT_PLAIN: [], INSERT: []}
    others: list[tuple[str, Rows]] = []
    counters: Counters = {}
    for changes in group:
        for sql, parameters, key, active, deferred, scheduled, size, last in changes:
            if sql in inserts:
                inserts[sql].append(parameters)
            elif others and others[-1][0] is sql:
                others[-1][1].append(parameters)
            else:
                others.append((sql, [parameters]))
            if key >= 0:
                count(counters, key, active, deferred, scheduled, size, last)
    return inserts, others, counters


def count(counters: Counters, key: int, active: int, deferred: int, scheduled: int, size: int, last: int) -> None:
    """Add what changes in one queue."""
    counts = counters.get(key)
    if counts is None:
        counters[key] = [active, deferred, scheduled, size, last]
        return
    counts[0] += active
    counts[1] += deferred
    counts[2] += scheduled
    counts[3] += size
    if last > counts[4]:
        counts[4] = last
