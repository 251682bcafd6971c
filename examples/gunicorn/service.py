"""A WSGI application for gunicorn with `preload_app`: each worker makes its client after the fork.

TWINBUS_PRIMARY=… TWINBUS_SECONDARY=… gunicorn --chdir examples/gunicorn
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from azure.servicebus import ServiceBusMessage

from twinbus import PairedSender, PairedServiceBusClient, SendAvailabilityOptions, TwinbusError

_client: PairedServiceBusClient | None = None
_orders: PairedSender | None = None


def open_client() -> None:
    """Called by `post_fork` of gunicorn.conf.py, in each worker."""
    global _client, _orders
    options = SendAvailabilityOptions(primary_name=os.environ.get("TWINBUS_PRIMARY_NAME"))
    _client = PairedServiceBusClient(os.environ["TWINBUS_PRIMARY"], os.environ["TWINBUS_SECONDARY"], options)
    _orders = _client.get_queue_sender("orders")


def close_client() -> None:
    """Called by `worker_exit`."""
    if _client is not None:
        _client.close()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    assert _orders is not None
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    try:
        receipt = _orders.send_messages(ServiceBusMessage(body), timeout=10)
    except TwinbusError:
        start_response("503 Service Unavailable", [("Retry-After", "10")])
        return [b"not accepted anywhere\n"]
    start_response("202 Accepted", [("Content-Type", "text/plain")])
    return [f"{receipt.message_ids[0]} {receipt.route.value}\n".encode()]
