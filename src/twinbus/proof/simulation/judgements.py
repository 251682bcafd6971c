"""Judges what no history of messages shows: alarms without a reason, calls that take too long, outages not noticed.

Each judgement is exactly as strong as what is promised to callers, so each says for which calls and entities it holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from twinbus.pairing.errors import BacklogUnavailableError
from twinbus.pairing.events import BacklogQueueRetired, Event, FailedOver, Recovered, Suspected
from twinbus.pairing.policy import Cause, cause_of

from ..history import History, Id
from .application import Call
from .callers import HARMLESS, makes_unavailable
from .network import Fault, Weather
from .scenario import PRIMARY, SECONDARY, Deed, Scenario
from .virtual_time import START

#: Seconds by which a call may outlast its timeout.
MARGIN = 0.05
#: Connections of which there are always some left.
ENOUGH_CONNECTIONS = 100
#: Seconds after which no answer is on its way any more that was sent before the network fell silent.
ON_THE_WAY = 0.5
#: What a backlog queue can say that must not reach the caller, and when an entity says the same.
_OF_A_QUEUE = {
    Cause.NOT_FOUND: Weather.DELETED,
    Cause.DISABLED: Weather.DISABLED,
    Cause.QUOTA: Weather.QUOTA,
    Cause.FORBIDDEN: Weather.FORBIDDEN,
}
#: After these no one can tell whether an outage should have been noticed.
_CHANGES_ROUTES = frozenset({Deed.FAIL_OVER, Deed.FAIL_BACK, Deed.CLOSE_SENDER, Deed.CLOSE_PARTNER})


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a run besides its messages; times are those of the event loop."""

    scenario: Scenario
    calls: list[Call]
    events: list[tuple[float, Event]]
    starved: list[tuple[float, float]]
    #: When each backlog queue was made.
    made: Mapping[str, float]
    #: How often each message was sent to the primary by its sender.
    sent_to_primary: Mapping[str, int]
    history: History

    # ---- what was wrong when ----

    def faults(self, namespace: str, entity: str, *, harmless: Iterable[Weather] = ()) -> list[Fault]:
        """The faults that strike an entity, but for some that leave it available."""
        return [
            fault
            for fault in self.scenario.faults
            if fault.namespace == namespace and fault.entity in (None, entity) and fault.weather not in harmless
        ]

    def is_sound(self, entity: str) -> bool:
        """Whether nothing made an entity of the primary unavailable, in the whole run."""
        policy = self.scenario.options.policy
        return not any(makes_unavailable(fault, policy) for fault in self.faults(PRIMARY, entity))

    @property
    def is_calm(self) -> bool:
        """Whether nothing made the primary unavailable, and no one ordered a failover."""
        is_sound = all(self.is_sound(queue.path) for queue in self.scenario.queues)
        return is_sound and all(deed.deed is not Deed.FAIL_OVER for deed in self.scenario.deeds)

    def is_starved(self, call: Call) -> bool:
        return any(call.overlaps(*times) for times in self.starved)

    def is_undisturbed(self, call: Call) -> bool:
        """Whether a call had all the time in the world and was left alone."""
        return call.plan.timeout is None and not call.is_broken_off and not self.is_starved(call)

    def follows_its_session(self, call: Call) -> bool:
        """Whether a call may have to go where earlier messages of its session are."""
        if self.scenario.options.order is None or call.plan.session is None:
            return False
        key = call.entity, call.plan.session
        return any(
            one.route != "primary" and one.began <= call.began
            for one in self.calls
            if one is not call and (one.entity, one.plan.session) == key
        )


def complaints(record: Record) -> Iterator[str]:
    """Everything that must not be."""
    yield from _false_alarms(record)
    yield from _false_retirements(record)
    yield from _needless_diversions(record)
    yield from _repeated_sends(record)
    yield from _refusals(record)
    yield from _late_calls(record)
    yield from _missed_outages(record)
    yield from _calls_out_of_order(record)


def _false_alarms(record: Record) -> Iterator[str]:
    """Whatever callers do, an entity that is available is never taken for unavailable."""
    for at, event in record.events:
        is_alarm = isinstance(event, Suspected) or (isinstance(event, FailedOver) and not event.forced)
        if isinstance(event, (Suspected, FailedOver)) and is_alarm and record.is_sound(event.entity):
            yield f"false alarm: {type(event).__name__} of {event.entity} at {at - START:.3f} s ({event.error!r})"


def _false_retirements(record: Record) -> Iterator[str]:
    """The same for a backlog queue; before it was made it cannot take messages."""
    for at, event in record.events:
        if not isinstance(event, BacklogQueueRetired) or record.faults(SECONDARY, event.queue, harmless=HARMLESS):
            continue
        made = record.made.get(event.queue)
        if made is not None and at > made + record.scenario.options.attempt_timeout:
            yield f"false retirement of {event.queue} at {at - START:.3f} s ({event.error!r})"


def _needless_diversions(record: Record) -> Iterator[str]:
    """While nothing is wrong with the primary, calls without a timeout are accepted there."""
    if not record.is_calm:
        return
    for call in record.calls:
        if not record.is_undisturbed(call) or record.follows_its_session(call):
            continue
        error = call.error
        if call.route == "backlog":
            yield f"needless diversion of {call.name}"
        elif error is not None and (cause_of(error) is Cause.UNAVAILABLE or isinstance(error, BacklogUnavailableError)):
            yield f"needless error of {call.name}: {error!r}"


def _repeated_sends(record: Record) -> Iterator[str]:
    """No call is disturbed by another one, cancelled or impatient: it is sent once."""
    is_refusing = any(one.namespace == PRIMARY and one.weather is not Weather.IDLE for one in record.scenario.faults)
    if not record.is_calm or is_refusing:
        return
    for call in record.calls:
        if record.is_undisturbed(call) and call.route == "primary":
            counts = {record.sent_to_primary[message_id] for message_id in call.plan.message_ids}
            if counts != {1}:
                yield f"disturbed: {call.name} was sent {max(counts)} times"


def _refusals(record: Record) -> Iterator[str]:
    """As long as one backlog queue takes messages, a call without a timeout gets rid of its message."""
    for call in record.calls:
        error = call.error
        if error is None or not record.is_undisturbed(call) or record.follows_its_session(call):
            continue
        is_of_queue = isinstance(error, BacklogUnavailableError) or _is_word_of_a_queue(record, call, cause_of(error))
        if is_of_queue and _has_queue_for(record, call):
            yield f"refused though a backlog queue was there: {call.name}: {error!r}"


def _is_word_of_a_queue(record: Record, call: Call, cause: Cause) -> bool:
    """Whether only a backlog queue can have said this, and not the primary."""
    weather = _OF_A_QUEUE.get(cause)
    return weather is not None and all(fault.weather is not weather for fault in record.faults(PRIMARY, call.entity))


def _has_queue_for(record: Record, call: Call) -> bool:
    """Whether a queue takes messages during a call, and did for so long before that it is in rotation."""
    options = record.scenario.options
    since = call.began - options.backlog_cooldown - 2 * options.attempt_timeout
    return any(
        made <= since
        and not any(
            START + fault.start <= call.ended and since <= START + fault.end
            for fault in record.faults(SECONDARY, path, harmless=[Weather.IDLE])
        )
        for path, made in record.made.items()
    )


def _late_calls(record: Record) -> Iterator[str]:
    """The caller's timeout covers everything."""
    for call in record.calls:
        timeout = call.plan.timeout
        if timeout is not None and call.ended - call.began > timeout + MARGIN and not record.is_starved(call):
            yield f"late: {call.name} took {call.ended - call.began:.3f} s, with a timeout of {timeout:.3f} s"


def _missed_outages(record: Record) -> Iterator[str]:
    """A primary that falls silent is failed over, also if no caller waits long enough to notice.

    Not where a call may have found no connection, because other entities used them all: then it has tried nothing.
    """
    options = record.scenario.options
    if options.max_connections < ENOUGH_CONNECTIONS:
        return
    patience = options.failover_interval + 3 * options.attempt_timeout + 1.0
    for queue in record.scenario.queues:
        faults = [one for one in record.faults(PRIMARY, queue.path) if one.weather is Weather.BLACK_HOLE]
        for fault in faults:
            call = _first_unanswered(record, queue.path, fault)
            if call is None:
                continue
            until = call.began + patience
            if until > START + fault.end or not _is_only_fault(record, queue.path, fault, until):
                continue
            if not any(
                isinstance(event, FailedOver) and event.entity == queue.path and call.began <= at <= until
                for at, event in record.events
            ):
                yield f"missed outage: {queue.path} was silent from {fault.start:.3f} s, and {call.name} was not heard"


def _first_unanswered(record: Record, path: str, fault: Fault) -> Call | None:
    """The first call that cannot be answered, if it was sent to the primary."""
    start = START + fault.start + ON_THE_WAY
    for call in record.calls:
        if call.entity != path or call.began < start or call.is_broken_off:
            continue
        has_order = record.scenario.options.order is not None and call.plan.session is not None
        return None if has_order or _is_over(record, path, call.began) else call
    return None


def _is_over(record: Record, path: str, now: float) -> bool:
    """Whether an entity was failed over at a time."""
    changes = [
        isinstance(event, FailedOver)
        for at, event in record.events
        if at <= now and isinstance(event, (FailedOver, Recovered)) and event.entity == path
    ]
    return bool(changes) and changes[-1]


def _is_only_fault(record: Record, path: str, fault: Fault, until: float) -> bool:
    """Whether nothing else could keep the outage from being noticed."""
    others = [one for one in record.faults(PRIMARY, path) if one is not fault]
    if any(one.start <= fault.end and fault.start <= one.end for one in others):
        return False
    if any(deed.deed in _CHANGES_ROUTES and START + deed.at <= until for deed in record.scenario.deeds):
        return False
    return not any(start <= until and START + fault.start <= end for start, end in record.starved)


def _calls_out_of_order(record: Record) -> Iterator[str]:
    """Where order is kept, messages of one sender and session arrive in the order of the calls.

    A message whose answer was lost may have arrived earlier than anyone knows: it is left out.
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
            if arrivals and not record.history.sent[Id(call.entity, message_id)].is_doubtful:
                arrived[call.plan.sender, call.entity, session].append((arrivals[0].moment, message_id))
    for found in arrived.values():
        for (before, first), (after, second) in pairwise(found):
            if after < before:
                yield f"out of call order: {second} arrived before {first}"
