"""Sends each line of standard input as an order, and says where it was accepted.

TWINBUS_PRIMARY=… TWINBUS_SECONDARY=… python examples/sync_sender.py < orders.txt
"""

from __future__ import annotations

import os
import sys

from azure.servicebus import ServiceBusMessage

from twinbus import BacklogUnavailableError, PairedServiceBusClient, SendAvailabilityOptions


def main() -> int:
    options = SendAvailabilityOptions(attempt_timeout=5, primary_name=os.environ.get("TWINBUS_PRIMARY_NAME"))
    primary, secondary = os.environ["TWINBUS_PRIMARY"], os.environ["TWINBUS_SECONDARY"]
    with (
        PairedServiceBusClient.from_connection_strings(primary, secondary, options=options) as client,
        client.get_queue_sender("orders") as sender,
    ):
        for line in sys.stdin:
            try:
                receipt = sender.send_messages(ServiceBusMessage(line.strip()), timeout=20)
            except BacklogUnavailableError as error:
                # Both namespaces are down: it is stored nowhere, and that is for the program to deal with.
                print(error, file=sys.stderr)
                return 1
            print(receipt.route.value, receipt.queue or receipt.entity, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
