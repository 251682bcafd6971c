"""Delivers a parcel to the primary, or into the backlog."""

from __future__ import annotations

from typing import Any

from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessageSizeExceededError

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Stage

from ...events import Diverted, OversizeWarning
from ...failover.entity_failover import Route
from ...failover.error_classification import Cause, cause_of, is_busy, retires_queue
from ...operation_recording import recorded
from ...pairing_errors import (
    AttemptTimeoutError,
    BacklogUnavailableError,
    EntityFailedOverError,
    EnvelopeTooLargeError,
    NoFreeLinkError,
)
from ...pairing_state import Pairing
from ..call_budget import Budget, Pauses
from ..parcel import STANDARD_LIMIT, Limits, Parcel, Payload
from ..pool_reports import EntityTarget, QueueTarget
from ..send_records import SendRecords, now
from .handover import Handover
from .link import Link
from .link_pool import LinkPool, OpeningError, ReroutedError, SilentError
from .synchronization import in_parallel, sleep

#: Closing a sender takes no longer than this.
CLOSING = 5.0
#: Seconds between two checks whether a missing backlog queue was created.
PROVISION_LOOK = 0.05
#: Result of the primary: sequence numbers, if messages were scheduled.
Numbers = list[int] | None


class UnansweredError(Exception):
    """The primary did not take a message that may be diverted; `error` says why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Delivery:
    """The link pools of one sender: to its entity, and to the backlog queues that it has used."""

    def __init__(
        self,
        pairing: Pairing,
        path: str,
        primary_client: ServiceBusClient,
        backlog_client: ServiceBusClient,
        **options: Any,
    ) -> None:
        self._pairing = pairing
        self._entity = entity = pairing.entity(path)
        self._path = path
        self._counts = pairing.counts
        self._attempt_timeout = pairing.options.attempt_timeout
        self._records = SendRecords(pairing)
        self._target = EntityTarget(pairing, entity)
        # To the SDK a topic sender is a queue sender with another argument name.
        self._primary = LinkPool(
            lambda: primary_client.get_queue_sender(path, **options),
            path,
            self._target,
            pairing.primary_connections,
            max_links=pairing.options.max_links,
            attempt_timeout=self._attempt_timeout,
            clock=pairing.clock,
            share=Budget.for_primary,
        )
        entity.listeners[self._primary] = None
        self._backlog_client = backlog_client
        self._options = options
        self._backlog: dict[int, LinkPool] = {}
        self._queues: dict[int, QueueTarget] = {}
        self._choice = pairing.new_choice()
        self._handover = Handover(pairing, path)
        self._is_closed = False

    async def deliver(self, parcel: Parcel, budget: Budget) -> tuple[str | None, Numbers]:
        """Deliver a parcel; return the path of the backlog queue, or None and the result of the primary.

        Raises:
            PairedClientFaultedError: the pairing has faulted.
            BacklogUnavailableError: neither the primary nor a backlog queue took it.
            NoFreeLinkError: the timeout ended before it had a link.
            Exception: why the primary or the backlog refused the message or its sender.
        """
        session = None if self._pairing.diverted_sessions is None else parcel.session
        if session is None:
            return await self._deliver(parcel, None, budget)
        async with self._handover.turn(session, budget):
            return await self._deliver(parcel, session, budget)

    async def _deliver(self, parcel: Parcel, session: str | None, budget: Budget) -> tuple[str | None, Numbers]:
        pairing = self._pairing
        pauses: Pauses | None = None
        while True:
            if pairing.route(self._entity).route is Route.BACKLOG:
                return await self._divert(parcel, session, budget), None
            if session is not None and not await self._handover.is_over(session, budget):
                return await self._divert(parcel, session, budget), None
            try:
                numbers = await self._send_to_primary(parcel, budget)
            except ReroutedError:
                continue
            except UnansweredError as unanswered:
                parcel.primary_error = unanswered.error
                if pairing.options.while_suspect == "raise" and self._is_primary():
                    self._warm_up_backlog(session)
                    raise unanswered.error from None
                return await self._divert(parcel, session, budget), None
            except Exception as error:
                pauses = pauses or Pauses(pairing.random, pairing.primary_retries)
                pause = pauses.next(budget.before_backlog()) if is_busy(error) else None
                if pause is None:
                    raise
                await sleep(pause)
            else:
                return None, numbers

    async def _send_to_primary(self, parcel: Parcel, budget: Budget) -> Numbers:
        """Send on a link; after a failure on a link that was already open, once more on a fresh one.

        Raises:
            UnansweredError: the primary cannot be reached, or did not answer in time.
            ReroutedError: the entity has failed over meanwhile.
            Exception: why the primary refused the message or its sender.
        """
        fresh = False
        parcel.attempts += 1
        while True:
            if not self._is_primary():
                raise ReroutedError
            try:
                async with self._primary.link(budget, fresh=fresh) as link:
                    fresh = link.is_fresh
                    return await self._attempt(link, parcel, budget.after_waiting())
            except SilentError:
                raise UnansweredError(AttemptTimeoutError(self._path, self._attempt_timeout, is_unsent=True)) from None
            except OpeningError as opening:
                if not self._counts(opening.error):
                    raise opening.error from None
                raise UnansweredError(opening.error) from None
            except Exception as error:
                if isinstance(error, NoFreeLinkError) or not self._counts(error):
                    raise
                if fresh or isinstance(error, AttemptTimeoutError):
                    raise UnansweredError(error) from None
                fresh = True

    async def _attempt(self, link: Link, parcel: Parcel, seconds: float) -> Numbers:
        """Make one attempt on a link, and report what it says about the entity."""
        self._check_size(parcel)
        attempt = self._target.begin()
        try:
            numbers = await self._send(link, parcel, parcel.payload, seconds)
        except Exception as error:
            self._check_open()
            parcel.is_unclear |= cause_of(error) is Cause.UNAVAILABLE
            is_timeout = isinstance(error, AttemptTimeoutError)
            if is_timeout or link.is_fresh or not self._counts(error):
                is_conclusive = link.is_fresh and not (is_timeout and seconds < self._attempt_timeout)
                self._target.failed(error, attempt, is_conclusive=is_conclusive)
                self._warm_up_backlog_if_silent()
            raise
        except BaseException:
            self._pairing.sent_unclear(self._entity, attempt)
            raise
        self._pairing.sent_ok(self._entity)
        return numbers

    async def _send(
        self, link: Link, parcel: Parcel, payload: Payload | None, seconds: float, queue: str | None = None
    ) -> Numbers:
        """Send or schedule it, and record the attempt if the ledger is on."""
        if payload is not None and not self._records.is_on:
            return await link.call(link.sender.send_messages, payload, seconds=seconds)
        return await self._send_recorded(link, parcel, payload, seconds, queue)

    async def _send_recorded(
        self, link: Link, parcel: Parcel, payload: Payload | None, seconds: float, queue: str | None
    ) -> Numbers:
        sender, records, numbers = link.sender, self._records, None
        started = now()
        try:
            if payload is not None:
                await link.call(sender.send_messages, payload, seconds=seconds)
            else:
                numbers = await link.call(sender.schedule_messages, list(parcel.messages), parcel.at, seconds=seconds)
        except BaseException as error:
            if records.is_on:
                records.attempted(parcel, payload, queue, started, error)
            raise
        if records.is_on:
            records.attempted(parcel, payload, queue, started)
        return numbers

    def _is_primary(self) -> bool:
        return self._pairing.route(self._entity).route is Route.PRIMARY

    def _check_size(self, parcel: Parcel) -> None:
        """Warn about, or refuse, a message that the primary takes but the backlog would not."""
        if parcel.is_small:
            return
        limit = self._backlog_limits().message
        found = parcel.oversize(limit)
        # If it is too large for the primary as well, the service or the SDK reports that.
        if found is None or found.size - found.overhead > _limits(self._primary).message:
            return
        if self._pairing.options.refuse_oversize:
            raise EnvelopeTooLargeError(self._path, found.size, limit, found.overhead)
        if not self._entity.is_warned_of_size:
            self._entity.is_warned_of_size = True
            self._pairing.publish(
                OversizeWarning(entity=self._path, size=found.size, limit=limit, overhead=found.overhead)
            )

    def _backlog_limits(self) -> Limits:
        """Return the most bytes that can be diverted, as far as known; the secondary is not asked just for this."""
        for pool in self._backlog.values():
            if pool.is_measured:
                return _limits(pool)
        return _limits(self._primary)

    async def batch_limit(self, budget: Budget) -> tuple[int, dict[str, Any]]:
        """Return the largest batch in bytes and its options. Asks the primary if allowed and not known yet.

        Raises:
            Exception: why the primary refused this sender.
        """
        options: dict[str, Any] = {}
        if self._is_primary():
            try:
                async with self._primary.link(budget) as link:
                    options = link.batch_options
            except OpeningError as opening:
                if not self._counts(opening.error):
                    raise opening.error from None
            except (ReroutedError, SilentError):
                pass  # fall back to a batch of the default size
        return min(_limits(self._primary).batch, self._backlog_limits().batch), options

    async def cancel(self, numbers: list[int], budget: Budget) -> None:
        """Cancel scheduled messages at the primary. The result says nothing about failover.

        Raises:
            EntityFailedOverError: the entity is failed over.
            Exception: why the primary refused it.
        """
        pauses = Pauses(self._pairing.random, self._pairing.primary_retries)
        fresh = False
        while self._is_primary():
            try:
                async with self._primary.link(budget, fresh=fresh) as link:
                    fresh = link.is_fresh
                    return await self._cancel(link, numbers, budget.for_backlog())
            except ReroutedError:
                break
            except SilentError:
                raise AttemptTimeoutError(self._path, self._attempt_timeout, is_unsent=True) from None
            except OpeningError as opening:
                raise opening.error from None
            except Exception as error:
                if self._counts(error) and not fresh and not isinstance(error, AttemptTimeoutError):
                    fresh = True
                    continue
                pause = pauses.next(budget.left()) if is_busy(error) else None
                if pause is None:
                    raise
                await sleep(pause)
        raise EntityFailedOverError(self._path, "cancel scheduled messages")

    async def _cancel(self, link: Link, numbers: list[int], seconds: float) -> None:
        with recorded(self._pairing, OperationKind.CANCEL, Stage.DIRECT, NamespaceRole.PRIMARY, self._path):
            await link.call(link.sender.cancel_scheduled_messages, numbers, seconds=seconds)

    async def _divert(self, parcel: Parcel, session: str | None, budget: Budget) -> str:
        """Store it in a backlog queue and return its path; what does not fit one batch is stored in parts.

        The parts keep their order, and stay in one queue as long as it takes them.
        """
        pairing = self._pairing
        self._check_batch_size(parcel)
        pauses: Pauses | None = None
        failed: dict[int, BaseException] = {}
        is_awaiting_queues = pairing.options.create_backlog
        while budget.left() > 0:
            index = self._choice.settled if session is None and not failed else None
            if index is None:
                index = self._choose(session, failed)
            if index is None:
                missing = [number for number, error in failed.items() if cause_of(error) is Cause.NOT_FOUND]
                if not is_awaiting_queues or not await self._was_provisioned(missing, budget):
                    break
                is_awaiting_queues = False
                for number in missing:
                    del failed[number]
                continue
            before = parcel.stored
            try:
                await self._store(parcel, session, index, budget)
            except Exception as error:
                if isinstance(error, NoFreeLinkError) or retires_queue(error):
                    failed[index] = error
                    continue
                pauses = pauses or Pauses(pairing.random, pairing.backlog_retries)
                pause = pauses.next(budget.left()) if is_busy(error) else None
                if pause is not None:
                    await sleep(pause)
                elif not before:
                    raise
                else:
                    failed[index] = error  # the caller must learn which messages were accepted
                    break
            else:
                queue = self._backlog[index].path
                if pairing.events.has_listeners:
                    pairing.publish(Diverted(entity=self._path, queue=queue, count=parcel.stored - before))
                if parcel.is_stored:
                    return queue
        errors = pairing.retired_queues() | {self._pool(index).path: error for index, error in failed.items()}
        primary_error = parcel.primary_error or self._entity.last_error
        raise BacklogUnavailableError(
            self._path,
            primary_error,
            errors,
            may_be_accepted=parcel.is_unclear,
            message_ids=parcel.message_ids,
            accepted=parcel.stored,
        )

    def _check_batch_size(self, parcel: Parcel) -> None:
        """Refuse a list that the primary would refuse, if its limit is known: the backlog splits any list."""
        if parcel.is_batch and not parcel.is_small and self._primary.is_measured:
            size, limit = parcel.batch_size(), self._primary.max_batch_size
            if size > limit:
                raise MessageSizeExceededError(
                    message=f"The messages for '{self._path}' have {size} bytes, a batch has at most {limit}."
                )

    async def _was_provisioned(self, missing: list[int], budget: Budget) -> bool:
        """Wait for missing queues that are being created; return whether one exists now."""
        ends = self._pairing.clock() + budget.for_backlog()
        while missing and self._pairing.clock() < ends:
            if any(self._pairing.is_in_rotation(index) for index in missing):
                return True
            await sleep(PROVISION_LOOK)
        return False

    def _choose(self, session: str | None, failed: dict[int, BaseException]) -> int | None:
        sessions = self._pairing.diverted_sessions
        if session is None or sessions is None:
            return self._pairing.choose_queue(self._choice, failed)
        queue = sessions.queue_of(self._path, session)
        if queue is not None:
            # In another queue it could overtake earlier messages: fail rather than reorder.
            return None if queue in failed else queue
        return self._pairing.choose_queue(self._choice, failed, (self._path, session))

    async def _store(self, parcel: Parcel, session: str | None, index: int, budget: Budget) -> None:
        """Store the next part in a queue; after a failure on an open link, once more on a fresh one."""
        pool = self._pool(index)
        fresh = False
        parcel.attempts += 1
        while True:
            try:
                async with pool.link(budget, fresh=fresh) as link:
                    fresh = link.is_fresh
                    with self._handover.diverting(session, index):
                        await self._attempt_store(link, parcel, index, budget.for_backlog())
                    return
            except SilentError:
                raise AttemptTimeoutError(pool.path, self._attempt_timeout, is_unsent=True) from None
            except OpeningError as opening:
                raise opening.error from None
            except Exception as error:
                if fresh or isinstance(error, AttemptTimeoutError) or cause_of(error) is not Cause.UNAVAILABLE:
                    raise
                fresh = True

    async def _attempt_store(self, link: Link, parcel: Parcel, index: int, seconds: float) -> None:
        """Make one attempt on a link, and report what it says about the queue."""
        part = parcel.next_part(_limits(self._pool(index)))
        payload: Payload = part[0] if len(part) == 1 else part
        attempt = self._queues[index].begin()
        try:
            await self._send(link, parcel, payload, seconds, link.path)
        except Exception as error:
            self._check_open()
            parcel.is_unclear |= cause_of(error) is Cause.UNAVAILABLE
            is_timeout = isinstance(error, AttemptTimeoutError)
            is_conclusive = link.is_fresh and not (is_timeout and seconds < self._attempt_timeout)
            if is_timeout or link.is_fresh or cause_of(error) is not Cause.UNAVAILABLE:
                self._queues[index].failed(error, attempt, is_conclusive=is_conclusive)
            raise
        except BaseException:
            self._pairing.queue_unclear(index, attempt)
            raise
        parcel.stored += len(part)
        self._pairing.queue_answered(index)

    def _pool(self, index: int) -> LinkPool:
        pool = self._backlog.get(index)
        if pool is None:
            self._check_open()
            path = self._pairing.queue_path(index)
            target = self._queues.setdefault(index, QueueTarget(self._pairing, index))
            pool = LinkPool(
                lambda: self._backlog_client.get_queue_sender(path, **self._options),
                path,
                target,
                self._pairing.backlog_connections,
                max_links=self._pairing.options.max_links,
                attempt_timeout=self._attempt_timeout,
                clock=self._pairing.clock,
                share=Budget.for_backlog,
            )
            pool = self._backlog.setdefault(index, pool)
        return pool

    def _warm_up_backlog_if_silent(self) -> None:
        """Open a backlog link in advance: a message may have to be diverted soon."""
        if self._entity.machine.evidence.silent_since is not None:
            self._warm_up_backlog(None)

    def _warm_up_backlog(self, session: str | None) -> None:
        # With order within sessions, each session has its own queue; the next one is unknown.
        if session is None and self._pairing.diverted_sessions is None:
            index = self._pairing.choose_queue(self._choice)
            if index is not None:
                self._pool(index).warm_up()

    async def open_standby(self, budget: Budget) -> None:
        """Open a link to the backlog queue that this sender has picked."""
        index = self._pairing.choose_queue(self._choice)
        if index is not None:
            try:
                async with self._pool(index).link(budget):
                    pass
            except SilentError:
                raise AttemptTimeoutError(self._pool(index).path, self._attempt_timeout, is_unsent=True) from None
            except OpeningError as opening:
                raise opening.error from None

    def _check_open(self) -> None:
        # A failure on a link cut by `close` says nothing about the entity, and is not retried.
        if self._is_closed:
            raise ValueError("The sender was closed.") from None

    async def close(self) -> None:
        """Close all links in parallel."""
        self._is_closed = True
        await in_parallel([pool.close for pool in (self._primary, *self._backlog.values())], 2 * CLOSING)


def _limits(pool: LinkPool) -> Limits:
    """Return the limits of an entity or queue; a guess until it has reported them."""
    return Limits(pool.max_message_size or STANDARD_LIMIT, pool.max_batch_size or STANDARD_LIMIT)
