"""What the pumps of a pairing have to know."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinbus.ledger.recorder import NullRecorder, Recorder
from twinbus.pairing.events import EventBus
from twinbus.pairing.options import Order, SyphonOptions, TimeToLive

from .ledger_gate import Flush
from .restorer import LOCK_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the pumps of a pairing work, and whom they tell.

    `flush` makes the recorder's rows durable: with it, a message is completed only when its move is. `lock_seconds` is
    the lock duration of the backlog queues.
    """

    options: SyphonOptions = field(default_factory=SyphonOptions)
    ttl: TimeToLive = "remaining"
    order: Order | None = None
    pairing: str = ""
    client: str = ""
    recorder: Recorder = field(default_factory=NullRecorder)
    events: EventBus = field(default_factory=EventBus)
    flush: Flush | None = None
    lock_seconds: float = LOCK_SECONDS
