"""Sends each line of standard input as an order, hosts the syphon, and tells what happens meanwhile.

TWINBUS_PRIMARY=… TWINBUS_SECONDARY=… python examples/async_sender.py < orders.txt
"""

from __future__ import annotations

import asyncio
import os
import sys

from azure.servicebus import ServiceBusMessage

from twinbus import Event, FailedOver, Moved, Recovered, SendAvailabilityOptions
from twinbus.aio import PairedServiceBusClient


def tell(event: Event) -> None:
    """Called in the event loop, so it must be quick and not wait."""
    match event:
        case FailedOver(entity=entity) | Recovered(entity=entity):
            print(type(event).__name__, entity, flush=True)
        case Moved(entity=entity, count=count):
            print("Moved", entity, count, flush=True)


async def main() -> None:
    options = SendAvailabilityOptions(
        failover_interval=0,
        ping_primary_interval=1,
        attempt_timeout=5,
        enable_syphon=True,
        primary_name=os.environ.get("TWINBUS_PRIMARY_NAME"),
    )
    primary, secondary = os.environ["TWINBUS_PRIMARY"], os.environ["TWINBUS_SECONDARY"]
    async with PairedServiceBusClient.from_connection_strings(primary, secondary, options=options) as client:
        client.on_event(tell)
        async with client.get_queue_sender("orders") as sender:
            while line := await asyncio.to_thread(sys.stdin.readline):
                receipt = await sender.send_messages(ServiceBusMessage(line.strip()))
                print(receipt.route.value, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
