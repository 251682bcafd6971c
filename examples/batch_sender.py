"""Sends the lines of standard input in batches that are as full as can be.

TWINBUS_PRIMARY=… TWINBUS_SECONDARY=… python examples/batch_sender.py < orders.txt
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError

from twinbus import PairedSender, PairedServiceBusClient, SendAvailabilityOptions


def send_all(sender: PairedSender, lines: Iterable[str]) -> None:
    # A batch of a paired sender leaves room for the envelope: full as it is, it can be diverted in one piece.
    batch = sender.create_message_batch()
    for line in lines:
        message = ServiceBusMessage(line.rstrip("\n"))
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            if not len(batch):
                raise  # this one alone is too large
            send(sender, batch)
            batch = sender.create_message_batch()
            batch.add_message(message)
    if len(batch):
        send(sender, batch)


def send(sender: PairedSender, batch: ServiceBusMessageBatch) -> None:
    receipt = sender.send_messages(batch)
    print(receipt.route.value, len(receipt.message_ids), flush=True)


def main() -> None:
    options = SendAvailabilityOptions(primary_name=os.environ.get("TWINBUS_PRIMARY_NAME"))
    primary, secondary = os.environ["TWINBUS_PRIMARY"], os.environ["TWINBUS_SECONDARY"]
    with (
        PairedServiceBusClient.from_connection_strings(primary, secondary, options=options) as client,
        client.get_queue_sender("orders") as sender,
    ):
        send_all(sender, sys.stdin)


if __name__ == "__main__":
    main()
