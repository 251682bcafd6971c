"""Calls functions of the application so that they can neither fail nor delay a send.

Callbacks and recorders are called on a helper thread, through a bounded queue (`Relay`). A policy, which must return a
decision, is awaited for a bounded time (`BoundedCall`). Their failures are logged once and counted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from twinbus.ledger.recorder import Operation, Recorder

logger = logging.getLogger("twinbus.pairing")

#: Values that wait for a function of the application; more are dropped and counted.
MAX_WAITING = 10_000
#: Seconds without work after which a helper thread ends; the next value starts a new one.
IDLE_SECONDS = 1.0
#: Seconds after which a call that has not returned is reported.
SLOW_SECONDS = 5.0
#: Timeout of a function that must return a decision, in seconds.
ANSWER_SECONDS = 1.0

RECORDER, CALLBACK, POLICY = "recorder", "callback", "policy"
DROPPED = "dropped"
STUCK = "does not return"


class FailureCounter:
    """Counts failures of the application's functions by role, and logs each kind once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: set[tuple[str, str]] = set()
        self._counts: Counter[str] = Counter()

    def __getitem__(self, role: str) -> int:
        return self._counts[role]

    def raised(self, role: str, error: BaseException) -> None:
        """Record that the function raised."""
        self._add(role, f"raised {type(error).__name__}", error)

    def add(self, role: str, problem: str) -> None:
        """Record another problem of the function."""
        self._add(role, problem, None)

    def _add(self, role: str, problem: str, error: BaseException | None) -> None:
        with self._lock:
            self._counts[role] += 1
            is_new = (role, problem) not in self._logged
            self._logged.add((role, problem))
        if is_new:
            text = "A %s of the application %s. Sends go on. Further cases are only counted"
            logger.warning(text, role, problem, exc_info=error)

    def dropped(self, role: str) -> None:
        """Record that a value was dropped because the function is too slow."""
        with self._lock:
            self._counts[DROPPED] += 1
        self._add(role, "is too slow: values for it were dropped", None)


class Relay:
    """Calls a function with each value, in order, on a thread that lives while there is work."""

    def __init__(self, role: str, function: Callable[[Any], object], failures: FailureCounter) -> None:
        self.role = role
        self._function = function
        self._failures = failures
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()
        self._thread: threading.Thread | None = None
        #: When the running call began; None if there is none, or if it was reported.
        self._called_at: float | None = None
        self._is_closed = False

    def put(self, value: Any) -> None:
        """Call the function with this value, soon. Never waits, never raises."""
        with self._changed:
            if self._is_closed:
                return
            is_kept = len(self._waiting) < MAX_WAITING and self._has_thread()
            if is_kept:
                self._waiting.append(value)
                self._changed.notify()
        if not is_kept:
            self._failures.dropped(self.role)
        self.report_stuck()

    def report_stuck(self) -> None:
        """Log and count, once, a call that has not returned for a while."""
        with self._changed:
            is_stuck = self._called_at is not None and time.monotonic() - self._called_at >= SLOW_SECONDS
            if is_stuck:
                self._called_at = None
        if is_stuck:
            self._failures.add(self.role, STUCK)

    def _has_thread(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"twinbus-{self.role}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends, or there are too many threads
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_closed or not self._changed.wait(IDLE_SECONDS):
                        if self._waiting:
                            continue
                        self._thread = None
                        return
                value = self._waiting.popleft()
                self._called_at = time.monotonic()
            try:
                self._function(value)
            except BaseException as error:  # also SystemExit: no signal is delivered to this thread
                self._failures.raised(self.role, error)
            with self._changed:
                self._called_at = None

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return self._thread is None

    def close(self) -> None:
        """Accept no more values. Waiting ones are still delivered; then the thread ends."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def open_again(self) -> None:
        """Accept values again after `close`."""
        with self._changed:
            self._is_closed = False

    def cancel(self) -> None:
        """Close, and discard waiting values."""
        with self._changed:
            self._waiting.clear()
        self.close()


class RelayedRecorder:
    """A recorder of the application, called on a helper thread."""

    def __init__(self, relay: Relay) -> None:
        self._put = relay.put

    def record(self, operation: Operation) -> None:
        self._put(operation)


class BoundedCall:
    """A function of the application that returns a decision; if it fails, `default` decides."""

    def __init__(
        self, role: str, function: Callable[[Any], Any], default: Callable[[Any], Any], failures: FailureCounter
    ) -> None:
        self._role = role
        self._function = function
        self._default = default
        self._failures = failures
        self._stuck: threading.Thread | None = None

    def __call__(self, value: Any) -> Any:
        """Return the decision within `ANSWER_SECONDS`. While an earlier call has not returned, use the default."""
        answers: list[Any] = []

        def call() -> None:
            try:
                answers.append(self._function(value))
            except BaseException as error:
                self._failures.raised(self._role, error)

        if self._stuck is not None and self._stuck.is_alive():
            self._failures.add(self._role, STUCK)
            return self._default(value)
        thread = threading.Thread(target=call, name=f"twinbus-{self._role}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return self._default(value)
        thread.join(ANSWER_SECONDS)
        if thread.is_alive():
            self._stuck = thread
            self._failures.add(self._role, STUCK)
        return answers[0] if answers else self._default(value)


class ForeignCalls:
    """All functions of the application that a pairing calls."""

    def __init__(self) -> None:
        self.failures = FailureCounter()
        self._lock = threading.Lock()
        self._relays: list[Relay] = []

    def relay(self, role: str, function: Callable[[Any], object]) -> Relay:
        """Call a function on its own helper thread."""
        relay = Relay(role, function, self.failures)
        with self._lock:
            self._relays.append(relay)
        return relay

    def recorder(self, recorder: Recorder) -> Recorder:
        """Return a recorder that is called on a helper thread."""
        return RelayedRecorder(self.relay(RECORDER, recorder.record))

    def adopt_callbacks(self, previous: ForeignCalls) -> None:
        """Take over the callbacks of a closed client that is used again."""
        adopted = [relay for relay in list(previous._relays) if relay.role == CALLBACK]
        for relay in adopted:
            relay.open_again()
        self._relays += adopted

    def forget(self, relay: Relay) -> None:
        """Stop calling a function of the application."""
        relay.cancel()
        with self._lock:
            self._relays.remove(relay)

    def report_stuck(self) -> None:
        """Log and count calls that do not return, even if no new values arrive."""
        for relay in list(self._relays):
            relay.report_stuck()

    def close(self) -> None:
        """Accept no more values; waiting ones are still delivered, then all threads end."""
        for relay in list(self._relays):
            relay.close()

    async def close_within(self, seconds: float) -> None:
        """Close, and wait at most `seconds` until all values are delivered."""
        self.close()
        ends = time.monotonic() + seconds
        while not all(relay.is_idle for relay in list(self._relays)) and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self.report_stuck()
