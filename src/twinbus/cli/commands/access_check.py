"""Checks before a drain that the keys are accepted and that a backlog queue exists.

Without it, a wrong key or name shows only as one warning per queue, repeated for as long as the syphon runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twinbus.amqp.client.errors import AmqpError
from twinbus.amqp.client.receiver import Delivery
from twinbus.syphon.delivery.send_failures import NOT_FOUND

from ..options.namespaces import Pair
from .pair_status import reach

ATTACH_SECONDS = 15.0
_UNAUTHORIZED = "amqp:unauthorized-access"


@dataclass(frozen=True, slots=True)
class AccessProblem:
    """Why nothing can be drained, in one line that names the option."""

    text: str
    #: The backlog queues do not exist, as opposed to a refused key.
    is_missing: bool = False


async def find_access_problem(
    pair: Pair, queues: Sequence[str], destinations: Iterable[str] | None
) -> AccessProblem | None:
    """Return why nothing can be drained, or None. A namespace that does not answer is no problem: it may come back."""
    primary, secondary = await asyncio.gather(
        _find_primary_problem(pair, destinations or ()), _find_secondary_problem(pair, queues)
    )
    return secondary or primary


def missing_text(queues: Sequence[str]) -> str:
    """Return the line that says that none of these backlog queues exists, and which options to check."""
    if len(queues) == 1:
        fact = f"the backlog queue {queues[0]} does not exist."
    else:
        fact = f"none of the {len(queues)} backlog queues exists: {queues[0]}, …"
    return f"{fact} Is --primary-name wrong, or are --primary and --secondary swapped?"


async def _find_primary_problem(pair: Pair, destinations: Iterable[str]) -> AccessProblem | None:
    reached = await reach(pair.primary, pair.primary_namespace.entity_path or "")
    if reached.error is None or not reached.answers:
        return None
    for destination in destinations:  # the key may be that of one queue or topic
        if (await reach(pair.primary, destination)).error is None:
            return None
    return AccessProblem(
        f"--primary: {pair.primary.endpoint} refuses the key: {reached.error}."
        " If it is the key of one queue or topic, add EntityPath=… to the connection string"
    )


async def _find_secondary_problem(pair: Pair, queues: Sequence[str]) -> AccessProblem | None:
    """Attach to the queues until one accepts."""
    refusal: AmqpError | None = None
    try:
        async with pair.secondary.open() as connection:
            for queue in queues:
                try:
                    receiver = await connection.attach_receiver(queue, _ignore, seconds=ATTACH_SECONDS)
                except AmqpError as error:
                    if error.condition == _UNAUTHORIZED:
                        refusal = refusal or error
                    elif error.condition != NOT_FOUND:
                        return None
                else:
                    await receiver.close(ATTACH_SECONDS)
                    return None
    except (AmqpError, TimeoutError, OSError):
        return None
    if refusal is not None:
        return AccessProblem(f"--secondary: {pair.secondary.endpoint} refuses the key: {refusal.description}")
    return AccessProblem(missing_text(queues), is_missing=True)


def _ignore(_: Delivery) -> None:
    """Without credit no message is delivered."""
