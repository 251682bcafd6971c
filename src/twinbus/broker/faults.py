"""Faults on purpose: what a namespace does wrong, where, how often and for how long.

A fault is added at run time, from Python or over HTTP, for a whole namespace or one entity. It fires at the
operations it names, for a number of times, for some seconds, or with a probability drawn from a seed, and each
time it fires is counted, so that a test can tell whether its fault really happened. What firing means for a link
is in `gates.py`, for connections in `outage.py`.
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

from . import errors


class Kind(StrEnum):
    """What goes wrong."""

    REFUSE = "refuse"  # connections are refused
    RESET = "reset"  # connections are cut with a TCP reset
    BLACKHOLE = "blackhole"  # nothing is done or answered until the fault ends; then it is, late
    SLOW = "slow"  # done `delay` seconds after it arrived
    DROP_ACK = "drop_ack"  # done and stored, but the answer never leaves
    REJECT = "reject"  # refused with `condition`
    THROTTLE = "throttle"  # refused with server-busy
    DETACH = "detach"  # the link is detached with `condition`
    CLOSE = "close"  # the connection is closed with `condition`
    EXPIRE = "expire"  # the tokens for the entity are no longer good
    DISABLE = "disable"  # the entity behaves as disabled
    FILL = "fill"  # the entity behaves as full


class Operation(StrEnum):
    """Where a fault can strike."""

    CONNECT = "connect"
    TOKEN = "token"  # put-token at $cbs
    ATTACH = "attach"
    SEND = "send"
    RECEIVE = "receive"
    SETTLE = "settle"
    MANAGEMENT = "management"


_CONNECT = frozenset({Operation.CONNECT})
_EVERYWHERE = frozenset(Operation)
_ON_LINKS = frozenset({Operation.ATTACH, Operation.SEND, Operation.RECEIVE, Operation.SETTLE, Operation.MANAGEMENT})
_REFUSABLE = frozenset({Operation.TOKEN, Operation.ATTACH, Operation.SEND, Operation.SETTLE, Operation.MANAGEMENT})
#: The operations that each kind of fault can strike.
CAN_STRIKE: dict[Kind, frozenset[Operation]] = {
    Kind.REFUSE: frozenset({Operation.CONNECT, Operation.ATTACH}),
    Kind.RESET: _EVERYWHERE,
    Kind.BLACKHOLE: _EVERYWHERE,
    Kind.SLOW: _EVERYWHERE,
    Kind.DROP_ACK: frozenset({Operation.SEND, Operation.SETTLE, Operation.MANAGEMENT}),
    Kind.REJECT: _REFUSABLE,
    Kind.THROTTLE: _REFUSABLE,
    Kind.DETACH: _ON_LINKS - {Operation.MANAGEMENT},
    Kind.CLOSE: _ON_LINKS,
    Kind.EXPIRE: _ON_LINKS | {Operation.TOKEN},
    Kind.DISABLE: _ON_LINKS - {Operation.SETTLE},
    Kind.FILL: frozenset({Operation.SEND, Operation.MANAGEMENT}),
}
# What a fault strikes if nobody says where: attaching is spared where a link that exists is the interesting one.
_DEFAULT_WHERE: dict[Kind, frozenset[Operation]] = {
    Kind.REJECT: frozenset({Operation.SEND, Operation.MANAGEMENT}),
    Kind.THROTTLE: frozenset({Operation.SEND, Operation.MANAGEMENT}),
    Kind.DETACH: frozenset({Operation.SEND, Operation.RECEIVE}),
    Kind.DROP_ACK: frozenset({Operation.SEND}),
    Kind.EXPIRE: _ON_LINKS,
}
# A reset after the answer needs something that is done and answered.
_ANSWERED = frozenset({Operation.SEND, Operation.SETTLE, Operation.MANAGEMENT})
_CONDITIONS = {
    Kind.THROTTLE: errors.SERVER_BUSY,
    Kind.DETACH: errors.DETACH_FORCED,
    Kind.CLOSE: errors.CONNECTION_FORCED,
    Kind.EXPIRE: errors.UNAUTHORIZED,
    Kind.DISABLE: errors.ENTITY_DISABLED,
    Kind.FILL: errors.QUOTA_EXCEEDED,
    Kind.REJECT: errors.INTERNAL_ERROR,
}
_DESCRIPTIONS = {
    Kind.THROTTLE: "The request was terminated because the entity is being throttled. Error code : 50009."
    " Please wait 2 seconds and try again.",
    Kind.DETACH: "The link is force detached.",
    Kind.CLOSE: "The connection is closed by the service.",
    Kind.EXPIRE: "ExpiredToken: The token is expired.",
    Kind.DISABLE: "Messaging entity is currently disabled.",
    Kind.FILL: "The maximum entity size has been reached or exceeded.",
    Kind.REJECT: "The service was unable to process the request; please retry the operation.",
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
# How a refusal says what a field may be.
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
    """A fault that cannot be: the message names the field and what it may be."""


def _operations(given: Any) -> frozenset[Operation]:
    """The operations that were given, or named. Raises `FaultError`."""
    try:
        return frozenset(map(Operation, [given] if isinstance(given, str) else given))
    except (ValueError, TypeError):
        raise FaultError(f"on must be some of {', '.join(Operation)}") from None


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    `entity` None means the whole namespace; an entity's dead-letter queue and subscriptions belong to it. `on` are
    the operations it strikes. Left empty they are those that suit its kind, and the fault also hits what is
    already there: connections are cut or frozen, links detached. `count`, `seconds` and `probability` bound it
    (with a count or a probability it strikes operations to come, one by one); without any of them it lasts
    until it is removed. `kind` and `on` may be given by name, `on` as any iterable.

    Raises:
        FaultError: a field has the wrong type or is out of its bounds; the message names it.
    """

    kind: Kind
    entity: str | None = None
    on: frozenset[Operation] = frozenset()
    count: int | None = None
    seconds: float | None = None
    probability: float = 1.0
    seed: int = 0
    #: For a slow fault: how much longer an operation takes.
    delay: float = 0.0
    condition: str | None = None
    description: str | None = None
    #: After a dropped acknowledgement: keep silent, or cut the connection.
    then_reset: bool = False
    #: For a reset: do and answer the operation first, then cut the connection.
    after_answer: bool = False

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "kind", Kind(self.kind))
        except ValueError:
            raise FaultError(f"kind must be one of {', '.join(Kind)}") from None
        object.__setattr__(self, "on", _operations(self.on))
        self._check_types()
        if self.entity is not None and not self.entity.strip("/"):
            raise FaultError(f"entity must be {_MUST_BE['entity']}")
        if self.count is not None and self.count < 1:
            raise FaultError(f"count must be {_MUST_BE['count']}")
        if self.seconds is not None and not 0 < self.seconds <= MAX_SECONDS:
            raise FaultError(f"seconds must be {_MUST_BE['seconds']}")
        if not 0 < self.probability <= 1:
            raise FaultError(f"probability must be {_MUST_BE['probability']}")
        if self.kind is Kind.SLOW and not 0 < self.delay <= MAX_DELAY:
            raise FaultError(f"delay must be above 0 and at most {MAX_DELAY:g} seconds for a slow fault")
        if not 0 <= self.delay <= MAX_DELAY:
            raise FaultError(f"delay must be {_MUST_BE['delay']}")
        if self.then_reset and self.kind is not Kind.DROP_ACK:
            raise FaultError("then_reset is for drop_ack only")
        if self.after_answer and (self.kind is not Kind.RESET or not self.on or self.on - _ANSWERED):
            raise FaultError("after_answer is for a reset on send, settle or management")
        self._check_operations()

    def _check_types(self) -> None:
        for name, kinds in _TYPES.items():
            value = getattr(self, name)
            left_out = value is None and name in _OPTIONAL
            # True and false are numbers in Python, but not here.
            if not left_out and (not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool)):
                raise FaultError(f"{name} must be {_MUST_BE[name]}, not {type(value).__name__}")

    def _check_operations(self) -> None:
        allowed = CAN_STRIKE[self.kind] if self.entity is None else CAN_STRIKE[self.kind] - _CONNECT
        if wrong := self.on - allowed:
            where = "a whole namespace" if self.entity is None else "an entity"
            given, known = ", ".join(sorted(wrong)), ", ".join(sorted(allowed))
            raise FaultError(f"on cannot be {given} for {self.kind} of {where}; it can be {known}")

    @property
    def strikes(self) -> frozenset[Operation]:
        """The operations it strikes."""
        if self.on:
            return self.on
        if self.entity is not None:
            return _DEFAULT_WHERE.get(self.kind, CAN_STRIKE[self.kind]) - _CONNECT
        return _CONNECT if self.kind is Kind.REFUSE else _DEFAULT_WHERE.get(self.kind, CAN_STRIKE[self.kind])

    @property
    def is_steady(self) -> bool:
        """Whether it strikes every time until it ends."""
        return self.count is None and self.probability == 1

    @property
    def holds_namespace(self) -> bool:
        """Whether the whole namespace is out of reach while it is in force."""
        if self.entity is not None or not self.is_steady:
            return False
        return not self.on or (self.kind is Kind.REFUSE and Operation.CONNECT in self.on)

    @property
    def refuses(self) -> bool:
        """Whether the operation is answered with `error` and not done."""
        return self.kind not in (Kind.DROP_ACK, Kind.RESET)

    @property
    def hides_answer(self) -> bool:
        """Whether the operation is done, and the client never hears of it."""
        return self.kind is Kind.DROP_ACK

    @property
    def cuts_after(self) -> bool:
        """Whether the connection is to be cut when the operation is done."""
        return self.then_reset or self.after_answer

    def covers(self, path: str | None) -> bool:
        """Whether the fault concerns this entity, or something below it."""
        if self.entity is None:
            return True
        entity = self.entity.strip("/").lower()
        return path is not None and (path.lower() == entity or path.lower().startswith(entity + "/"))

    def error(self) -> errors.BrokerError:
        """What the client is told."""
        condition = self.condition or _CONDITIONS.get(self.kind, errors.INTERNAL_ERROR)
        return errors.BrokerError(condition, self.description or _DESCRIPTIONS.get(self.kind, "A fault."))

    @classmethod
    def from_json(cls, values: Any) -> Fault:
        """Read a fault from plain JSON types; raises `FaultError` naming the field."""
        if not isinstance(values, dict):
            raise FaultError("a fault is a JSON object")
        names = [one.name for one in fields(cls)]
        if unknown := sorted(set(values) - set(names)):
            raise FaultError(f"{unknown[0]} is not a field of a fault: {', '.join(names)}")
        # A field that is null is a field left out.
        known = {name: value for name, value in values.items() if value is not None}
        known.setdefault("kind", "")
        return cls(**known)

    def to_json(self) -> dict[str, Any]:
        """The same in plain JSON types, with the operations that it strikes."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**values, "kind": self.kind.value, "on": sorted(self.strikes)}


@dataclass(slots=True, eq=False)
class ActiveFault:
    """A fault in force, or one that was, and how often it fired."""

    id: int
    fault: Fault
    ends_at: float | None
    random: random.Random = field(repr=False)
    fired: int = 0
    ended: bool = False
    #: Ended by hand, not by time: what a slow fault still holds back is let go.
    removed: bool = False

    def is_spent(self, now: float) -> bool:
        """Whether it strikes no more."""
        if self.ended or (self.ends_at is not None and now >= self.ends_at):
            return True
        return self.fault.count is not None and self.fired >= self.fault.count

    def is_over(self, now: float) -> bool:
        """Whether it has no more effect. A black hole keeps what it swallowed also after its count."""
        if self.ended or (self.ends_at is not None and now >= self.ends_at):
            return True
        return self.fault.kind is not Kind.BLACKHOLE and self.is_spent(now)

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, **self.fault.to_json(), "fired": self.fired, "in_force": not self.ended}


class Strike(NamedTuple):
    """What happens to one operation: it waits for `delay` seconds, then the fault."""

    delay: float = 0.0
    slowed_by: ActiveFault | None = None
    by: ActiveFault | None = None


MISSED = Strike()
_OF_CONNECTIONS = frozenset(Kind) - {Kind.DISABLE, Kind.FILL}


class Faults:
    """The faults of one namespace. `active` is false while there are none, so that asking costs nothing."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._faults: dict[int, ActiveFault] = {}
        self._past: deque[ActiveFault] = deque(maxlen=MAX_FAULTS)
        self._ids = itertools.count(1)
        self.active = False
        #: Told of every change, so that connections can be cut, frozen or thawed.
        self.on_change: Callable[[ActiveFault | None], None] = lambda added: None

    def add(self, fault: Fault) -> ActiveFault:
        """Put a fault in force; raises `FaultError` if there are too many."""
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
        found = self._faults.get(fault_id)
        if found is None:
            return False
        self._end([found], removed=True)
        return True

    def clear(self) -> None:
        """End all faults."""
        self._end(list(self._faults.values()), removed=True)

    def find(self, fault_id: int) -> ActiveFault | None:
        """A fault in force, or one of those that ended last."""
        self.expire()
        past = (one for one in self._past if one.id == fault_id)
        return self._faults.get(fault_id) or next(past, None)

    def __iter__(self) -> Iterator[ActiveFault]:
        """The faults in force."""
        self.expire()
        return iter(list(self._faults.values()))

    def expire(self) -> None:
        """Drop the faults that are over."""
        now = self._monotonic()
        self._end([one for one in self._faults.values() if one.is_over(now)])

    def _end(self, ending: list[ActiveFault], removed: bool = False) -> None:
        for one in ending:
            one.ended, one.removed = True, removed
            self._past.append(one)
            del self._faults[one.id]
        if ending:
            self.active = bool(self._faults)
            self.on_change(None)

    def next_end(self) -> float | None:
        """When (monotonic) the next fault ends by time."""
        ends = [one.ends_at for one in self._faults.values() if one.ends_at is not None]
        return min(ends) if ends else None

    def standing(self, kind: Kind) -> ActiveFault | None:
        """The fault of this kind that holds the whole namespace right now; it is not counted as fired."""
        now = self._monotonic()
        for one in self._faults.values():
            if one.fault.kind is kind and one.fault.holds_namespace and not one.is_over(now):
                return one
        return None

    def strike(self, operation: Operation, entity: str | None, spared: frozenset[Kind] = frozenset()) -> Strike:
        """What strikes this operation now, each fault counted as fired: any number of slow ones and one other."""
        if not self.active:
            return MISSED
        now = self._monotonic()
        delay, slowed_by, by = 0.0, None, None
        for one in list(self._faults.values()):
            fault = one.fault
            if (fault.kind is not Kind.SLOW and by is not None) or fault.kind in spared:
                continue
            if operation not in fault.strikes or one.is_spent(now) or not fault.covers(entity):
                continue
            if fault.probability < 1 and one.random.random() >= fault.probability:
                continue
            one.fired += 1
            if fault.kind is Kind.SLOW:
                delay, slowed_by = delay + fault.delay, one
            else:
                by = one
        return Strike(delay, slowed_by, by)

    def forwarding_refused(self, destination: str) -> errors.BrokerError | None:
        """Why an entity takes nothing that is forwarded to it: only what it *is* counts, for there is no connection."""
        by = self.strike(Operation.SEND, destination, _OF_CONNECTIONS).by
        return None if by is None else by.fault.error()
