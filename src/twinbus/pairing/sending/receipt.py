"""The receipt of an accepted send."""

from __future__ import annotations

from typing import NamedTuple

from ..failover.entity_failover import Route


class Receipt(NamedTuple):
    """Where the messages of one call were accepted.

    `queue` is the path of the backlog queue, None if the primary accepted them; if the messages were stored in parts,
    the queue of the last part. `message_ids` are in message order and include generated ids. `attempts` counts attempts
    at either namespace. For an empty list nothing was sent: `route` is where a message would go now, and `attempts` is
    0.
    """

    route: Route
    entity: str
    queue: str | None
    message_ids: tuple[str, ...]
    attempts: int
