# Generated from pairing/_async/delivery.py by `make generate`: change it there.
"""How a parcel gets to the primary, or into the backlog."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import MessageSizeExceededError

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Stage

from .. import sdk_seam
from ..core import Pairing
from ..deadlines import Budget, Pauses
from ..errors import BacklogUnavailableError, EntityFailedOverError, EnvelopeTooLargeError
from ..events import Diverted, OversizeWarning
from ..failover import Route
from ..parcel import Parcel, Payload
from ..policy import is_busy, retires_queue
from ..recording import recorded
from ..send_records import SendRecords, now
from .attempts import Aside, Link, sleep
from .lines import Line, ReroutedError

#: Seconds between two looks whether others of a session have arrived.
TURN = 0.05
#: For so many attempts of theirs they are waited for.
MAX_TURNS = 3
#: What the primary returns: sequence numbers, if something was scheduled.
Numbers = list[int] | None


def _always() -> bool:
    return True


class Delivery:
    """The ways of one sender: the line to its entity, and those to the backlog queues it has used."""

    def __init__(
        self,
        pairing: Pairing,
        path: str,
        primary_client: ServiceBusClient,
        backlog_client: ServiceBusClient,
        **options: Any,
    ) -> None:
        self._pairing = pairing
        self._entity = pairing.entity(path)
        self._path = path
        self._counts = pairing.options.policy.counts
        self._records = SendRecords(pairing)
        # A topic's sender is a queue's sender to the SDK, but for the name of an argument.
        self._primary = Line(lambda: primary_client.get_queue_sender(path, **options), path)
        self._backlog_client = backlog_client
        self._options = options
        self._backlog: dict[int, Line] = {}
        self._choice = pairing.new_choice()
        self._aside = Aside()

    def bring(self, parcel: Parcel, budget: Budget) -> tuple[str | None, Numbers]:
        """Bring it where it is accepted: returns the path of the backlog queue, or None and what the primary returned.

        Raises:
            PairedClientFaultedError: the pairing is out of order.
            BacklogUnavailableError: neither the primary nor a backlog queue took it.
            Exception: what the primary, or the backlog, has against the message or its sender.
        """
        pairing, entity = self._pairing, self._entity
        session = None if pairing.diverted_sessions is None else parcel.session
        pauses: Pauses | None = None
        while True:
            routing = pairing.route(entity)
            if routing.route is Route.BACKLOG or (session is not None and self._is_diverted(session)):
                return self._divert(parcel, session, budget), None
            parcel.attempts += 1
            try:
                numbers = self._primary.deliver(
                    self._to_primary, parcel, budget.for_primary(), self._counts, self._is_primary
                )
            except ReroutedError:
                continue
            except Exception as error:
                if self._counts(error):
                    parcel.primary_error = error
                    pairing.sent_failed(entity, routing.epoch, error)
                    if pairing.options.while_suspect == "raise" and self._is_primary():
                        # The next one may have to be diverted: then there is a link. In order to keep sessions in
                        # order the queue is another for each of them, and nobody knows which.
                        if session is None:
                            self._aside.begin(self.open_standby, pairing.options.attempt_timeout)
                        raise
                    return self._divert(parcel, session, budget), None
                pauses = pauses or Pauses(pairing.random)
                pause = pauses.next(budget.before_backlog()) if is_busy(error) else None
                if pause is None:
                    raise
                sleep(pause)
                continue
            pairing.sent_ok(entity, routing.epoch)
            return None, numbers

    # ---- the primary ----

    def _to_primary(self, link: Link, parcel: Parcel, seconds: float) -> Numbers:
        # Not a coroutine itself: on the way of every send one less is felt.
        payload = parcel.payload
        if payload is None:
            payload = parcel.make_ready()
        if not parcel.is_small:
            self._check_size(parcel)
        if parcel.is_batch:
            sdk_seam.suit(payload, link.sender)
        if payload is None or self._records.is_on:
            return self._recorded(link, parcel, payload, seconds)
        return link.make(link.sender.send_messages, payload, seconds=seconds)

    def _recorded(
        self, link: Link, parcel: Parcel, payload: Payload | None, seconds: float, queue: str | None = None
    ) -> Numbers:
        """Send or schedule it, and record the attempt if anybody wants to know."""
        sender, records, numbers = link.sender, self._records, None
        started = now()
        try:
            if payload is not None:
                link.make(sender.send_messages, payload, seconds=seconds)
            else:
                numbers = link.make(sender.schedule_messages, list(parcel.messages), parcel.at, seconds=seconds)
        except BaseException as error:
            if records.is_on:
                records.attempted(sender, parcel, payload, queue, started, error)
            raise
        if records.is_on:
            records.attempted(sender, parcel, payload, queue, started)
        return numbers

    def _is_primary(self) -> bool:
        return self._pairing.route(self._entity).route is Route.PRIMARY

    def _check_size(self, parcel: Parcel) -> None:
        """Warn of what the primary takes and the backlog would not, or refuse it."""
        limit = self._limit(parcel.is_batch)
        found = parcel.oversize(limit)
        if found is None:
            return
        bare = found.size - found.overhead
        if bare > self._primary.limit(parcel.is_batch):
            if parcel.is_batch:  # as the SDK does with a list; of a single message the service will say so
                raise MessageSizeExceededError(message=f"The messages have {bare} bytes, more than a batch may have.")
            return
        if self._pairing.options.refuse_oversize:
            raise EnvelopeTooLargeError(self._path, found.size, limit, found.overhead)
        if not self._entity.is_warned_of_size:
            self._entity.is_warned_of_size = True
            self._pairing.publish(
                OversizeWarning(entity=self._path, size=found.size, limit=limit, overhead=found.overhead)
            )

    def _limit(self, is_batch: bool) -> int:
        """The most bytes that can be diverted, as far as is known: nobody asks the standby before it is needed."""
        for line in self._backlog.values():
            if line.is_measured:
                return line.limit(is_batch)
        return self._primary.limit(is_batch)

    def batch_limit(self, seconds: float) -> int:
        """The most bytes of a batch. The primary is asked if it has not told yet and may be spoken to.

        Raises:
            Exception: what the primary has against this sender.
        """
        routing = self._pairing.route(self._entity)
        if not self._primary.is_measured and routing.route is Route.PRIMARY:
            try:
                self._primary.opened(seconds)
            except Exception as error:
                if not self._counts(error):
                    raise
                # There will be a batch all the same, and the send after it need not find out anew.
                self._pairing.sent_failed(self._entity, routing.epoch, error)
        return min(self._primary.limit(True), self._limit(True))

    def cancel(self, numbers: list[int], budget: Budget) -> None:
        """Cancel scheduled messages at the primary. It is no send, and says nothing about failover.

        Raises:
            EntityFailedOverError: nothing but pings may reach the primary now.
            Exception: what the primary has against it.
        """
        pauses = Pauses(self._pairing.random)
        while self._is_primary():
            try:
                return self._primary.deliver(
                    self._cancel, numbers, budget.for_backlog(), self._counts, self._is_primary
                )
            except ReroutedError:
                break
            except Exception as error:
                pause = pauses.next(budget.left()) if is_busy(error) else None
                if pause is None:
                    raise
                sleep(pause)
        raise EntityFailedOverError(self._path, "cancel scheduled messages")

    def _cancel(self, link: Link, numbers: list[int], seconds: float) -> None:
        with recorded(self._pairing, OperationKind.CANCEL, Stage.DIRECT, NamespaceRole.PRIMARY, self._path):
            link.make(link.sender.cancel_scheduled_messages, numbers, seconds=seconds)

    # ---- the backlog ----

    def _divert(self, parcel: Parcel, session: str | None, budget: Budget) -> str:
        """Store it in a backlog queue, whose path is returned."""
        pairing = self._pairing
        pauses: Pauses | None = None
        failed: dict[int, BaseException] = {}
        patience = MAX_TURNS * pairing.options.attempt_timeout
        while budget.left() > 0:
            index = self._choice.settled if session is None and not failed else None
            if index is None:
                index = self._choose(session, failed)
            if index is None:
                break
            try:
                is_tried = self._store(parcel, session, index, budget.for_backlog())
            except Exception as error:
                if retires_queue(error):
                    failed[index] = error
                    pairing.queue_failed(index, error)
                    continue
                pauses = pauses or Pauses(pairing.random)
                pause = pauses.next(budget.left()) if is_busy(error) else None
                if pause is None:
                    raise
                sleep(pause)
            else:
                if not is_tried:
                    patience -= TURN
                    if patience < 0:
                        break
                    sleep(TURN)
                    continue
                queue = self._backlog[index].path
                if pairing.events.has_listeners:
                    pairing.publish(Diverted(entity=self._path, queue=queue, count=len(parcel.message_ids)))
                return queue
        errors = pairing.retired_queues() | {self._backlog[index].path: error for index, error in failed.items()}
        raise BacklogUnavailableError(self._path, parcel.primary_error or self._entity.last_error, errors)

    def _is_diverted(self, session: str) -> bool:
        """Whether the session has messages in the backlog, where order within a session is kept."""
        sessions = self._pairing.diverted_sessions
        return sessions is not None and sessions.is_diverted(self._path, session)

    def _choose(self, session: str | None, failed: dict[int, BaseException]) -> int | None:
        sessions = self._pairing.diverted_sessions
        if session is None or sessions is None:
            return self._pairing.choose_queue(self._choice, failed)
        queue = sessions.queue_of(self._path, session)
        if queue is not None:
            # In another queue it could overtake those before it: rather nowhere than out of order.
            return None if queue in failed else queue
        return self._pairing.choose_queue(self._choice, failed, (self._path, session))

    def _store(self, parcel: Parcel, session: str | None, index: int, seconds: float) -> bool:
        """Store it in a queue; false: others of its session are on their way to another one, and it has to wait."""
        line = self._backlog.get(index) or self._backlog_line(index)
        sessions = self._pairing.diverted_sessions
        if sessions is None or session is None:
            parcel.attempts += 1
            line.deliver(self._to_backlog, (parcel, line), seconds, retires_queue, _always)
            return True
        with sessions.diverting(self._path, session, index) as may_go:
            if may_go:
                parcel.attempts += 1
                line.deliver(self._to_backlog, (parcel, line), seconds, retires_queue, _always)
            return may_go

    def _to_backlog(self, link: Link, load: tuple[Parcel, Line], seconds: float) -> Numbers:
        parcel, line = load
        payload = parcel.wrapped(line.limit(parcel.is_batch))
        sdk_seam.suit(payload, link.sender)
        if self._records.is_on:
            return self._recorded(link, parcel, payload, seconds, line.path)
        return link.make(link.sender.send_messages, payload, seconds=seconds)

    def _backlog_line(self, index: int) -> Line:
        line = self._backlog.get(index)
        if line is None:
            path = self._pairing.queue_path(index)
            new = Line(lambda: self._backlog_client.get_queue_sender(path, **self._options), path)
            line = self._backlog.setdefault(index, new)
        return line

    def open_standby(self, seconds: float) -> None:
        """Open the line to the backlog queue that this sender has picked."""
        index = self._pairing.choose_queue(self._choice)
        if index is not None:
            self._backlog_line(index).opened(seconds)

    def close(self) -> None:
        """Close all lines."""
        self._aside.close()
        for line in (self._primary, *self._backlog.values()):
            line.close()
