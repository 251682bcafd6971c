"""One link: an SDK sender that serves one call at a time, within a deadline. Written by hand: threads cannot be
cancelled.

A call that takes too long is ended by cutting its connection. After a cut the SDK waits for its keep-alive thread, up
to a second, so a call with less time than `HELPER_BELOW` is made by a helper thread that the caller can abandon. So is
the opening of a link, when there may be no connection yet to cut, and every call if the SDK does not let us cut.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from azure.servicebus import ServiceBusSender

from ...pairing_errors import AttemptTimeoutError
from ...sdk import deadline, internals
from .helper_thread import Helper, HelperCall
from .watchdog import watchdog

logger = logging.getLogger("twinbus.pairing")

#: Closing a link takes no longer than this.
CLOSING = 5.0
#: A call with fewer seconds than this is made by a helper thread, to end on time. Longer calls may end a second late.
HELPER_BELOW = 10.0

T = TypeVar("T")


class Link:
    """A link to one entity. It is opened once, and discarded when something is wrong with it."""

    def __init__(self, sender: ServiceBusSender, path: str) -> None:
        self.sender = sender
        self.path = path
        #: Whether it was just opened: no call on it was answered yet, and it was never idle.
        self.is_fresh = True
        #: The epoch of its pool when it began to open.
        self.epoch = 0
        #: When it was given back to its pool.
        self.idle_since = 0.0
        #: The largest batch and single message in bytes, known once it is open.
        self.max_batch_size = self.max_message_size = 0
        #: Options with which the SDK sends a batch as it is.
        self.batch_options: dict[str, Any] = {}
        #: When the running call must end, for the watchdog.
        self.ends = math.inf
        self._is_overdue = False
        self._can_cut = False
        self._lock = threading.Lock()
        self._is_closed = False
        #: Whether it no longer needs the watchdog.
        self._is_unwatched = False
        # Set when it is cut or closed, for code that waits in a helper thread.
        self._given_up = threading.Event()
        self._helper: Helper | None = None
        self._last_helped: HelperCall[Any] | None = None
        self._connection: Any = None

    def open(self, seconds: float) -> None:
        """Open the link. If that fails, discard it.

        Raises:
            AttemptTimeoutError: it took longer.
            azure.servicebus.exceptions.ServiceBusError: what the SDK raises.
        """
        try:
            self._call_in_helper(self._open, seconds=seconds)
        except AttemptTimeoutError:
            raise AttemptTimeoutError(self.path, seconds, is_unsent=True) from None
        self._connection = internals.connection(self.sender)
        self._can_cut = internals.can_cut(self.sender)
        if self._can_cut:
            self._watch()
            self._end_helper()

    def _watch(self) -> None:
        with self._lock:
            if not self._is_unwatched:
                watchdog.watch(self)

    def _open(self) -> None:
        self.sender.__enter__()
        self.max_batch_size = self.sender.create_message_batch().max_size_in_bytes
        self.max_message_size = internals.max_message_size(self.sender) or self.max_batch_size
        self.batch_options = internals.batch_options(self.sender)

    def call(self, function: Callable[..., T], *arguments: Any, seconds: float) -> T:
        """Make a call of the sender.

        Raises:
            AttemptTimeoutError: it took longer.
            azure.servicebus.exceptions.ServiceBusError: what the SDK raises.
        """
        if not self._can_cut or seconds < HELPER_BELOW:
            return self._call_in_helper(function, *arguments, seconds=seconds)
        deadline.call.ends = self.ends = ends = time.monotonic() + seconds
        if ends < watchdog.next_look:
            watchdog.hurry()
        try:
            return function(*arguments)
        except Exception as error:
            if self._is_overdue:
                raise AttemptTimeoutError(self.path, seconds) from error
            raise
        finally:
            deadline.call.ends = self.ends = math.inf

    def _call_in_helper(self, function: Callable[..., T], *arguments: Any, seconds: float) -> T:
        """Make a call in a helper thread, and abandon it at the timeout."""
        call = HelperCall(function, arguments, seconds)
        with self._lock:  # `close` sees a helper, or none starts
            if self._is_closed:
                raise AttemptTimeoutError(self.path, seconds, is_unsent=True)
            if self._helper is None:
                self._helper = Helper(self._given_up)
            self._last_helped = call
            self._helper.submit(call)
        if not call.wait():
            raise AttemptTimeoutError(self.path, seconds)
        return call.result()

    def _end_helper(self) -> None:
        """End the helper; the next call that needs one starts another. A link is rarely used with a short timeout."""
        with self._lock:
            if self._helper is not None and not self._is_closed:
                self._helper.end()
                self._helper = None

    @property
    def is_hung(self) -> bool:
        """Whether an abandoned call of it still runs."""
        return self._last_helped is not None and self._last_helped.is_running

    def cut_overdue(self) -> None:
        """End the running call: its time is over."""
        self._is_overdue = True
        self._cut()

    def cut(self) -> None:
        """Cut the connection, so that nothing more is written; `close` is still needed."""
        self._given_up.set()
        if self.is_hung:
            # It may not be connected yet: have the watchdog repeat the cut.
            self.ends = 0.0
            self._watch()
        self._cut()

    def _cut(self) -> None:
        self._connection = internals.connection(self.sender) or self._connection
        internals.cut(self._connection)

    def close(self) -> None:
        """Close the connection, within a few seconds."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self._given_up.set()
        closing = threading.Thread(target=self._close, name="twinbus-close", daemon=True)
        try:
            closing.start()
        except RuntimeError:  # in atexit functions, since Python 3.12
            self._close()
            return
        closing.join(CLOSING)
        if closing.is_alive():
            self._cut()

    def _close(self) -> None:
        if self._helper is not None:
            self._helper.end(wait=True)  # one thread must not close the SDK's sender while another opens it
        with self._lock:
            self._is_unwatched = True
            watchdog.forget(self)
        try:
            self.sender.close()
        except Exception as error:
            # Closing a broken connection may fail.
            logger.debug("Closing the link to %s failed: %r", self.path, error)
        sock = internals.open_socket(self._connection)
        if sock is not None:
            sock.close()
