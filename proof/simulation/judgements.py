"""Checks what a message history does not show: false alarms, late calls, missed outages.

Each check is exactly as strict as the promise to callers, so each says for which calls and entities it holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from twinbus.pairing.events import BacklogQueueRetired, Event, FailedOver, Recovered, Suspected
from twinbus.pairing.failover.error_classification import Cause, cause_of
from twinbus.pairing.pairing_errors import BacklogUnavailableError

from ..history import History, Id
from .application import Call
from .callers import HARMLESS, makes_unavailable
from .network import Fault, FaultKind
from .scenario import PRIMARY, SECONDARY, Action, Scenario
from .virtual_time import START

#: Tolerance in seconds for calls that outlast their timeout.
MARGIN = 0.05
#: A connection limit that a run never reaches.
ENOUGH_CONNECTIONS = 100
#: Seconds after which every answer sent before an outage has arrived.
IN_TRANSIT_SECONDS = 0.5
#: Backlog queue errors that must not reach the caller, with the fault that gives an entity the same error.
_QUEUE_ERRORS = {
    Cause.NOT_FOUND: FaultKind.DELETED,
    Cause.DISABLED: FaultKind.DISABLED,
    Cause.QUOTA: FaultKind.QUOTA,
    Cause.FORBIDDEN: FaultKind.FORBIDDEN,
}
#: Actions after which it is undecidable whether an outage should have been noticed.
_CHANGES_ROUTES = frozenset({Action.FAIL_OVER, Action.FAIL_BACK, Action.CLOSE_SENDER, Action.CLOSE_PARTNER})


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a run besides its messages. Times are those of the event loop."""

    scenario: Scenario
    calls: list[Call]
    events: list[tuple[float, Event]]
    starved: list[tuple[float, float]]
    #: Creation time of each backlog queue, by path.
    created_at: Mapping[str, float]
    #: Number of times each message was sent to the primary by its sender.
    sent_to_primary: Mapping[str, int]
    history: History

    # ---- faults ----

    def faults(self, namespace: str, entity: str, *, harmless: Iterable[FaultKind] = ()) -> list[Fault]:
        """The faults that strike an entity, except harmless kinds."""
        return [
            fault
            for fault in self.scenario.faults
            if fault.namespace == namespace and fault.entity in (None, entity) and fault.kind not in harmless
        ]

    def is_healthy(self, entity: str) -> bool:
        """Whether no fault of the run made an entity of the primary unavailable."""
        policy = self.scenario.options.policy
        return not any(makes_unavailable(fault, policy) for fault in self.faults(PRIMARY, entity))

    @property
    def is_calm(self) -> bool:
        """Whether no fault made the primary unavailable, and no failover was forced."""
        is_healthy = all(self.is_healthy(queue.path) for queue in self.scenario.queues)
        return is_healthy and all(action.action is not Action.FAIL_OVER for action in self.scenario.actions)

    def is_starved(self, call: Call) -> bool:
        return any(call.overlaps(*times) for times in self.starved)

    def is_unconstrained(self, call: Call) -> bool:
        """Whether a call had no timeout, was not cancelled, and the process was not starved."""
        return call.plan.timeout is None and not call.is_broken_off and not self.is_starved(call)

    def follows_its_session(self, call: Call) -> bool:
        """Whether a call may have to follow earlier messages of its session to the backlog."""
        if self.scenario.options.order is None or call.plan.session is None:
            return False
        key = call.entity, call.plan.session
        return any(
            other.route != "primary" and other.began <= call.began
            for other in self.calls
            if other is not call and (other.entity, other.plan.session) == key
        )


def complaints(record: Record) -> Iterator[str]:
    """Yield a sentence for everything that must not happen."""
    yield from _false_alarms(record)
    yield from _false_retirements(record)
    yield from _needless_diversions(record)
    yield from _repeated_sends(record)
    yield from _refusals(record)
    yield from _late_calls(record)
    yield from _missed_outages(record)
    yield from _calls_out_of_order(record)


def _false_alarms(record: Record) -> Iterator[str]:
    """An available entity is never considered unavailable, whatever callers do."""
    for at, event in record.events:
        is_alarm = isinstance(event, Suspected) or (isinstance(event, FailedOver) and not event.forced)
        if isinstance(event, (Suspected, FailedOver)) and is_alarm and record.is_healthy(event.entity):
            yield f"false alarm: {type(event).__name__} of {event.entity} at {at - START:.3f} s ({event.error!r})"


def _false_retirements(record: Record) -> Iterator[str]:
    """An available backlog queue is never retired. Before it is created it cannot store messages."""
    for at, event in record.events:
        if not isinstance(event, BacklogQueueRetired) or record.faults(SECONDARY, event.queue, harmless=HARMLESS):
            continue
        created_at = record.created_at.get(event.queue)
        if created_at is not None and at > created_at + record.scenario.options.attempt_timeout:
            yield f"false retirement of {event.queue} at {at - START:.3f} s ({event.error!r})"


def _needless_diversions(record: Record) -> Iterator[str]:
    """While the primary is healthy, calls without a timeout are accepted there."""
    if not record.is_calm:
        return
    for call in record.calls:
        if not record.is_unconstrained(call) or record.follows_its_session(call):
            continue
        error = call.error
        if call.route == "backlog":
            yield f"needless diversion of {call.name}"
        elif error is not None and (cause_of(error) is Cause.UNAVAILABLE or isinstance(error, BacklogUnavailableError)):
            yield f"needless error of {call.name}: {error!r}"


def _repeated_sends(record: Record) -> Iterator[str]:
    """Cancelled or impatient calls do not disturb others: each call is sent once."""
    is_refusing = any(
        fault.namespace == PRIMARY and fault.kind is not FaultKind.IDLE for fault in record.scenario.faults
    )
    if not record.is_calm or is_refusing:
        return
    for call in record.calls:
        if record.is_unconstrained(call) and call.route == "primary":
            counts = {record.sent_to_primary[message_id] for message_id in call.plan.message_ids}
            if counts != {1}:
                yield f"disturbed: {call.name} was sent {max(counts)} times"


def _refusals(record: Record) -> Iterator[str]:
    """While one backlog queue accepts messages, a call without a timeout succeeds."""
    for call in record.calls:
        error = call.error
        if error is None or not record.is_unconstrained(call) or record.follows_its_session(call):
            continue
        is_of_queue = isinstance(error, BacklogUnavailableError) or _is_queue_error(record, call, cause_of(error))
        if is_of_queue and _has_queue_for(record, call):
            yield f"refused though a backlog queue was there: {call.name}: {error!r}"


def _is_queue_error(record: Record, call: Call, cause: Cause) -> bool:
    """Whether the cause can only come from a backlog queue, not from the primary."""
    kind = _QUEUE_ERRORS.get(cause)
    return kind is not None and all(fault.kind is not kind for fault in record.faults(PRIMARY, call.entity))


def _has_queue_for(record: Record, call: Call) -> bool:
    """Whether a backlog queue was in the rotation and accepted messages throughout a call."""
    options = record.scenario.options
    since = call.began - options.backlog_cooldown - 2 * options.attempt_timeout
    return any(
        created_at <= since
        and not any(
            START + fault.start <= call.ended and since <= START + fault.end
            for fault in record.faults(SECONDARY, path, harmless=[FaultKind.IDLE])
        )
        for path, created_at in record.created_at.items()
    )


def _late_calls(record: Record) -> Iterator[str]:
    """No call takes longer than its timeout."""
    for call in record.calls:
        timeout = call.plan.timeout
        if timeout is not None and call.ended - call.began > timeout + MARGIN and not record.is_starved(call):
            yield f"late: {call.name} took {call.ended - call.began:.3f} s, with a timeout of {timeout:.3f} s"


def _missed_outages(record: Record) -> Iterator[str]:
    """A primary that stops answering is failed over, even if no caller waits long enough to notice.

    Skipped where calls may have found no free connection: they have tried nothing.
    """
    options = record.scenario.options
    if options.max_connections < ENOUGH_CONNECTIONS:
        return
    seconds_to_notice = options.failover_interval + 3 * options.attempt_timeout + 1.0
    for queue in record.scenario.queues:
        faults = [fault for fault in record.faults(PRIMARY, queue.path) if fault.kind is FaultKind.BLACK_HOLE]
        for fault in faults:
            call = _first_unanswered(record, queue.path, fault)
            if call is None:
                continue
            until = call.began + seconds_to_notice
            if until > START + fault.end or not _is_only_fault(record, queue.path, fault, until):
                continue
            if not any(
                isinstance(event, FailedOver) and event.entity == queue.path and call.began <= at <= until
                for at, event in record.events
            ):
                since = f"did not answer from {fault.start:.3f} s"
                yield f"missed outage: {queue.path} {since}, and the call {call.name} caused no failover"


def _first_unanswered(record: Record, path: str, fault: Fault) -> Call | None:
    """The first call that gets no answer, if it was sent to the primary."""
    start = START + fault.start + IN_TRANSIT_SECONDS
    for call in record.calls:
        if call.entity != path or call.began < start or call.is_broken_off:
            continue
        has_order = record.scenario.options.order is not None and call.plan.session is not None
        return None if has_order or _is_failed_over(record, path, call.began) else call
    return None


def _is_failed_over(record: Record, path: str, now: float) -> bool:
    """Whether an entity was failed over at time `now`."""
    changes = [
        isinstance(event, FailedOver)
        for at, event in record.events
        if at <= now and isinstance(event, (FailedOver, Recovered)) and event.entity == path
    ]
    return bool(changes) and changes[-1]


def _is_only_fault(record: Record, path: str, fault: Fault, until: float) -> bool:
    """Whether nothing else could prevent the outage from being noticed."""
    others = [other for other in record.faults(PRIMARY, path) if other is not fault]
    if any(other.start <= fault.end and fault.start <= other.end for other in others):
        return False
    if any(action.action in _CHANGES_ROUTES and START + action.at <= until for action in record.scenario.actions):
        return False
    return not any(start <= until and START + fault.start <= end for start, end in record.starved)


def _calls_out_of_order(record: Record) -> Iterator[str]:
    """Where order is kept, messages of one sender and session arrive in the order of the calls.

    Ignores messages whose answer was lost, which may have arrived earlier than known, and messages of deleted queues,
    which arrive late if a syphon had received them before.
    """
    if record.scenario.options.order is None:
        return
    arrived: dict[tuple[int, str, str], list[tuple[int, str]]] = defaultdict(list)
    for call in record.calls:
        session = call.plan.session
        if session is None or call.plan.scheduled_in is not None or call.route is None:
            continue
        for message_id in call.plan.message_ids:
            arrivals = record.history.arrivals.get((call.entity, message_id))
            if not arrivals:
                continue
            sent = record.history.sent[Id(call.entity, message_id)]
            if not sent.is_doubtful and not sent.was_deleted:
                arrived[call.plan.sender, call.entity, session].append((arrivals[0].moment, message_id))
    for arrivals_in_call_order in arrived.values():
        for (before, first), (after, second) in pairwise(arrivals_in_call_order):
            if after < before:
                yield f"out of call order: {second} arrived before {first}"
