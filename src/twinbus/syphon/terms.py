"""Settings shared by the pumps of a pairing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from twinbus.ledger.recorder import NullRecorder, Recorder
from twinbus.pairing.events import EventBus
from twinbus.pairing.ledger_health import LedgerHealth
from twinbus.pairing.options import Order, Probe, SyphonOptions, TimeToLive

from .receiving.broker_clock import MAX_LOCK_MS
from .settlement.facts import Fact
from .settlement.ledger_gate import Flush

MAX_LOCK_SECONDS = MAX_LOCK_MS // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the pumps of a pairing work, and whom they notify.

    `flush` makes the recorder's rows durable: with it, a message is completed only when its move is durable.
    `lock_seconds` is the lock duration of the backlog queues, the longest if they differ. It sets the estimate of the
    broker's time; None estimates the duration from the messages (`BrokerClock`). `on_settled` gets the `Fact` of every
    message, on the event loop; it must not block. `ledger_health` is notified when pumps wait for the ledger.

    `probe` is how a silent destination is probed before messages are sent to it again: by a ping, or with "link" by a
    message.

    `is_extra` says that another pump works on the same queue. Deferred messages, and proving the queue empty, are its
    business; the extra one takes what arrives and ends when nothing has arrived for a while. `wall_clock` is the local
    time of day in seconds since the epoch. It can only shorten the time for a move, and estimates the lock duration
    if `lock_seconds` is None.

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
            raise ValueError(f"lock_seconds must be from 1 to {MAX_LOCK_SECONDS}, got {self.lock_seconds!r}")
