from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from twinbus.emulator import Namespace, QueueDescription

QUEUE = "orders"
# Requests that are answered without a token.
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Errors(logging.Handler):
    """Keeps error logs, which stand for unexpected exceptions."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True)
def _no_errors_are_logged() -> Iterator[None]:
    errors = Errors()
    loggers = [logging.getLogger(name) for name in ("twinbus", "asyncio", "aiohttp")]
    for logger in loggers:
        logger.addHandler(errors)
    yield
    for logger in loggers:
        logger.removeHandler(errors)
    assert [record.getMessage() for record in errors.records] == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespace() -> AsyncIterator[Namespace]:
    async with Namespace("contoso") as running:
        await running.create(QueueDescription(QUEUE))
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def well_behaved(namespace: Namespace) -> AsyncIterator[ServiceBusSender]:
    """A connected SDK sender without retries, which could hide failures."""
    async with (
        ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        yield sender


@pytest_asyncio.fixture(loop_scope="module")
async def serving(well_behaved: ServiceBusSender) -> AsyncIterator[None]:
    """Check that the well-behaved client is served before and after the test."""
    await well_behaved.send_messages(ServiceBusMessage("before"))
    yield
    await well_behaved.send_messages(ServiceBusMessage("after"))
