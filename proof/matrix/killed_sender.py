"""Sends messages from a separate process until it is killed: `python -m proof.matrix.killed_sender`.

Prints every attempt before sending and every outcome after it, a line each, so that its parent knows exactly what was
acknowledged when it was killed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus import SendAvailabilityOptions
from twinbus.aio import PairedServiceBusClient

#: Environment variable with the orders, which contain keys and must not be on the command line.
ORDERS = "TWINBUS_PROOF_SENDER"
PAUSE = 0.01  # seconds


@dataclass(frozen=True, slots=True)
class Orders:
    """Where and what to send. Every message id starts with `prefix`."""

    primary: str
    secondary: str
    entity: str
    prefix: str
    session: str | None
    options: dict[str, Any]

    def as_environment(self) -> dict[str, str]:
        return {ORDERS: json.dumps(asdict(self))}


def content_of(message_id: str) -> str:
    """The body of the message with this id."""
    return f"body of {message_id}"


async def send(orders: Orders) -> None:
    """Send until the process is killed."""
    client = PairedServiceBusClient.from_connection_strings(
        orders.primary, orders.secondary, options=SendAvailabilityOptions(**orders.options)
    )
    async with client, client.get_queue_sender(orders.entity) as sender:
        for number in itertools.count():
            message_id = f"{orders.prefix}-{number}"
            print("attempt", message_id, flush=True)
            message = ServiceBusMessage(content_of(message_id), message_id=message_id, session_id=orders.session)
            try:
                receipt = await sender.send_messages(message)
            except ServiceBusError as error:
                print("refused", type(error).__name__, flush=True)
            else:
                print("accepted", message_id, receipt.route.value, flush=True)
            await asyncio.sleep(PAUSE)


if __name__ == "__main__":
    asyncio.run(send(Orders(**json.loads(os.environ[ORDERS]))))
