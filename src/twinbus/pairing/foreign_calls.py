"""Calls functions of the application (callbacks, recorders, policies) so that they can neither fail nor delay ours.

A function that is only told something is called on a helper thread, through a bounded queue (`Relay`). One that has
to decide something is waited for, for a bounded time (`Question`). What they do wrong is logged once and counted.
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
#: Seconds without work after which a helper thread ends; the next value starts another one.
IDLE_SECONDS = 1.0
#: Seconds that a function which decides something may take.
ANSWER_SECONDS = 1.0

RECORDER, CALLBACK, POLICY = "recorder", "callback", "policy"
DROPPED = "dropped"


class Mishaps:
    """Counts what functions of the application did wrong, by role, and logs each kind once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: set[tuple[str, str]] = set()
        self._counts: Counter[str] = Counter()

    def __getitem__(self, role: str) -> int:
        return self._counts[role]

    def raised(self, role: str, error: BaseException) -> None:
        """A call of the function raised."""
        self._add(role, f"raised {type(error).__name__}", error)

    def add(self, role: str, problem: str) -> None:
        """Something else was wrong with it."""
        self._add(role, problem, None)

    def _add(self, role: str, problem: str, error: BaseException | None) -> None:
        with self._lock:
            self._counts[role] += 1
            is_news = (role, problem) not in self._logged
            self._logged.add((role, problem))
        if is_news:
            text = "A %s of the application %s. Sends go on; from now on this is only counted"
            logger.warning(text, role, problem, exc_info=error)

    def dropped(self, role: str) -> None:
        """The function is too slow: a value was not handed to it."""
        with self._lock:
            self._counts[DROPPED] += 1
        self._add(role, "takes too long, so that values for it were dropped", None)


class Relay:
    """Calls a function with each value that was put here, in order, on a thread that lives while there is work."""

    def __init__(self, role: str, function: Callable[[Any], object], mishaps: Mishaps) -> None:
        self.role = role
        self._function = function
        self._mishaps = mishaps
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def put(self, value: Any) -> None:
        """Have the function called with this, soon. Never waits, never raises."""
        with self._changed:
            if self._is_closed:
                return
            is_kept = len(self._waiting) < MAX_WAITING and self._has_thread()
            if is_kept:
                self._waiting.append(value)
                self._changed.notify()
        if not is_kept:
            self._mishaps.dropped(self.role)

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
            try:
                self._function(value)
            except BaseException as error:  # also SystemExit: no signal is delivered to this thread
                self._mishaps.raised(self.role, error)

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return self._thread is None

    def close(self) -> None:
        """Take nothing more. What waits is still handed over; the thread ends after that."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def open_again(self) -> None:
        """Take values again after `close`."""
        with self._changed:
            self._is_closed = False

    def cancel(self) -> None:
        """The same, and forget what waits."""
        with self._changed:
            self._waiting.clear()
        self.close()


class RelayedRecorder:
    """A recorder of the application, called on a helper thread."""

    def __init__(self, relay: Relay) -> None:
        self._put = relay.put

    def record(self, operation: Operation) -> None:
        self._put(operation)


class Question:
    """A function of the application that decides something; where it does not, `default` does."""

    def __init__(self, role: str, ask: Callable[[Any], Any], default: Callable[[Any], Any], mishaps: Mishaps) -> None:
        self._role = role
        self._ask = ask
        self._default = default
        self._mishaps = mishaps
        self._stuck: threading.Thread | None = None

    def __call__(self, value: Any) -> Any:
        """The answer, after at most `ANSWER_SECONDS`. A function that has not returned yet is not called again."""
        answers: list[Any] = []

        def call() -> None:
            try:
                answers.append(self._ask(value))
            except BaseException as error:
                self._mishaps.raised(self._role, error)

        if self._stuck is not None and self._stuck.is_alive():
            self._mishaps.add(self._role, "does not return")
            return self._default(value)
        thread = threading.Thread(target=call, name=f"twinbus-{self._role}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return self._default(value)
        thread.join(ANSWER_SECONDS)
        if thread.is_alive():
            self._stuck = thread
            self._mishaps.add(self._role, "does not return")
        return answers[0] if answers else self._default(value)


class ForeignCalls:
    """All functions of the application that a pairing calls."""

    def __init__(self) -> None:
        self.mishaps = Mishaps()
        self._lock = threading.Lock()
        self._relays: list[Relay] = []

    def relay(self, role: str, function: Callable[[Any], object]) -> Relay:
        """Have a function called on a thread of its own."""
        made = Relay(role, function, self.mishaps)
        with self._lock:
            self._relays.append(made)
        return made

    def recorder(self, recorder: Recorder) -> Recorder:
        """A recorder that is called on a helper thread."""
        return RelayedRecorder(self.relay(RECORDER, recorder.record))

    def adopt_callbacks(self, before: ForeignCalls) -> None:
        """Go on with the callbacks of a client that was closed and is used again."""
        adopted = [relay for relay in list(before._relays) if relay.role == CALLBACK]
        for relay in adopted:
            relay.open_again()
        self._relays += adopted

    def forget(self, relay: Relay) -> None:
        """The application does not want to be told any more."""
        relay.cancel()
        with self._lock:
            self._relays.remove(relay)

    def close(self) -> None:
        """Take nothing more; what waits is still handed over, and then no thread is left."""
        for one in list(self._relays):
            one.close()

    async def close_within(self, seconds: float) -> None:
        """The same, and wait until all is handed over, at most so long."""
        self.close()
        ends = time.monotonic() + seconds
        while not all(one.is_idle for one in list(self._relays)) and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
