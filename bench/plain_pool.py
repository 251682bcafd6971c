"""Pools plain SDK senders first come, first served: the alternative to twinbus.

The hand-off matters: with an `asyncio.Queue` or a `SimpleQueue` the caller that returns a sender takes it again before
waiting callers are woken, and those wait for seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue

from azure.servicebus import ServiceBusMessage, ServiceBusSender
from azure.servicebus.aio import ServiceBusSender as AsyncServiceBusSender


class AsyncPlainPool:
    """A pool of SDK senders for tasks of one event loop."""

    def __init__(self, senders: Sequence[AsyncServiceBusSender]) -> None:
        self._senders = senders
        self._idle = list(senders)
        self._waiting: deque[asyncio.Future[AsyncServiceBusSender]] = deque()

    async def send(self, message: ServiceBusMessage) -> None:
        """Send a message as soon as a sender is free."""
        if self._idle:
            sender = self._idle.pop()
        else:
            waiter: asyncio.Future[AsyncServiceBusSender] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            sender = await waiter
        try:
            await sender.send_messages(message)
        finally:
            if self._waiting:
                self._waiting.popleft().set_result(sender)
            else:
                self._idle.append(sender)

    async def close(self) -> None:
        """Close all senders concurrently: each takes most of a second."""
        await asyncio.gather(*(sender.close() for sender in self._senders))


class PlainPool:
    """A pool of SDK senders for threads."""

    def __init__(self, senders: Sequence[ServiceBusSender]) -> None:
        self._senders = senders
        self._idle = list(senders)
        self._waiting: deque[SimpleQueue[ServiceBusSender]] = deque()
        self._lock = threading.Lock()

    def send(self, message: ServiceBusMessage) -> None:
        """Send a message as soon as a sender is free."""
        waiter: SimpleQueue[ServiceBusSender] | None = None
        with self._lock:
            if self._idle:
                sender = self._idle.pop()
            else:
                waiter = SimpleQueue()
                self._waiting.append(waiter)
        if waiter is not None:
            sender = waiter.get()
        try:
            sender.send_messages(message)
        finally:
            with self._lock:
                if self._waiting:
                    self._waiting.popleft().put(sender)
                else:
                    self._idle.append(sender)

    def close(self) -> None:
        """Close all senders concurrently."""
        threads = [threading.Thread(target=sender.close) for sender in self._senders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
