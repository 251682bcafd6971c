"""Gets the standby ready: the primary's name, by which the backlog queues are called, and the queues themselves.

A standby that cannot be reached must not keep a program from starting: unless the options say `strict`, it is tried
again until it works. A refusal is another matter, for waiting does not mend it.
"""

from __future__ import annotations

import asyncio
import logging

from azure.core.exceptions import HttpResponseError

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Stage

from .backlog import BacklogQueue, provision
from .core import Pairing
from .errors import BacklogConfigurationError, BacklogNotReadyError
from .events import BacklogWarning
from .namespaces import Namespace
from .recording import recorded

logger = logging.getLogger("twinbus.pairing")

RETRY_MIN = 1.0
RETRY_MAX = 60.0
_REFUSED = (401, 403)


class Standby:
    """Whether the backlog is ready, and what is done about it."""

    def __init__(self, pairing: Pairing, primary: Namespace, secondary: Namespace) -> None:
        self._pairing = pairing
        self._primary = primary
        self._secondary = secondary
        self._done: dict[int, BacklogQueue] = {}
        self._delay = RETRY_MIN
        self.is_ready = False
        #: Set as soon as the backlog queues have their names.
        self.is_named = asyncio.Event()
        #: Why it is not ready.
        self.error: BaseException | None = None

    @property
    def lock_seconds(self) -> float | None:
        """The longest lock duration of the backlog queues; None as long as they were not all looked at."""
        if len(self._done) < self._pairing.options.backlog_queue_count:
            return None
        return max(queue.lock_duration.total_seconds() for queue in self._done.values())

    async def prepare(self) -> None:
        """Try once, within the option `attempt_timeout`.

        Raises:
            BacklogConfigurationError: a backlog queue would lose or refuse messages.
            BacklogNotReadyError: a namespace refused to answer; with `strict` also if it could not be asked.
        """
        try:
            await self._try()
        except BacklogConfigurationError:
            raise
        except Exception as error:
            is_refused = isinstance(error, HttpResponseError) and error.status_code in _REFUSED
            if is_refused or self._pairing.options.strict:
                raise BacklogNotReadyError(self._what_is_missing(), error) from error
            self._warn(error)

    async def try_again(self) -> float | None:
        """Try once more; returns after how many seconds to do so again, ever later, and None if it has worked.

        Queues that must not be used stay out of the rotation meanwhile.
        """
        previous = self.error
        try:
            await self._try()
        except Exception as error:
            # Whatever it is: a standby that is not ready must not take the primary down with it.
            if str(error) != str(previous):
                self._warn(error)
            # Shorter than a cool-down, or such a queue would come back before it is looked at again.
            self._delay = min(2 * self._delay, RETRY_MAX, self._pairing.options.backlog_cooldown / 2)
            return self._delay
        logger.info("The backlog of %s is ready", self._pairing.name)
        return None

    async def _try(self) -> None:
        try:
            async with asyncio.timeout(self._pairing.options.attempt_timeout):
                await self._learn_name()
                self.is_named.set()
                await self._provision()
        except Exception as error:
            self.error = error
            raise
        self.error, self.is_ready = None, True

    async def _learn_name(self) -> None:
        if self._pairing.primary_name:
            return
        host = self._primary.fully_qualified_namespace
        async with self._primary.administration() as admin:
            with recorded(self._pairing, OperationKind.GET, Stage.MANAGE, NamespaceRole.PRIMARY, host):
                properties = await admin.get_namespace_properties()
        self._pairing.learn_primary_name(properties.name)

    async def _provision(self) -> None:
        if self._pairing.options.create_backlog:
            async with self._secondary.administration() as admin:
                await provision(admin, self._pairing, self._done)

    def _what_is_missing(self) -> str:
        if not self._pairing.primary_name:
            host = self._primary.fully_qualified_namespace
            return f"the primary {host} did not tell its name, which the option primary_name can give"
        host = self._secondary.fully_qualified_namespace
        return f"the queues of {host} could not be checked; with create_backlog=False they are taken for granted"

    def _warn(self, error: BaseException) -> None:
        queue, message = None, f"the backlog is not ready ({type(error).__name__}): {self._what_is_missing()}"
        if isinstance(error, BacklogConfigurationError):
            queue, message = error.queue, str(error)
        logger.warning("%s: %s", self._pairing.name, message)
        logger.debug("%s: why the backlog is not ready: %s", self._pairing.name, error)
        self._pairing.publish(BacklogWarning(message=message, queue=queue))
