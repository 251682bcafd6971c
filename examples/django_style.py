"""A synchronous web application with one client for each process, made when it is first used and closed at exit.

In Django the two cached functions go into a module such as `shop/bus.py`, and `place_order` is the view.

TWINBUS_PRIMARY=… TWINBUS_SECONDARY=… python examples/django_style.py
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from wsgiref.simple_server import make_server

from azure.servicebus import ServiceBusMessage

from twinbus import PairedSender, PairedServiceBusClient, SendAvailabilityOptions, TwinbusError


@cache
def client() -> PairedServiceBusClient:
    # Not at import: servers fork after that, and a connection or thread does not survive a fork.
    options = SendAvailabilityOptions(primary_name=os.environ.get("TWINBUS_PRIMARY_NAME"))
    made = PairedServiceBusClient(os.environ["TWINBUS_PRIMARY"], os.environ["TWINBUS_SECONDARY"], options)
    atexit.register(made.close)
    made.start()
    return made


@cache
def orders() -> PairedSender:
    """Threads may share it: each waits for its turn."""
    return client().get_queue_sender("orders")


def place_order(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    try:
        receipt = orders().send_messages(ServiceBusMessage(body), timeout=10)
    except TwinbusError:
        start_response("503 Service Unavailable", [("Retry-After", "10")])
        return [b"not accepted anywhere\n"]
    start_response("202 Accepted", [("Content-Type", "text/plain")])
    return [f"{receipt.message_ids[0]} {receipt.route.value}\n".encode()]


if __name__ == "__main__":
    with make_server("127.0.0.1", 0, place_order) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            # wsgiref catches whatever is raised within a request, so the signal is not turned into an exception.
            signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
