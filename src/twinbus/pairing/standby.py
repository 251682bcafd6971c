"""Keeps the backlog ready: learns the primary's name and provisions the backlog queues, again if one is deleted.

The secondary must never lower availability. Unless the options say `strict`, whatever is wrong with it is an event and
shows in the status, and is tried again with pauses that grow up to a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from functools import partial
from typing import TYPE_CHECKING

from azure.core.exceptions import HttpResponseError
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Stage

from .backlog import BacklogQueue, find_queue, list_backlog, provision
from .core import Pairing
from .errors import BacklogConfigurationError, BacklogNotReadyError, NamespacesSwappedError
from .events import BacklogReady, BacklogWarning, NamespacesLookSwapped
from .namespaces import Namespace
from .policy import Cause, cause_of
from .recording import recorded
from .swapped_namespaces import first_backlog_queue

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

logger = logging.getLogger("twinbus.pairing")

RETRY_MIN = 1.0
RETRY_MAX = 60.0
#: After this time without an attempt the pauses begin again with the shortest.
QUIET = 2 * RETRY_MAX
#: The part of an attempt that the primary may take to say whether the namespaces are swapped.
SWAP_CHECK_SHARE = 1 / 3
_REFUSED = (401, 403)
_SPEAKS_FOR_ITSELF = (BacklogConfigurationError, NamespacesSwappedError)


class RetryPace:
    """When to try next: at once after a quiet time, else after pauses that double up to `RETRY_MAX`.

    Pure: the time is passed in.
    """

    def __init__(self) -> None:
        self._tried_at = -math.inf
        self._pause = 0.0

    @property
    def next_time(self) -> float:
        return self._tried_at + self._pause

    def tried(self, now: float) -> None:
        """An attempt has just ended."""
        is_first = now - self._tried_at > QUIET
        self._pause = RETRY_MIN if is_first else min(2 * self._pause, RETRY_MAX)
        self._tried_at = now

    def hurry(self) -> None:
        """Something has changed: the next attempt need not wait for longer than the shortest pause."""
        self._pause = RETRY_MIN


class Standby:
    """Knows whether the backlog is ready, and keeps it so. All calls are made on one event loop."""

    def __init__(self, pairing: Pairing, primary: Namespace, secondary: Namespace) -> None:
        self._pairing = pairing
        self._primary = primary
        self._secondary = secondary
        self._secondary_name = secondary.name
        self._done: dict[int, BacklogQueue] = {}
        # When each queue was last found to be missing.
        self._missing_at: dict[int, float] = {}
        self._pace = RetryPace()
        self._wanted = asyncio.Event()
        self.is_ready = False
        #: Set as soon as the backlog queues have their names.
        self.is_named = asyncio.Event()
        #: Why it is not ready.
        self.error: BaseException | None = None
        #: What was reported of it: what is wrong and what to do, in a sentence without a key.
        self.message: str | None = None

    @property
    def lock_seconds(self) -> float | None:
        """The longest lock duration of the backlog queues; None as long as they were not all looked at."""
        if len(self._done) < self._pairing.options.backlog_queue_count:
            return None
        return max(queue.lock_duration.total_seconds() for queue in self._done.values())

    async def prepare(self) -> None:
        """Try once, within the option `attempt_timeout`. Without `strict` a failure is reported and not raised.

        Raises, with `strict` only:
            BacklogConfigurationError: a backlog queue would lose or refuse messages.
            NamespacesSwappedError: primary and secondary seem to be exchanged.
            BacklogNotReadyError: a namespace could not be asked, or refused.
        """
        try:
            await self._try()
        except Exception as error:
            if not self._pairing.options.strict:
                self._report(error)
            elif isinstance(error, _SPEAKS_FOR_ITSELF):
                raise
            else:
                raise BacklogNotReadyError(self._sentence(error), error) from error

    async def keep_ready(self) -> None:
        """Try again until the backlog is ready, and whenever a queue is missing. Ends only when it is cancelled."""
        while True:
            await self._until_due()
            try:
                await self._try()
            except Exception as error:
                # Whatever it is: it must not take the primary down with it.
                self._report(error)

    def queue_missing(self, index: int) -> None:
        """A backlog queue does not exist: look at it as soon as possible. On the event loop.

        Reports that say nothing new change nothing: a pause after a refusal is not cut short by every failed send.
        """
        if not self._pairing.options.create_backlog:
            return
        if self._done.pop(index, None) is not None:
            self.is_ready = False
            self.error = MessagingEntityNotFoundError(message=f"There is no queue '{self._pairing.queue_path(index)}'.")
            self._hurry_for(index)
        elif self.error is not None and cause_of(self.error) is Cause.UNAVAILABLE:
            self._pace.hurry()  # the secondary did not answer before, and does now
        self._wanted.set()

    def _hurry_for(self, index: int) -> None:
        """Wait no longer for other queues' sake; but one that is deleted again and again has to keep to the pauses."""
        now = asyncio.get_running_loop().time()
        if now - self._missing_at.get(index, -math.inf) > QUIET:
            self._pace.hurry()
        self._missing_at[index] = now

    async def _until_due(self) -> None:
        """Wait for the time of the next attempt; while the backlog is ready, for a queue that is missing."""
        clock = asyncio.get_running_loop().time
        while True:
            self._wanted.clear()
            pause = None if self.is_ready else self._pace.next_time - clock()
            if pause is not None and pause <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()

    # ---- one attempt ----

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
        if not options.create_backlog or len(self._done) == options.backlog_queue_count:
            self._now_ready()

    def _now_ready(self) -> None:
        was_reported = self.message is not None
        self.is_ready, self.error, self.message = True, None, None
        logger.info("%s: the backlog is ready", self._pairing.label)
        if was_reported:
            # Its pauses were about what is over now, and not about the next queue that is missing.
            self._pace.hurry()
            self._pairing.publish(BacklogReady())

    async def _learn_name(self) -> None:
        if not self._pairing.primary_name:
            async with self._primary.administration() as admin:
                name = await self._own_name(admin, NamespaceRole.PRIMARY, self._primary)
            self._pairing.learn_primary_name(name)

    async def _own_name(self, admin: ServiceBusAdministrationClient, role: NamespaceRole, asked: Namespace) -> str:
        """What a namespace is called, by its own properties."""
        with recorded(self._pairing, OperationKind.GET, Stage.MANAGE, role, asked.fully_qualified_namespace):
            return str((await admin.get_namespace_properties()).name)

    async def _provision(self) -> None:
        async with self._secondary.administration() as admin:
            check = partial(self._check_not_swapped, admin)
            await provision(admin, self._pairing, self._done, check)

    async def _check_not_swapped(self, admin: ServiceBusAdministrationClient) -> None:
        """Raise `NamespacesSwappedError` if the two seem exchanged. Called if the secondary has no backlog yet."""
        if self._secondary_name is None:
            self._secondary_name = await self._own_name(admin, NamespaceRole.SECONDARY, self._secondary)
        queue = await self._queue_of_the_secondary(self._secondary_name)
        if queue is None:
            return
        if await list_backlog(admin, self._pairing):
            logger.info("%s: the two namespaces are each other's secondary", self._pairing.label)
            return
        primary, secondary = (one.fully_qualified_namespace for one in (self._primary, self._secondary))
        raise NamespacesSwappedError(primary, secondary, queue, self._pairing.queue_path(0))

    async def _queue_of_the_secondary(self, name: str) -> str | None:
        """A queue of the primary that only the other one's primary can have; None if there is none, or no answer."""
        # The name that the application gave to its primary is that of the secondary if the two are exchanged.
        names = dict.fromkeys(one for one in (name, self._pairing.options.primary_name) if one)
        seconds = SWAP_CHECK_SHARE * self._pairing.options.attempt_timeout
        try:
            async with asyncio.timeout(seconds), self._primary.administration() as admin:

                async def exists(path: str) -> bool:
                    return await find_queue(admin, self._pairing, NamespaceRole.PRIMARY, path) is not None

                return await first_backlog_queue(exists, names)
        except Exception as error:
            host = self._primary.fully_qualified_namespace
            logger.info("%s could not be asked whether the namespaces are swapped: %s", host, type(error).__name__)
            return None

    # ---- what is said of it ----

    def _report(self, error: BaseException) -> None:
        """Say why the backlog is not ready, unless that was the last thing said."""
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
        if isinstance(error, _SPEAKS_FOR_ITSELF):
            return str(error)
        if self._pairing.primary_name:
            return (
                f"the queues of the secondary {self._secondary.fully_qualified_namespace} could not be checked:"
                f" {self._what_went_wrong(error)}; with create_backlog=False they are taken for granted"
            )
        return (
            f"the primary {self._primary.fully_qualified_namespace} did not tell its name:"
            f" {self._what_went_wrong(error)}; the option primary_name can give it"
        )

    def _what_went_wrong(self, error: BaseException) -> str:
        status = error.status_code if isinstance(error, HttpResponseError) else None
        if status in _REFUSED:
            return f"it refuses with {status} (wrong key, no Manage right, or forbidden by a network rule)"
        if status is not None:
            return f"it answers {status}"
        if isinstance(error, TimeoutError):
            return f"it did not answer within {self._pairing.options.attempt_timeout:g} s"
        is_down = cause_of(error) is Cause.UNAVAILABLE
        return f"{'it cannot be reached' if is_down else 'the request failed'} ({type(error).__name__})"
