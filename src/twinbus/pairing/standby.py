"""Gets the standby ready: the primary's name, by which the backlog queues are called, and the queues themselves.

A standby that cannot be reached must not keep a program from starting: unless the options say `strict`, it is tried
again until it works. A refusal is another matter, for waiting does not mend it.
"""

from __future__ import annotations

import asyncio
import logging

from azure.core.exceptions import AzureError, HttpResponseError

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Stage

from .backlog import provision
from .core import Pairing
from .errors import AttemptTimeoutError, BacklogConfigurationError, BacklogNotReadyError
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
        self._done: set[int] = set()
        self.is_ready = False
        #: Why it is not ready.
        self.error: BaseException | None = None

    async def prepare(self) -> None:
        """Try once, within the option `attempt_timeout`.

        Raises:
            BacklogConfigurationError: a backlog queue would lose or refuse messages.
            BacklogNotReadyError: a namespace refused to answer, or with `strict`, could not be asked.
        """
        try:
            await self._try()
        except BacklogConfigurationError:
            raise
        except Exception as error:
            refused = isinstance(error, HttpResponseError) and error.status_code in _REFUSED
            if refused or self._pairing.options.strict or not isinstance(error, (AzureError, OSError)):
                raise BacklogNotReadyError(self._reason(refused), error) from error
            self._warn(error)

    async def keep_trying(self) -> None:
        """Try again, ever less often, until it has worked. A queue that must not be used stays out of the rotation."""
        # Shorter than a cool-down, or a queue in bad order would come back before it is looked at again.
        longest = min(RETRY_MAX, self._pairing.options.backlog_cooldown / 2)
        delay = min(RETRY_MIN, longest)
        while not self.is_ready:
            await asyncio.sleep(delay)
            delay = min(2 * delay, longest)
            previous = self.error
            try:
                await self._try()
            except (AzureError, OSError, BacklogConfigurationError) as error:
                if type(error) is not type(previous):
                    self._warn(error)
            else:
                logger.info("The backlog of %s is ready", self._pairing.name)

    async def _try(self) -> None:
        try:
            await self._learn_name()
            if self._pairing.options.create_backlog:
                await self._within_time(self._provision(), self._secondary)
        except Exception as error:
            self.error = error
            raise
        self.error, self.is_ready = None, True

    async def _learn_name(self) -> None:
        if not self._pairing.primary_name:
            self._pairing.learn_primary_name(await self._within_time(self._ask_for_name(), self._primary))

    async def _ask_for_name(self) -> str:
        async with self._primary.administration() as admin:
            host = self._primary.fully_qualified_namespace
            with recorded(self._pairing, OperationKind.GET, Stage.MANAGE, NamespaceRole.PRIMARY, host):
                return (await admin.get_namespace_properties()).name

    async def _provision(self) -> None:
        async with self._secondary.administration() as admin:
            await provision(admin, self._pairing, self._done)

    async def _within_time(self, work, namespace):
        seconds = self._pairing.options.attempt_timeout
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise AttemptTimeoutError(namespace.fully_qualified_namespace, seconds) from None
