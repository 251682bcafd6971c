"""Detects swapped namespaces before anything is created in the wrong one.

In a pairing the secondary holds queues named after the primary. If the *primary* holds queues named after the
*secondary*, and the secondary none named after the primary, the two are swapped. If both hold such queues, each is the
other's secondary (docs/explanation/pairing.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from twinbus.servicebus.entity_paths import backlog_path

from .provisioning import gather_in_turn

#: Backlog queues to check for each name: the default number of a pairing.
LOOK_FOR = 10


async def first_backlog_queue(
    exists: Callable[[str], Awaitable[bool]], names: Collection[str], count: int = LOOK_FOR
) -> str | None:
    """Return the first backlog queue named after one of `names`, or None; `exists` checks a path.

    Raises what `exists` raises, unless a queue was found.
    """
    # A pairing has a queue 0 unless it was deleted, so usually one request is enough.
    for indexes in (range(1), range(1, count)):
        paths = [backlog_path(name, index) for name in names for index in indexes]
        answers = await gather_in_turn(exists, paths)
        for path, answer in zip(paths, answers, strict=True):
            if answer is True:
                return path
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
    return None
