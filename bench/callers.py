"""Runs concurrent callers of shared senders, as tasks or threads, and logs each call."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TypeVar

from azure.servicebus import ServiceBusMessage
from bench.plain_pool import AsyncPlainPool, PlainPool

from twinbus import PairedServiceBusClient, SendAvailabilityOptions, aio
from twinbus.pairing.events import Event
from twinbus.pairing.failover.entity_failover import Route
from twinbus.pairing.namespace import Namespace

BODY = b"x" * 1024
#: Timeout in seconds for callers to end, and for clients to open and close.
WAIT_SECONDS = 60.0

T = TypeVar("T")
#: Sends one message; returns a receipt or nothing, or an awaitable of it.
Send = Callable[[ServiceBusMessage], Any]


class Call(NamedTuple):
    """The end time and duration of a call, in seconds."""

    ended: float
    seconds: float


class Log:
    """The outcomes of calls. Thread-safe."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.errors: list[str] = []
        self.diverted = 0

    def record(self, began: float, receipt: Any) -> None:
        """Record an accepted call."""
        ended = time.perf_counter()
        self.calls.append(Call(ended, ended - began))
        if receipt is not None and receipt.route is Route.BACKLOG:
            self.diverted += 1

    def fail(self, error: Exception) -> None:
        """Record a failed call."""
        self.errors.append(type(error).__name__)

    def between(self, begin: float, end: float) -> list[float]:
        """The durations of calls that ended in this period, in ascending order."""
        return sorted(call.seconds for call in self.calls if begin <= call.ended < end)

    def failed(self) -> str:
        """The number of failed calls by error class, as text."""
        return ", ".join(f"{count} {name}" for name, count in Counter(self.errors).items()) or "0"


def percentile(ascending: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed; 0 for no values."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else 0.0


class Paired(NamedTuple):
    """Senders of one paired client, and its events."""

    sends: list[Send]
    events: list[Event]


class Callers(ABC):
    """Opens senders to one queue and runs concurrent callers."""

    name: str

    def __init__(self, primary: str, secondary: str, queue: str) -> None:
        self._primary = primary
        self._secondary = secondary
        self._queue = queue

    @abstractmethod
    def paired(self, senders: int, **options: Any) -> AbstractContextManager[Paired]:
        """Context manager of a client with this number of senders."""

    @abstractmethod
    def plain(self, links: int) -> AbstractContextManager[Send]:
        """Context manager of a pool with this number of plain SDK senders."""

    @abstractmethod
    def calling(self, sends: Sequence[Send], callers: int) -> AbstractContextManager[Log]:
        """Context manager in which this number of callers send continuously, and their log."""

    @abstractmethod
    def burst(self, sends: Sequence[Send], calls: int) -> Log:
        """Make `calls` concurrent calls and wait for all."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything. All contexts must have ended."""


class AsyncCallers(Callers):
    """Callers as tasks of an event loop in its own thread."""

    name = "async"

    def __init__(self, primary: str, secondary: str, queue: str) -> None:
        super().__init__(primary, secondary, queue)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    @contextmanager
    def paired(self, senders: int, **options: Any) -> Iterator[Paired]:
        events: list[Event] = []

        async def open_client() -> tuple[aio.PairedServiceBusClient, list[Send]]:
            client = await aio.pair_namespaces(self._primary, self._secondary, SendAvailabilityOptions(**options))
            client.on_event(events.append)
            return client, [client.get_queue_sender(self._queue).send_messages for _ in range(senders)]

        client, sends = self._run(open_client())
        try:
            yield Paired(sends, events)
        finally:
            self._run(client.close())

    @contextmanager
    def plain(self, links: int) -> Iterator[Send]:
        async def open_client() -> tuple[Any, AsyncPlainPool]:
            client = Namespace.from_connection_string(self._primary).async_client()
            return client, AsyncPlainPool([client.get_queue_sender(self._queue) for _ in range(links)])

        async def close_client() -> None:
            await pool.close()
            await client.close()

        client, pool = self._run(open_client())
        try:
            yield pool.send
        finally:
            self._run(close_client())

    @staticmethod
    async def _call(send: Callable[[ServiceBusMessage], Awaitable[Any]], log: Log) -> None:
        began = time.perf_counter()
        try:
            log.record(began, await send(ServiceBusMessage(BODY)))
        except Exception as error:
            log.fail(error)

    @contextmanager
    def calling(self, sends: Sequence[Send], callers: int) -> Iterator[Log]:
        log, is_over = Log(), threading.Event()

        async def caller(number: int) -> None:
            while not is_over.is_set():
                await self._call(sends[number % len(sends)], log)

        async def all_callers() -> None:
            await asyncio.gather(*(caller(number) for number in range(callers)))

        future = asyncio.run_coroutine_threadsafe(all_callers(), self._loop)
        try:
            yield log
        finally:
            is_over.set()
            future.result(WAIT_SECONDS)

    def burst(self, sends: Sequence[Send], calls: int) -> Log:
        log = Log()

        async def all_calls() -> None:
            await asyncio.gather(*(self._call(sends[number % len(sends)], log) for number in range(calls)))

        self._run(all_calls())
        return log


class ThreadCallers(Callers):
    """Callers as threads."""

    name = "sync"

    def close(self) -> None:
        """Does nothing: threads end with their context."""

    @contextmanager
    def paired(self, senders: int, **options: Any) -> Iterator[Paired]:
        events: list[Event] = []
        with PairedServiceBusClient(self._primary, self._secondary, SendAvailabilityOptions(**options)) as client:
            client.on_event(events.append)
            yield Paired([client.get_queue_sender(self._queue).send_messages for _ in range(senders)], events)

    @contextmanager
    def plain(self, links: int) -> Iterator[Send]:
        with Namespace.from_connection_string(self._primary).sync_client() as client:
            pool = PlainPool([client.get_queue_sender(self._queue) for _ in range(links)])
            try:
                yield pool.send
            finally:
                pool.close()

    @staticmethod
    def _call(send: Send, log: Log) -> None:
        began = time.perf_counter()
        try:
            log.record(began, send(ServiceBusMessage(BODY)))
        except Exception as error:
            log.fail(error)

    @contextmanager
    def calling(self, sends: Sequence[Send], callers: int) -> Iterator[Log]:
        log, is_over = Log(), threading.Event()

        def caller(send: Send) -> None:
            while not is_over.is_set():
                self._call(send, log)

        threads = [threading.Thread(target=caller, args=[sends[n % len(sends)]], daemon=True) for n in range(callers)]
        for thread in threads:
            thread.start()
        try:
            yield log
        finally:
            is_over.set()
            _join(threads)

    def burst(self, sends: Sequence[Send], calls: int) -> Log:
        log = Log()
        threads = [
            threading.Thread(target=self._call, args=[sends[number % len(sends)], log], daemon=True)
            for number in range(calls)
        ]
        for thread in threads:
            thread.start()
        _join(threads)
        return log


def _join(threads: Sequence[threading.Thread]) -> None:
    """Join the threads. Raises `TimeoutError` if one does not end."""
    deadline = time.monotonic() + WAIT_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            raise TimeoutError(f"callers did not end within {WAIT_SECONDS:g} s")
