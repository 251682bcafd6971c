"""Notices that primary and secondary were exchanged, before anything is created in the wrong one.

A pairing leaves its mark: the secondary holds queues that are named after the primary. If the namespace given as the
*primary* holds queues named after the *secondary*, and the secondary none named after the primary, the two are
exchanged. If both hold such queues, each is the other's secondary (docs/pairing.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from .backlog import gather_in_turn
from .naming import backlog_path

#: Backlog queues that are looked for under each name: as many as a pairing has by default.
LOOK_FOR = 10


async def first_backlog_queue(
    exists: Callable[[str], Awaitable[bool]], names: Collection[str], count: int = LOOK_FOR
) -> str | None:
    """The first backlog queue named after one of `names`, None if there is none; `exists` asks a namespace for a path.

    Raises what `exists` raises, unless a queue was found all the same.
    """
    # A pairing has a queue 0 unless it was deleted, so usually that answer is all that is needed.
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
