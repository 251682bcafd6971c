"""The status of a pairing, for people, monitoring and `twinbus status`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from twinbus.ledger.recorder import NamespaceRole
from twinbus.pairing.backlog.readiness import BacklogReadiness
from twinbus.pairing.failover.entity_failover import FailedOver, Suspect
from twinbus.pairing.foreign_calls import CALLBACK, DROPPED, POLICY, RECORDER
from twinbus.pairing.namespace import Namespace
from twinbus.pairing.pairing_state import Entity, Pairing
from twinbus.syphon.drain_report import SyphonStatus

from .partnership import Condition, Partnership
from .runtime import Runtime

ROLES = RECORDER, CALLBACK, POLICY, DROPPED


class EntityState(Enum):
    """Where the messages for an entity go, and how certain that is."""

    HEALTHY = "healthy"
    #: After an outage: one failure is enough for the next failover.
    PROBATION = "probation"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"


@dataclass(frozen=True, slots=True)
class EntityStatus:
    """A queue or topic. `seconds` is how long it has been suspect or failed over, `error` is why."""

    path: str
    state: EntityState
    is_forced: bool
    seconds: float | None
    error: str | None


@dataclass(frozen=True, slots=True)
class BacklogQueueStatus:
    """A backlog queue; `error` is why it is out of rotation."""

    path: str
    is_in_rotation: bool
    error: str | None


@dataclass(frozen=True, slots=True)
class ApplicationErrors:
    """How often functions of the application failed: they raised, or took too long. No send failed because of it.

    `dropped` counts events and operations that were not delivered to a callback or recorder because it was too slow.
    """

    recorder: int
    callback: int
    policy: int
    dropped: int


@dataclass(frozen=True, slots=True)
class PairingStatus:
    """The status of a paired client.

    The backlog is ready if its queues were checked, or need no check, and one is in rotation. `backlog_error` is why it
    is not, `backlog_message` the same in a sentence that says what to do. `diverted_sessions` counts the sessions that
    must go through the backlog. `syphon` is None unless one is hosted. `ledger_error` is why the ledger takes no rows.
    Errors are class names.
    """

    name: str
    client: str
    primary: str
    secondary: str
    condition: Condition
    primary_condition: Condition
    secondary_condition: Condition
    fault: str | None
    entities: tuple[EntityStatus, ...]
    backlog: tuple[BacklogQueueStatus, ...]
    backlog_is_ready: bool
    backlog_error: str | None
    backlog_message: str | None
    diverted_sessions: int
    syphon: SyphonStatus | None
    ledger_error: str | None
    application_errors: ApplicationErrors

    def to_json(self) -> dict[str, Any]:
        """Return the status in plain JSON types."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def status_of(
    pairing: Pairing,
    primary: Namespace,
    secondary: Namespace,
    partnership: Partnership,
    runtime: Runtime,
    is_closed: bool,
) -> PairingStatus:
    """Return the status as of now."""
    condition = Condition.FAULTED if pairing.fault else Condition.CLOSED if is_closed else Condition.OPEN
    is_ready, backlog_error, backlog_message = _readiness(pairing, runtime.background.readiness)
    return PairingStatus(
        name=pairing.name,
        client=pairing.client,
        primary=primary.fully_qualified_namespace,
        secondary=secondary.fully_qualified_namespace,
        condition=condition,
        primary_condition=partnership.condition(NamespaceRole.PRIMARY),
        secondary_condition=partnership.condition(NamespaceRole.SECONDARY),
        fault=pairing.fault.reason if pairing.fault else None,
        entities=tuple(_entity(pairing, entity) for entity in pairing.entities()),
        backlog=_backlog(pairing),
        backlog_is_ready=is_ready,
        backlog_error=_in_short(backlog_error),
        backlog_message=backlog_message,
        diverted_sessions=pairing.diverted_sessions.count if pairing.diverted_sessions else 0,
        syphon=runtime.syphon.status() if runtime.syphon else None,
        ledger_error=pairing.ledger_health.error,
        application_errors=ApplicationErrors(*(pairing.foreign.failures[role] for role in ROLES)),
    )


def _entity(pairing: Pairing, entity: Entity) -> EntityStatus:
    state, now = pairing.state_of(entity), pairing.clock()
    error = _in_short(entity.last_error)
    if isinstance(state, FailedOver):
        return EntityStatus(entity.path, EntityState.FAILED_OVER, state.is_forced, now - state.since, error)
    if isinstance(state, Suspect):
        return EntityStatus(entity.path, EntityState.SUSPECT, False, now - state.since, error)
    entity_state = EntityState.PROBATION if state.probation_until is not None else EntityState.HEALTHY
    return EntityStatus(entity.path, entity_state, False, None, None)


def _readiness(pairing: Pairing, readiness: BacklogReadiness) -> tuple[bool, BaseException | None, str | None]:
    """Return whether a message could be diverted now, as far as known; if not, the error and a sentence."""
    if not readiness.is_ready:
        return False, readiness.error, readiness.message
    errors = list(pairing.retired_queues().values())
    if len(errors) < pairing.options.backlog_queue_count:
        return True, None, None
    sentence = (
        f"all {len(errors)} backlog queues are out of the rotation, the last one because of {_in_short(errors[-1])}"
    )
    return False, errors[-1], sentence


def _backlog(pairing: Pairing) -> tuple[BacklogQueueStatus, ...]:
    if not pairing.primary_name:
        return ()
    retired = pairing.retired_queues()
    paths = (pairing.queue_path(index) for index in range(pairing.options.backlog_queue_count))
    return tuple(BacklogQueueStatus(path, path not in retired, _in_short(retired.get(path))) for path in paths)


def _in_short(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
