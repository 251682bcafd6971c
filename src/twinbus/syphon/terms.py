"""What the pumps of a pairing have to know."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from twinbus.ledger.recorder import NullRecorder, Recorder
from twinbus.pairing.events import EventBus
from twinbus.pairing.ledger_health import LedgerHealth
from twinbus.pairing.options import Order, Probe, SyphonOptions, TimeToLive

from .clock import MAX_LOCK_MS
from .facts import Fact
from .ledger_gate import Flush

MAX_LOCK_SECONDS = MAX_LOCK_MS // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the pumps of a pairing work, and whom they tell.

    `flush` makes the recorder's rows durable: with it, a message is completed only when its move is. `lock_seconds` is
    the lock duration of the backlog queues, the longest if they differ, for whoever knows it: by it the time at the
    broker is told. Otherwise it is estimated from the messages (`BrokerClock`). `on_settled` is told of every message,
    on the event loop; it must not wait.

    `ledger_health` is told when pumps wait for the ledger, if somebody else wants to know, too.

    `probe`: how a destination that left a message without an answer is asked before messages are sent to it again: with
    a ping, or with "link" by a message itself.

    `is_extra`: another pump is on the same queue. What is set aside there, and whether anything is left, is its
    business; this one takes what comes and ends when for a while nothing does. `wall_clock` is the time of day here, in
    seconds since the epoch: it makes the pumps hurry, and tells how long locks last if `lock_seconds` does not.

    Raises `ValueError` for a lock duration that no queue can have.
    """

    options: SyphonOptions = field(default_factory=SyphonOptions)
    ttl: TimeToLive = "remaining"
    order: Order | None = None
    pairing: str = ""
    client: str = ""
    recorder: Recorder = field(default_factory=NullRecorder)
    events: EventBus = field(default_factory=EventBus)
    flush: Flush | None = None
    ledger_health: LedgerHealth | None = None
    lock_seconds: float | None = None
    on_settled: Callable[[Fact], None] | None = None
    is_extra: bool = False
    probe: Probe = "ping"
    wall_clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        if self.lock_seconds is not None and not 1 <= self.lock_seconds <= MAX_LOCK_SECONDS:
            raise ValueError(f"lock_seconds must be from 1 to {MAX_LOCK_SECONDS}, not {self.lock_seconds!r}")
