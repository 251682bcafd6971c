"""What a sender tells about a send that was accepted."""

from __future__ import annotations

from typing import NamedTuple

from .failover import Route


class Receipt(NamedTuple):
    """Where the messages of one call were accepted.

    `queue` is the path of the backlog queue, None on the way to the primary; of messages that were stored in parts, the
    queue of the last part. `message_ids` are in the order of the messages, those that were filled in too. `attempts`
    counts the tries, at either namespace. For an empty list nothing was sent: `route` is the one that a message would
    take now, and `attempts` is 0.
    """

    route: Route
    entity: str
    queue: str | None
    message_ids: tuple[str, ...]
    attempts: int
