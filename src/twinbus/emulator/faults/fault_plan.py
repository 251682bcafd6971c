"""Defines faults and decides which of them strike an operation.

A fault is added at run time, from Python or over HTTP, for a whole namespace or one entity. It fires at its fault
points: a number of times, for some seconds, or with a probability drawn from a seed. Each firing is counted, so that
a test can check that its fault happened. `gates.py` applies faults to links, `outage.py` to connections.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

from ..protocol import error_conditions as errors


class FaultKind(StrEnum):
    """What a fault does."""

    REFUSE = "refuse"  # connections are refused
    RESET = "reset"  # connections are cut with a TCP reset
    BLACKHOLE = "blackhole"  # nothing is done or answered until the fault ends
    SLOW = "slow"  # done `delay` seconds late
    DROP_ACK = "drop_ack"  # done and stored, but never answered
    REJECT = "reject"  # refused with `condition`
    THROTTLE = "throttle"  # refused with server-busy
    DETACH = "detach"  # the link is detached with `condition`
    CLOSE = "close"  # the connection is closed with `condition`
    EXPIRE = "expire"  # the entity's tokens expire
    DISABLE = "disable"  # the entity behaves as disabled
    FILL = "fill"  # the entity behaves as full


class FaultPoint(StrEnum):
    """Fault points: the AMQP operations that a fault can strike."""

    CONNECT = "connect"
    TOKEN = "token"  # put-token at $cbs
    ATTACH = "attach"
    SEND = "send"
    RECEIVE = "receive"
    SETTLE = "settle"
    MANAGEMENT = "management"


_CONNECT = frozenset({FaultPoint.CONNECT})
_ALL_POINTS = frozenset(FaultPoint)
_ON_LINKS = frozenset(
    {FaultPoint.ATTACH, FaultPoint.SEND, FaultPoint.RECEIVE, FaultPoint.SETTLE, FaultPoint.MANAGEMENT}
)
_REFUSABLE = frozenset({FaultPoint.TOKEN, FaultPoint.ATTACH, FaultPoint.SEND, FaultPoint.SETTLE, FaultPoint.MANAGEMENT})
#: The fault points that each fault kind allows.
CAN_STRIKE: dict[FaultKind, frozenset[FaultPoint]] = {
    FaultKind.REFUSE: frozenset({FaultPoint.CONNECT, FaultPoint.ATTACH}),
    FaultKind.RESET: _ALL_POINTS,
    FaultKind.BLACKHOLE: _ALL_POINTS,
    FaultKind.SLOW: _ALL_POINTS,
    FaultKind.DROP_ACK: frozenset({FaultPoint.SEND, FaultPoint.SETTLE, FaultPoint.MANAGEMENT}),
    FaultKind.REJECT: _REFUSABLE,
    FaultKind.THROTTLE: _REFUSABLE,
    FaultKind.DETACH: _ON_LINKS - {FaultPoint.MANAGEMENT},
    FaultKind.CLOSE: _ON_LINKS,
    FaultKind.EXPIRE: _ON_LINKS | {FaultPoint.TOKEN},
    FaultKind.DISABLE: _ON_LINKS - {FaultPoint.SETTLE},
    FaultKind.FILL: frozenset({FaultPoint.SEND, FaultPoint.MANAGEMENT}),
}
# Fault points if `on` is empty. Kinds meant for links that exist leave attaching out.
_DEFAULT_POINTS: dict[FaultKind, frozenset[FaultPoint]] = {
    FaultKind.REJECT: frozenset({FaultPoint.SEND, FaultPoint.MANAGEMENT}),
    FaultKind.THROTTLE: frozenset({FaultPoint.SEND, FaultPoint.MANAGEMENT}),
    FaultKind.DETACH: frozenset({FaultPoint.SEND, FaultPoint.RECEIVE}),
    FaultKind.DROP_ACK: frozenset({FaultPoint.SEND}),
    FaultKind.EXPIRE: _ON_LINKS,
}
# `after_answer` needs an operation that has an answer.
_ANSWERED = frozenset({FaultPoint.SEND, FaultPoint.SETTLE, FaultPoint.MANAGEMENT})
_CONDITIONS = {
    FaultKind.THROTTLE: errors.SERVER_BUSY,
    FaultKind.DETACH: errors.DETACH_FORCED,
    FaultKind.CLOSE: errors.CONNECTION_FORCED,
    FaultKind.EXPIRE: errors.UNAUTHORIZED,
    FaultKind.DISABLE: errors.ENTITY_DISABLED,
    FaultKind.FILL: errors.QUOTA_EXCEEDED,
    FaultKind.REJECT: errors.INTERNAL_ERROR,
}
_DESCRIPTIONS = {
    FaultKind.THROTTLE: "The request was terminated because the entity is being throttled. Error code : 50009."
    " Please wait 2 seconds and try again.",
    FaultKind.DETACH: "The link is force detached.",
    FaultKind.CLOSE: "The connection is closed by the service.",
    FaultKind.EXPIRE: "ExpiredToken: The token is expired.",
    FaultKind.DISABLE: "Messaging entity is currently disabled.",
    FaultKind.FILL: "The maximum entity size has been reached or exceeded.",
    FaultKind.REJECT: "The service was unable to process the request; please retry the operation.",
}

MAX_FAULTS = 1000
MAX_DELAY = 3600.0
MAX_SECONDS = 86_400.0


_NUMBER = (int, float)
_TYPES: dict[str, Any] = {
    "entity": str,
    "count": int,
    "seconds": _NUMBER,
    "probability": _NUMBER,
    "seed": int,
    "delay": _NUMBER,
    "condition": str,
    "description": str,
    "then_reset": bool,
    "after_answer": bool,
}
_OPTIONAL = frozenset({"entity", "count", "seconds", "condition", "description"})
# The bounds of each field, for error messages.
_MUST_BE = {
    "entity": "the path of an entity, or left out for the whole namespace",
    "count": "1 or more, a whole number",
    "seconds": f"above 0 and at most {MAX_SECONDS:g}, a number",
    "probability": "above 0 and at most 1, a number",
    "seed": "a whole number",
    "delay": f"a number of seconds from 0 to {MAX_DELAY:g}",
    "condition": "text",
    "description": "text",
    "then_reset": "True or False",
    "after_answer": "True or False",
}


class FaultError(ValueError):
    """A fault is invalid, or too many are in force. The message names the field and its bounds."""


def _read_operations(on: Any) -> frozenset[FaultPoint]:
    """The fault points in `on`: one or an iterable, as members or names. Raises `FaultError`."""
    try:
        return frozenset(map(FaultPoint, [on] if isinstance(on, str) else on))
    except (ValueError, TypeError):
        raise FaultError(f"on must be some of {', '.join(FaultPoint)}") from None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to add to a namespace.

    `entity` None means the whole namespace; an entity includes its dead-letter queue and subscriptions. `on` holds the
    fault points. If it is empty, the kind's default points apply and the fault also hits what exists already:
    connections are cut or frozen, links detached. `count`, `seconds` and `probability` bound the fault; with a count or
    a probability it strikes only later operations. Without any of them it lasts until it is removed. `kind` and `on`
    may be given by name, `on` as any iterable.

    Raises:
        FaultError: a field has the wrong type or is out of its bounds; the message names it.
    """

    kind: FaultKind
    entity: str | None = None
    on: frozenset[FaultPoint] = frozenset()
    count: int | None = None
    seconds: float | None = None
    probability: float = 1.0
    seed: int = 0
    #: For a slow fault: seconds added to each operation.
    delay: float = 0.0
    condition: str | None = None
    description: str | None = None
    #: For drop_ack: also cut the connection.
    then_reset: bool = False
    #: For reset: do and answer the operation first, then cut the connection.
    after_answer: bool = False

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "kind", FaultKind(self.kind))
        except ValueError:
            raise FaultError(f"kind must be one of {', '.join(FaultKind)}") from None
        object.__setattr__(self, "on", _read_operations(self.on))
        self._check_types()
        if self.entity is not None and not self.entity.strip("/"):
            raise FaultError(f"entity must be {_MUST_BE['entity']}")
        if self.count is not None and self.count < 1:
            raise FaultError(f"count must be {_MUST_BE['count']}")
        if self.seconds is not None and not 0 < self.seconds <= MAX_SECONDS:
            raise FaultError(f"seconds must be {_MUST_BE['seconds']}")
        if not 0 < self.probability <= 1:
            raise FaultError(f"probability must be {_MUST_BE['probability']}")
        if self.kind is FaultKind.SLOW and not 0 < self.delay <= MAX_DELAY:
            raise FaultError(f"delay must be above 0 and at most {MAX_DELAY:g} seconds for a slow fault")
        if not 0 <= self.delay <= MAX_DELAY:
            raise FaultError(f"delay must be {_MUST_BE['delay']}")
        if self.then_reset and self.kind is not FaultKind.DROP_ACK:
            raise FaultError("then_reset is for drop_ack only")
        if self.after_answer and (self.kind is not FaultKind.RESET or not self.on or self.on - _ANSWERED):
            raise FaultError("after_answer is for a reset on send, settle or management")
        self._check_points()

    def _check_types(self) -> None:
        for name, kinds in _TYPES.items():
            value = getattr(self, name)
            is_omitted = value is None and name in _OPTIONAL
            # bool is a subclass of int, but no number here.
            if not is_omitted and (not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool)):
                raise FaultError(f"{name} must be {_MUST_BE[name]}, not {type(value).__name__}")

    def _check_points(self) -> None:
        allowed = CAN_STRIKE[self.kind] if self.entity is None else CAN_STRIKE[self.kind] - _CONNECT
        if wrong := self.on - allowed:
            where = "a whole namespace" if self.entity is None else "an entity"
            wrong_names, allowed_names = ", ".join(sorted(wrong)), ", ".join(sorted(allowed))
            raise FaultError(f"on cannot be {wrong_names} for {self.kind} of {where}; it can be {allowed_names}")

    @property
    def strikes(self) -> frozenset[FaultPoint]:
        """The fault points that apply: `on`, or the defaults of the kind."""
        if self.on:
            return self.on
        if self.entity is not None:
            return _DEFAULT_POINTS.get(self.kind, CAN_STRIKE[self.kind]) - _CONNECT
        return _CONNECT if self.kind is FaultKind.REFUSE else _DEFAULT_POINTS.get(self.kind, CAN_STRIKE[self.kind])

    @property
    def is_steady(self) -> bool:
        """Whether it strikes every operation until it ends."""
        return self.count is None and self.probability == 1

    @property
    def stops_namespace(self) -> bool:
        """Whether it makes the whole namespace unreachable while it is in force."""
        if self.entity is not None or not self.is_steady:
            return False
        return not self.on or (self.kind is FaultKind.REFUSE and FaultPoint.CONNECT in self.on)

    @property
    def refuses(self) -> bool:
        """Whether the operation is not done and is answered with `error`."""
        return self.kind not in (FaultKind.DROP_ACK, FaultKind.RESET)

    @property
    def hides_answer(self) -> bool:
        """Whether the operation is done but never answered."""
        return self.kind is FaultKind.DROP_ACK

    @property
    def cuts_after(self) -> bool:
        """Whether the connection is cut after the operation."""
        return self.then_reset or self.after_answer

    def covers(self, path: str | None) -> bool:
        """Whether the fault applies to the entity or node at `path`."""
        if self.entity is None:
            return True
        entity = self.entity.strip("/").lower()
        return path is not None and (path.lower() == entity or path.lower().startswith(entity + "/"))

    def error(self) -> errors.BrokerError:
        """The error that the client gets."""
        condition = self.condition or _CONDITIONS.get(self.kind, errors.INTERNAL_ERROR)
        return errors.BrokerError(condition, self.description or _DESCRIPTIONS.get(self.kind, "A fault."))

    @classmethod
    def from_json(cls, values: Any) -> Fault:
        """Read a fault from plain JSON types; raises `FaultError` naming the field."""
        if not isinstance(values, dict):
            raise FaultError("a fault is a JSON object")
        names = [item.name for item in fields(cls)]
        if unknown := sorted(set(values) - set(names)):
            raise FaultError(f"{unknown[0]} is not a field of a fault: {', '.join(names)}")
        # null means omitted.
        known = {name: value for name, value in values.items() if value is not None}
        known.setdefault("kind", "")
        return cls(**known)

    def to_json(self) -> dict[str, Any]:
        """The fault in plain JSON types; `on` holds the points that apply."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**values, "kind": self.kind.value, "on": sorted(self.strikes)}


@dataclass(slots=True, eq=False)
class ActiveFault:
    """A fault that was added; `fired` counts how often it struck."""

    id: int
    fault: Fault
    ends_at: float | None
    random: random.Random = field(repr=False)
    fired: int = 0
    ended: bool = False
    #: Ended by `remove` or `clear`, not by time: operations that a slow fault delays go on at once.
    removed: bool = False

    def is_spent(self, now: float) -> bool:
        """Whether it will not strike again."""
        if self.ended or (self.ends_at is not None and now >= self.ends_at):
            return True
        return self.fault.count is not None and self.fired >= self.fault.count

    def is_over(self, now: float) -> bool:
        """Whether it has no effect any more. A black hole holds what it swallowed even after its count."""
        if self.ended or (self.ends_at is not None and now >= self.ends_at):
            return True
        return self.fault.kind is not FaultKind.BLACKHOLE and self.is_spent(now)

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, **self.fault.to_json(), "fired": self.fired, "in_force": not self.ended}


class Strike(NamedTuple):
    """The faults that strike one operation: it waits `delay` seconds, then `struck_by` applies."""

    delay: float = 0.0
    slowed_by: ActiveFault | None = None
    struck_by: ActiveFault | None = None


NO_STRIKE = Strike()
_CONNECTION_KINDS = frozenset(FaultKind) - {FaultKind.DISABLE, FaultKind.FILL}


class Faults:
    """The faults of one namespace. `active` is false while there are none: a cheap check for the hot path."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._faults: dict[int, ActiveFault] = {}
        self._past: deque[ActiveFault] = deque(maxlen=MAX_FAULTS)
        self._ids = itertools.count(1)
        self.active = False
        #: Called with each fault that is added, and with None when faults ended.
        self.on_change: Callable[[ActiveFault | None], None] = lambda added: None

    def add(self, fault: Fault) -> ActiveFault:
        """Put a fault in force; raises `FaultError` if there are `MAX_FAULTS` already."""
        self.expire()
        if len(self._faults) >= MAX_FAULTS:
            raise FaultError(f"at most {MAX_FAULTS} faults can be in force at once")
        ends_at = None if fault.seconds is None else self._monotonic() + fault.seconds
        added = ActiveFault(next(self._ids), fault, ends_at, random.Random(fault.seed))
        self._faults[added.id] = added
        self.active = True
        self.on_change(added)
        return added

    def remove(self, fault_id: int) -> bool:
        """End a fault; false if it is not in force."""
        fault = self._faults.get(fault_id)
        if fault is None:
            return False
        self._end([fault], removed=True)
        return True

    def clear(self) -> None:
        """End all faults."""
        self._end(list(self._faults.values()), removed=True)

    def find(self, fault_id: int) -> ActiveFault | None:
        """A fault in force, or one that ended recently; None if it is unknown."""
        self.expire()
        past = (fault for fault in self._past if fault.id == fault_id)
        return self._faults.get(fault_id) or next(past, None)

    def __iter__(self) -> Iterator[ActiveFault]:
        """The faults in force."""
        self.expire()
        return iter(list(self._faults.values()))

    def expire(self) -> None:
        """End the faults that are over."""
        now = self._monotonic()
        self._end([fault for fault in self._faults.values() if fault.is_over(now)])

    def _end(self, ending: list[ActiveFault], removed: bool = False) -> None:
        for fault in ending:
            fault.ended, fault.removed = True, removed
            self._past.append(fault)
            del self._faults[fault.id]
        if ending:
            self.active = bool(self._faults)
            self.on_change(None)

    def next_end(self) -> float | None:
        """Monotonic time at which the next fault ends; None if none ends by time."""
        ends = [fault.ends_at for fault in self._faults.values() if fault.ends_at is not None]
        return min(ends) if ends else None

    def namespace_fault(self, kind: FaultKind) -> ActiveFault | None:
        """The fault of this kind that makes the namespace unreachable now; the call does not count as a firing."""
        now = self._monotonic()
        for active in self._faults.values():
            if active.fault.kind is kind and active.fault.stops_namespace and not active.is_over(now):
                return active
        return None

    def strike(self, operation: FaultPoint, entity: str | None, spared: frozenset[FaultKind] = frozenset()) -> Strike:
        """The faults that strike an operation now: all slow ones and one other. Each is counted as fired."""
        if not self.active:
            return NO_STRIKE
        now = self._monotonic()
        delay, slowed_by, struck_by = 0.0, None, None
        for active in list(self._faults.values()):
            fault = active.fault
            if (fault.kind is not FaultKind.SLOW and struck_by is not None) or fault.kind in spared:
                continue
            if operation not in fault.strikes or active.is_spent(now) or not fault.covers(entity):
                continue
            if fault.probability < 1 and active.random.random() >= fault.probability:
                continue
            active.fired += 1
            if fault.kind is FaultKind.SLOW:
                delay, slowed_by = delay + fault.delay, active
            else:
                struck_by = active
        return Strike(delay, slowed_by, struck_by)

    def forwarding_refused(self, destination: str) -> errors.BrokerError | None:
        """The error if a fault stops forwarding to an entity. Faults of connections do not apply."""
        active = self.strike(FaultPoint.SEND, destination, _CONNECTION_KINDS).struck_by
        return None if active is None else active.fault.error()
