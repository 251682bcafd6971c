"""Publishes OpenTelemetry metrics of pairings, if OpenTelemetry is installed.

Instruments exist once per process, as OpenTelemetry expects; docs/explanation/pairing.md lists names and units. The
application's `MeterProvider` collects and exports them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from . import events
from .failover.entity_failover import FailedOver, Healthy
from .foreign_calls import CALLBACK, DROPPED, POLICY, RECORDER
from .forks import watch_forks
from .pairing_state import Pairing

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

# Counted events: instrument, unit, description, and the event fields used as attributes.
_COUNTED: dict[type[events.Event], tuple[str, str, str, tuple[str, ...]]] = {
    events.Suspected: ("twinbus.suspicions", "{suspicion}", "Failures that started the failover timer", ("entity",)),
    events.FailedOver: ("twinbus.failovers", "{failover}", "Entities that failed over", ("entity", "forced")),
    events.Recovered: ("twinbus.recoveries", "{recovery}", "Entities that recovered", ("entity", "forced")),
    events.PingSent: ("twinbus.pings", "{ping}", "Pings and probes of entities", ("entity",)),
    events.PingFailed: ("twinbus.pings.failed", "{ping}", "Pings and probes that failed", ("entity",)),
    events.Diverted: ("twinbus.messages.diverted", "{message}", "Messages the backlog accepted", ("entity", "queue")),
    events.Moved: ("twinbus.messages.moved", "{message}", "Messages the syphon moved", ("entity", "queue")),
    events.BacklogQueueRetired: ("twinbus.retirements", "{retirement}", "Queues that left the rotation", ("queue",)),
    events.PumpStopped: ("twinbus.pumps.stopped", "{pump}", "Pumps that stopped for good", ("queue",)),
    events.LedgerUnavailable: ("twinbus.ledger.failures", "{failure}", "Times the ledger took no rows", ()),
    events.Faulted: ("twinbus.faults", "{fault}", "Pairings that faulted", ()),
}


def watch(pairing: Pairing) -> Callable[[], None]:
    """Measure a pairing until the returned function is called. Without OpenTelemetry, do nothing."""
    instruments = _instruments()
    return _nothing if instruments is None else instruments.watch(pairing)


def _nothing() -> None:
    pass


@cache
def _instruments() -> Instruments | None:
    try:
        from opentelemetry.metrics import Observation, get_meter
    except ImportError:
        return None
    return Instruments(get_meter("twinbus"), Observation)


class Instruments:
    """The instruments of the process."""

    def __init__(self, meter: Meter, observation: type[Observation]) -> None:
        self._observation = observation
        self.forked()
        watch_forks(self)
        self._counters = {
            kind: (meter.create_counter(name, unit, description), fields)
            for kind, (name, unit, description, fields) in _COUNTED.items()
        }
        meter.create_observable_gauge(
            "twinbus.entity.state", [self._states], "1", "0 healthy, 1 on probation, 2 suspect, 3 failed over"
        )
        meter.create_observable_gauge("twinbus.backlog.queues", [self._queues], "{queue}", "Queues in rotation")
        meter.create_observable_gauge(
            "twinbus.sessions.diverted", [self._sessions], "{session}", "Sessions that go through the backlog"
        )

        meter.create_observable_counter(
            "twinbus.application.errors",
            [self._errors],
            "{error}",
            "Failed calls of callbacks, recorder or policy",
        )
        meter.create_observable_gauge("twinbus.lag", [self._lag], "s", "How late the client's event loop ran")

    def forked(self) -> None:
        """Forget the parent's pairings: forked children do not measure them."""
        self._lock = threading.Lock()
        self._watched: WeakSet[Pairing] = WeakSet()

    def watch(self, pairing: Pairing) -> Callable[[], None]:
        with self._lock:
            self._watched.add(pairing)
        unsubscribe = pairing.events.subscribe(partial(self._happened, pairing))

        def end() -> None:
            unsubscribe()
            with self._lock:
                self._watched.discard(pairing)

        return end

    def _happened(self, pairing: Pairing, event: events.Event) -> None:
        counted = self._counters.get(type(event))
        if counted is not None:
            counter, fields = counted
            attributes = {f"twinbus.{name}": getattr(event, name) for name in fields}
            counter.add(getattr(event, "count", 1), {"twinbus.pairing": pairing.name, **attributes})

    def _pairings(self) -> list[Pairing]:
        with self._lock:
            return list(self._watched)

    def _states(self, _: CallbackOptions) -> Iterable[Observation]:
        # Two clients of a pairing may see an entity differently: report the worse state.
        states: dict[tuple[str, str], int] = {}
        for pairing in self._pairings():
            for entity in pairing.entities():
                key = pairing.name, entity.path
                states[key] = max(states.get(key, 0), _level(entity.machine.state))
        for (name, path), level in states.items():
            yield self._observation(level, {"twinbus.pairing": name, "twinbus.entity": path})

    def _queues(self, _: CallbackOptions) -> Iterable[Observation]:
        left: dict[str, int] = {}
        for pairing in self._pairings():
            count = pairing.options.backlog_queue_count - pairing.retired_count
            left[pairing.name] = min(left.get(pairing.name, count), count)
        return [self._observation(count, {"twinbus.pairing": name}) for name, count in left.items()]

    def _lag(self, _: CallbackOptions) -> Iterable[Observation]:
        latest: dict[str, float] = {}
        for pairing in self._pairings():
            latest[pairing.name] = max(latest.get(pairing.name, 0.0), pairing.lag.latest)
        return [self._observation(seconds, {"twinbus.pairing": name}) for name, seconds in latest.items()]

    def _errors(self, _: CallbackOptions) -> Iterable[Observation]:
        counts: Counter[tuple[str, str]] = Counter()
        for pairing in self._pairings():
            for role in (RECORDER, CALLBACK, POLICY, DROPPED):
                counts[pairing.name, role] += pairing.foreign.failures[role]
        return [
            self._observation(count, {"twinbus.pairing": name, "twinbus.role": role})
            for (name, role), count in counts.items()
        ]

    def _sessions(self, _: CallbackOptions) -> Iterable[Observation]:
        diverted: dict[str, int] = {}
        for pairing in self._pairings():
            if pairing.diverted_sessions is not None:
                known = diverted.get(pairing.name, 0)
                diverted[pairing.name] = max(known, pairing.diverted_sessions.count)
        return [self._observation(count, {"twinbus.pairing": name}) for name, count in diverted.items()]


def _level(state: Any) -> int:
    if isinstance(state, Healthy):
        return 0 if state.probation_until is None else 1
    return 3 if isinstance(state, FailedOver) else 2
