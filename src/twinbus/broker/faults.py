"""Faults on purpose: what a namespace does wrong, where, how often and for how long.

A fault is added at run time, from Python or over HTTP, for a whole namespace or one entity. It fires at the
operations it names, for a number of times, for some seconds, or with a probability drawn from a seed, and each
time it fires is counted, so that a test can tell whether its fault really happened.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from . import errors


class Kind(StrEnum):
    """What goes wrong."""

    REFUSE = "refuse"  # connections are refused
    RESET = "reset"  # connections are cut with a TCP reset
    BLACKHOLE = "blackhole"  # bytes are accepted, and nothing ever answers
    SLOW = "slow"  # everything takes `delay` seconds longer
    DROP_ACK = "drop_ack"  # done and stored, but the answer never leaves
    REJECT = "reject"  # refused with `condition`
    THROTTLE = "throttle"  # refused with server-busy
    DETACH = "detach"  # the link is detached with `condition`
    DISABLE = "disable"  # the entity behaves as disabled
    FILL = "fill"  # the entity behaves as full


class Operation(StrEnum):
    """Where a fault can strike."""

    CONNECT = "connect"
    ATTACH = "attach"
    SEND = "send"
    RECEIVE = "receive"
    SETTLE = "settle"
    MANAGEMENT = "management"


_EVERYWHERE = frozenset(Operation)
_WHERE: dict[Kind, frozenset[Operation]] = {
    Kind.REFUSE: frozenset({Operation.CONNECT, Operation.ATTACH}),
    Kind.RESET: _EVERYWHERE,
    Kind.BLACKHOLE: _EVERYWHERE,
    Kind.SLOW: _EVERYWHERE - {Operation.CONNECT},
    Kind.DROP_ACK: frozenset({Operation.SEND, Operation.SETTLE, Operation.MANAGEMENT}),
    Kind.REJECT: _EVERYWHERE - {Operation.CONNECT, Operation.RECEIVE},
    Kind.THROTTLE: _EVERYWHERE - {Operation.CONNECT, Operation.RECEIVE},
    Kind.DETACH: frozenset({Operation.ATTACH, Operation.SEND, Operation.RECEIVE, Operation.SETTLE}),
    Kind.DISABLE: frozenset({Operation.ATTACH, Operation.SEND, Operation.RECEIVE, Operation.MANAGEMENT}),
    Kind.FILL: frozenset({Operation.SEND, Operation.MANAGEMENT}),
}
# What a fault strikes if nobody says where: attaching is spared where a link that exists is the interesting one.
_DEFAULT_WHERE: dict[Kind, frozenset[Operation]] = {
    Kind.REJECT: frozenset({Operation.SEND, Operation.MANAGEMENT}),
    Kind.THROTTLE: frozenset({Operation.SEND, Operation.MANAGEMENT}),
    Kind.DETACH: frozenset({Operation.SEND, Operation.RECEIVE}),
    Kind.DROP_ACK: frozenset({Operation.SEND}),
}
_CONDITIONS = {
    Kind.THROTTLE: errors.SERVER_BUSY,
    Kind.DETACH: errors.DETACH_FORCED,
    Kind.DISABLE: errors.ENTITY_DISABLED,
    Kind.FILL: errors.QUOTA_EXCEEDED,
    Kind.REJECT: errors.INTERNAL_ERROR,
}
_DESCRIPTIONS = {
    Kind.THROTTLE: "The request was terminated because the entity is being throttled. Error code : 50009."
    " Please wait 2 seconds and try again.",
    Kind.DETACH: "The link is force detached.",
    Kind.DISABLE: "Messaging entity is currently disabled.",
    Kind.FILL: "The maximum entity size has been reached or exceeded.",
    Kind.REJECT: "The service was unable to process the request; please retry the operation.",
}

MAX_FAULTS = 1000
MAX_DELAY = 3600.0


class FaultError(ValueError):
    """A fault that cannot be: the message names the field and what it may be."""


class Swallowed(Exception):  # noqa: N818 - not an error: the operation was made to vanish
    """A fault has ended the operation; nothing more is to be done or answered."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    `entity` None means the whole namespace. `on` are the operations it strikes; empty means those that suit its
    kind. `count`, `seconds` and `probability` bound it; without any of them it lasts until it is removed.
    """

    kind: Kind
    entity: str | None = None
    on: frozenset[Operation] = frozenset()
    count: int | None = None
    seconds: float | None = None
    probability: float = 1.0
    seed: int = 0
    delay: float = 0.0
    condition: str | None = None
    description: str | None = None
    #: After a dropped acknowledgement: keep silent, or cut the connection.
    then_reset: bool = False

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise FaultError("count must be 1 or more")
        if self.seconds is not None and not 0 < self.seconds <= 86_400:
            raise FaultError("seconds must be above 0 and at most 86400")
        if not 0 < self.probability <= 1:
            raise FaultError("probability must be above 0 and at most 1")
        if self.kind is Kind.SLOW and not 0 < self.delay <= MAX_DELAY:
            raise FaultError(f"delay must be above 0 and at most {MAX_DELAY:g} seconds for a slow fault")
        if wrong := self.on - _WHERE[self.kind]:
            allowed = ", ".join(sorted(_WHERE[self.kind]))
            raise FaultError(f"on cannot be {', '.join(sorted(wrong))} for {self.kind}: it strikes {allowed}")
        if not self.on:
            object.__setattr__(self, "on", _DEFAULT_WHERE.get(self.kind, _WHERE[self.kind]))

    def covers(self, path: str | None) -> bool:
        """Whether the fault concerns this entity, or something below it."""
        if self.entity is None:
            return True
        entity = self.entity.lower()
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
        known = {f: values[f] for f in cls.__dataclass_fields__ if f in values}
        if unknown := sorted(set(values) - set(known)):
            raise FaultError(f"{unknown[0]} is not a field of a fault: {', '.join(cls.__dataclass_fields__)}")
        try:
            known["kind"] = Kind(known.get("kind", ""))
        except ValueError:
            raise FaultError(f"kind must be one of {', '.join(Kind)}") from None
        try:
            operations = known.get("on", ())
            known["on"] = frozenset(
                Operation(one) for one in ([operations] if isinstance(operations, str) else operations)
            )
        except (ValueError, TypeError):
            raise FaultError(f"on must be a list of {', '.join(Operation)}") from None
        for name, kinds in _JSON_TYPES.items():
            if known.get(name) is not None and (
                not isinstance(known[name], kinds) or isinstance(known[name], bool) != (kinds is bool)
            ):
                raise FaultError(f"{name} has the wrong type")
        return cls(**known)


_JSON_TYPES: dict[str, Any] = {
    "entity": str,
    "count": int,
    "seconds": (int, float),
    "probability": (int, float),
    "seed": int,
    "delay": (int, float),
    "condition": str,
    "description": str,
    "then_reset": bool,
}


@dataclass(slots=True)
class ActiveFault:
    """A fault in force, and how often it fired."""

    id: int
    fault: Fault
    ends_at: float | None
    random: random.Random = field(repr=False)
    fired: int = 0

    def is_over(self, now: float) -> bool:
        if self.ends_at is not None and now >= self.ends_at:
            return True
        return self.fault.count is not None and self.fired >= self.fault.count

    def to_json(self) -> dict[str, Any]:
        fault = self.fault
        return {
            "id": self.id,
            "kind": fault.kind.value,
            "entity": fault.entity,
            "on": sorted(fault.on),
            "count": fault.count,
            "seconds": fault.seconds,
            "probability": fault.probability,
            "fired": self.fired,
        }


class Faults:
    """The faults of one namespace. `active` is false while there are none, so that asking costs nothing."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._faults: dict[int, ActiveFault] = {}
        self._ids = itertools.count(1)
        self.active = False
        #: Told of every change, so that connections can be cut, frozen or thawed.
        self.on_change: Callable[[ActiveFault | None], None] = lambda added: None

    def add(self, fault: Fault) -> ActiveFault:
        """Put a fault in force."""
        self._expire()
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
        found = self._faults.pop(fault_id, None)
        self._changed()
        return found is not None

    def clear(self) -> None:
        """End all faults."""
        self._faults.clear()
        self._changed()

    def __iter__(self) -> Iterator[ActiveFault]:
        self._expire()
        return iter(list(self._faults.values()))

    def _expire(self) -> None:
        now = self._monotonic()
        over = [one.id for one in self._faults.values() if one.is_over(now)]
        for fault_id in over:
            del self._faults[fault_id]
        if over:
            self._changed()

    def _changed(self) -> None:
        self.active = bool(self._faults)
        self.on_change(None)

    def next_end(self) -> float | None:
        """When (monotonic) the next fault ends by time."""
        ends = [one.ends_at for one in self._faults.values() if one.ends_at is not None]
        return min(ends) if ends else None

    def expire(self) -> None:
        """Drop the faults whose time is over."""
        self._expire()

    def standing(self, kind: Kind) -> bool:
        """Whether a fault of this kind holds the whole namespace right now, without counting it as fired."""
        now = self._monotonic()
        return any(
            one.fault.kind is kind
            and one.fault.entity is None
            and Operation.CONNECT in one.fault.on
            and not one.is_over(now)
            for one in self._faults.values()
        )

    def note(self, kind: Kind) -> None:
        """Count a fault that took effect without being asked for."""
        for one in self._faults.values():
            if one.fault.kind is kind:
                one.fired += 1

    def strike(self, operation: Operation, entity: str | None) -> Fault | None:
        """The fault that strikes this operation now, counted as fired."""
        if not self.active:
            return None
        now = self._monotonic()
        for one in list(self._faults.values()):
            fault = one.fault
            if operation not in fault.on or one.is_over(now):
                continue
            if not fault.covers(entity):
                continue
            if fault.probability < 1 and one.random.random() >= fault.probability:
                continue
            one.fired += 1
            if one.is_over(now):
                self._expire()
            return fault
        return None
