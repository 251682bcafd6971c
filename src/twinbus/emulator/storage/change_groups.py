"""Groups the changes of a commit by SQL statement, for `executemany`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .schema import INSERT, INSERT_PLAIN, Change

Rows = list[tuple[object, ...]]


def group_by_statement(group: Iterable[Sequence[Change]]) -> tuple[dict[str, Rows], list[tuple[str, Rows]]]:
    """The rows of new messages, and the other changes in order, with runs of one statement together."""
    inserts: dict[str, Rows] = {INSERT_PLAIN: [], INSERT: []}
    others: list[tuple[str, Rows]] = []
    for changes in group:
        for sql, parameters in changes:
            if sql in inserts:
                inserts[sql].append(parameters)
            elif others and others[-1][0] is sql:
                others[-1][1].append(parameters)
            else:
                others.append((sql, [parameters]))
    return inserts, others
