"""A pool of processes that send: each worker makes its client when it starts.

Prints how many messages went to the primary and how many to the backlog. The start method may be fork, forkserver or
spawn.

TWINBUS_PRIMARY=… TWINBUS_SECONDARY=… python examples/worker_pool.py fork
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from azure.servicebus import ServiceBusMessage

from twinbus import PairedSender, PairedServiceBusClient, SendAvailabilityOptions

_orders: PairedSender


def open_client() -> None:
    """Runs in each worker before its first task. The connections end with the worker."""
    global _orders
    options = SendAvailabilityOptions(primary_name=os.environ.get("TWINBUS_PRIMARY_NAME"))
    client = PairedServiceBusClient(os.environ["TWINBUS_PRIMARY"], os.environ["TWINBUS_SECONDARY"], options)
    _orders = client.get_queue_sender("orders")


def send(number: int) -> str:
    return _orders.send_messages(ServiceBusMessage(f"order {number}"), timeout=10).route.value


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1] if len(sys.argv) > 1 else "spawn")
    with ProcessPoolExecutor(2, context, initializer=open_client) as pool:
        print(dict(Counter(pool.map(send, range(10)))))
