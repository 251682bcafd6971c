"""Derives the state of each entity from the newest rows of a ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from twinbus.ledger.recorder import Operation, OperationKind, Outcome, Stage


class State(StrEnum):
    """Where the last send to an entity went."""

    PRIMARY = "primary"
    #: A send to the primary failed, and none was diverted since.
    SUSPECT = "suspect"
    BACKLOG = "backlog"
    #: The rows hold no send, only pings or moves.
    UNKNOWN = "unknown"


@dataclass(slots=True)
class EntityState:
    """State of one queue or topic by the newest rows. Times are microseconds since the epoch, 0 for never."""

    entity: str
    sent_at: int = 0
    failed_at: int = 0
    diverted_at: int = 0
    pinged_at: int = 0
    recovered_at: int = 0
    moved_at: int = 0
    diverted: int = 0
    moved: int = 0

    @property
    def state(self) -> State:
        latest = max(self.sent_at, self.failed_at, self.diverted_at, self.recovered_at)
        if not latest:
            return State.UNKNOWN
        if latest in (self.sent_at, self.recovered_at):
            return State.PRIMARY
        return State.BACKLOG if latest == self.diverted_at or self.diverted_at > self.sent_at else State.SUSPECT

    @property
    def is_quiet(self) -> bool:
        """Whether sends go to the primary, and none was diverted or moved."""
        return self.state is State.PRIMARY and not self.diverted and not self.moved


def states_of(rows: Iterable[Operation]) -> list[EntityState]:
    """Return the states of all entities in these rows, sorted by name. The rows may come in any order."""
    states: dict[str, EntityState] = {}
    for row in rows:
        if row.stage in (Stage.LEDGER, Stage.MANAGE, Stage.POLL):
            continue
        name = row.destination or row.entity
        _apply(states.setdefault(name.lower(), EntityState(name)), row)
    return sorted(states.values(), key=lambda state: state.entity)


def _apply(entity: EntityState, row: Operation) -> None:
    is_done = row.outcome is Outcome.DONE
    if row.stage is Stage.PING:
        entity.pinged_at = max(entity.pinged_at, row.ts)
        if is_done:
            entity.recovered_at = max(entity.recovered_at, row.ts)
    elif row.operation not in (OperationKind.SEND, OperationKind.SCHEDULE):
        return
    elif row.stage is Stage.DIRECT and is_done:
        entity.sent_at = max(entity.sent_at, row.ts)
    elif row.stage is Stage.DIRECT:
        entity.failed_at = max(entity.failed_at, row.ts)
    elif row.stage is Stage.BACKLOG_SEND and is_done:
        entity.diverted_at = max(entity.diverted_at, row.ts)
        entity.diverted += row.count
    elif row.stage is Stage.PRIMARY_SEND and is_done:
        entity.moved_at = max(entity.moved_at, row.ts)
        entity.moved += row.count
