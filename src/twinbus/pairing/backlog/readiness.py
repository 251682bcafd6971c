"""Keeps the backlog ready: learns the primary's name, and provisions queues again when one is deleted.

The secondary must never lower availability. Unless the option `strict` is set, its problems become events, show in the
status, and are retried with growing, bounded pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from azure.core.exceptions import HttpResponseError
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Stage

from ..events import BacklogReady, BacklogWarning, NamespacesLookSwapped
from ..failover.error_classification import Cause, cause_of
from ..namespace import Namespace
from ..operation_recording import recorded
from ..pairing_errors import BacklogConfigurationError, BacklogNotReadyError, NamespacesSwappedError
from ..pairing_state import Pairing
from .provisioning import BacklogQueue, find_queue, list_backlog, provision
from .swapped_namespaces import first_backlog_queue

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

logger = logging.getLogger("twinbus.pairing")

RETRY_MIN = 1.0
RETRY_MAX = 60.0
#: After this quiet time, pauses start again from the shortest.
QUIET = 2 * RETRY_MAX
#: The share of an attempt in which the primary must say whether the namespaces are swapped.
SWAP_CHECK_SHARE = 1 / 3
_REFUSED = (401, 403)
_SELF_EXPLANATORY = (BacklogConfigurationError, NamespacesSwappedError)


class RetryPace:
    """Computes when to try next: at once after a quiet time, else with pauses that double up to `RETRY_MAX`.

    Pure: the time is passed in.
    """

    def __init__(self) -> None:
        self._tried_at = -math.inf
        self._pause = 0.0

    @property
    def next_time(self) -> float:
        return self._tried_at + self._pause

    def tried(self, now: float) -> None:
        """Record that an attempt has just ended."""
        is_first = now - self._tried_at > QUIET
        self._pause = RETRY_MIN if is_first else min(2 * self._pause, RETRY_MAX)
        self._tried_at = now

    def hurry(self) -> None:
        """Shorten the wait for the next attempt to the shortest pause: something has changed."""
        self._pause = RETRY_MIN


class BacklogReadiness:
    """Tracks whether the backlog is ready, and keeps it so. All calls are made on one event loop."""

    def __init__(self, pairing: Pairing, primary: Namespace, secondary: Namespace) -> None:
        self._pairing = pairing
        self._primary = primary
        self._secondary = secondary
        self._secondary_name = secondary.name
        self._done: dict[int, BacklogQueue] = {}
        # When each queue was last found missing.
        self._missing_at: dict[int, float] = {}
        self._pace = RetryPace()
        self._check_requested = asyncio.Event()
        self.is_ready = False
        #: Called, on the event loop, when the lock durations of more queues may be known.
        self.on_checked: Callable[[], None] = lambda: None
        #: Set as soon as the names of the backlog queues are known.
        self.is_named = asyncio.Event()
        #: Why the backlog is not ready.
        self.error: BaseException | None = None
        #: The last report: the problem and what to do, in a sentence without a key.
        self.message: str | None = None

    def lock_seconds(self) -> dict[str, float]:
        """Return the lock duration in seconds of each backlog queue that was checked and is not missing, by path."""
        return {queue.path: queue.lock_duration.total_seconds() for queue in self._done.values()}

    async def prepare(self) -> None:
        """Try once, within the option `attempt_timeout`. Without `strict` a failure is reported and not raised.

        Raises, with `strict` only:
            BacklogConfigurationError: a backlog queue would lose or refuse messages.
            NamespacesSwappedError: primary and secondary look swapped.
            BacklogNotReadyError: a namespace did not answer, or refused.
        """
        try:
            await self._try()
        except Exception as error:
            if not self._pairing.options.strict:
                self._report(error)
            elif isinstance(error, _SELF_EXPLANATORY):
                raise
            else:
                raise BacklogNotReadyError(self._sentence(error), error) from error

    async def keep_ready(self) -> None:
        """Try until the backlog is ready, and whenever a queue is missing. Runs until cancelled."""
        while True:
            await self._until_due()
            try:
                await self._try()
            except Exception as error:
                # No error here may take the primary down.
                self._report(error)

    def queue_missing(self, index: int) -> None:
        """Check a missing backlog queue as soon as possible. Call it on the event loop.

        Repeated reports change nothing: failing sends must not cut short the pause after a refusal.
        """
        if not self._pairing.options.create_backlog:
            return
        if self._done.pop(index, None) is not None:
            self.is_ready = False
            self.error = MessagingEntityNotFoundError(message=f"There is no queue '{self._pairing.queue_path(index)}'.")
            self._shorten_pause_for(index)
        elif self.error is not None and cause_of(self.error) is Cause.UNAVAILABLE:
            self._pace.hurry()  # the secondary did not answer before, and does now
        self._check_requested.set()

    def _shorten_pause_for(self, index: int) -> None:
        """End a pause that was due to other queues; a queue that is deleted repeatedly keeps its pauses."""
        now = asyncio.get_running_loop().time()
        if now - self._missing_at.get(index, -math.inf) > QUIET:
            self._pace.hurry()
        self._missing_at[index] = now

    async def _until_due(self) -> None:
        """Wait until the next attempt is due; while the backlog is ready, until a queue is missing."""
        clock = asyncio.get_running_loop().time
        while True:
            self._check_requested.clear()
            pause = None if self.is_ready else self._pace.next_time - clock()
            if pause is not None and pause <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._check_requested.wait()

    async def _try(self) -> None:
        options = self._pairing.options
        try:
            async with asyncio.timeout(options.attempt_timeout):
                await self._learn_name()
                self.is_named.set()
                if options.create_backlog:
                    await self._provision()
        except Exception as error:
            self.is_ready, self.error = False, error
            raise
        finally:
            self._pace.tried(asyncio.get_running_loop().time())
            self.on_checked()
        if not options.create_backlog or len(self._done) == options.backlog_queue_count:
            self._now_ready()

    def _now_ready(self) -> None:
        was_reported = self.message is not None
        self.is_ready, self.error, self.message = True, None, None
        logger.info("%s: the backlog is ready", self._pairing.label)
        if was_reported:
            # The past pauses must not delay the check of the next missing queue.
            self._pace.hurry()
            self._pairing.publish(BacklogReady())

    async def _learn_name(self) -> None:
        if not self._pairing.primary_name:
            async with self._primary.administration() as admin:
                name = await self._own_name(admin, NamespaceRole.PRIMARY, self._primary)
            self._pairing.learn_primary_name(name)

    async def _own_name(self, admin: ServiceBusAdministrationClient, role: NamespaceRole, namespace: Namespace) -> str:
        """Return a namespace's name, from its own properties."""
        with recorded(self._pairing, OperationKind.GET, Stage.MANAGE, role, namespace.fully_qualified_namespace):
            return str((await admin.get_namespace_properties()).name)

    async def _provision(self) -> None:
        async with self._secondary.administration() as admin:
            check = partial(self._check_not_swapped, admin)
            await provision(admin, self._pairing, self._done, check)

    async def _check_not_swapped(self, admin: ServiceBusAdministrationClient) -> None:
        """Raise `NamespacesSwappedError` if the two look swapped. Called if the secondary has no backlog yet."""
        if self._secondary_name is None:
            self._secondary_name = await self._own_name(admin, NamespaceRole.SECONDARY, self._secondary)
        queue = await self._find_queue_of_secondary(self._secondary_name)
        if queue is None:
            return
        if await list_backlog(admin, self._pairing):
            logger.info("%s: the two namespaces are each other's secondary", self._pairing.label)
            return
        primary, secondary = (side.fully_qualified_namespace for side in (self._primary, self._secondary))
        raise NamespacesSwappedError(primary, secondary, queue, self._pairing.queue_path(0))

    async def _find_queue_of_secondary(self, name: str) -> str | None:
        """Return a queue in the primary that belongs to the other's primary; None if there is none, or no answer."""
        # If the two are swapped, the primary name that the application gave is the secondary's.
        names = dict.fromkeys(known for known in (name, self._pairing.options.primary_name) if known)
        seconds = SWAP_CHECK_SHARE * self._pairing.options.attempt_timeout
        try:
            async with asyncio.timeout(seconds), self._primary.administration() as admin:

                async def exists(path: str) -> bool:
                    return await find_queue(admin, self._pairing, NamespaceRole.PRIMARY, path) is not None

                return await first_backlog_queue(exists, names)
        except Exception as error:
            host = self._primary.fully_qualified_namespace
            logger.info("Checking %s for swapped namespaces failed: %s", host, type(error).__name__)
            return None

    def _report(self, error: BaseException) -> None:
        """Report why the backlog is not ready, unless that was the last report."""
        sentence = self._sentence(error)
        if sentence == self.message:
            return
        self.message = sentence
        logger.warning("%s: the backlog is not ready: %s", self._pairing.label, sentence)
        logger.debug("%s: why the backlog is not ready: %s", self._pairing.label, error)
        if isinstance(error, NamespacesSwappedError):
            event = NamespacesLookSwapped(
                primary=error.primary, secondary=error.secondary, queue=error.queue, message=sentence
            )
            self._pairing.publish(event)
        elif isinstance(error, BacklogConfigurationError):
            self._pairing.publish(BacklogWarning(message=sentence, queue=error.queue))
        else:
            self._pairing.publish(BacklogWarning(message=f"the backlog is not ready: {sentence}"))

    def _sentence(self, error: BaseException) -> str:
        if isinstance(error, _SELF_EXPLANATORY):
            return str(error)
        if self._pairing.primary_name:
            return (
                f"the queues of the secondary {self._secondary.fully_qualified_namespace} could not be checked:"
                f" {self._reason(error)}; with create_backlog=False they are not checked"
            )
        return (
            f"the primary {self._primary.fully_qualified_namespace} did not report its name:"
            f" {self._reason(error)}; set the option primary_name"
        )

    def _reason(self, error: BaseException) -> str:
        status = error.status_code if isinstance(error, HttpResponseError) else None
        if status in _REFUSED:
            return f"it refuses with {status} (wrong key, no Manage right, or forbidden by a network rule)"
        if status is not None:
            return f"it answers {status}"
        if isinstance(error, TimeoutError):
            return f"it did not answer within {self._pairing.options.attempt_timeout:g} s"
        is_down = cause_of(error) is Cause.UNAVAILABLE
        return f"{'it cannot be reached' if is_down else 'the request failed'} ({type(error).__name__})"
