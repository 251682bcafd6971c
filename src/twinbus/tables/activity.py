"""Define the kinds of events from which outages are found, and the operations of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, unique
from typing import NamedTuple

from twinbus.ledger.recorder import EXPIRED_IN_BACKLOG, OperationKind, Outcome, Stage


@unique
class ActivityKind(StrEnum):
    """The column `kind` of the table `activity`."""

    #: A send to the primary that failed or got no answer.
    FAILED_SEND = "failed_send"
    #: A message that was stored in a backlog queue; one that was not, or may not have been.
    DIVERTED = "diverted"
    FAILED_DIVERT = "failed_divert"
    #: A ping that got through; one that did not.
    PING = "ping"
    FAILED_PING = "failed_ping"
    #: A send of the syphon to the primary that was accepted; one that was not, or may not have been.
    MOVED = "moved"
    FAILED_MOVE = "failed_move"
    #: A message completed in the backlog after its move.
    COMPLETED = "completed"
    #: A message that was dead-lettered in the backlog because it expired; because it could not be moved.
    EXPIRED = "expired"
    POISON = "poison"
    #: A message that was deferred in the backlog because its destination was down.
    DEFERRED = "deferred"
    #: A lock renewal.
    RENEWED = "renewed"


class ActivityRule(NamedTuple):
    """The operations that are events of one kind."""

    stage: Stage
    operations: tuple[OperationKind, ...]
    outcomes: tuple[Outcome, ...]
    #: The error that the operation must have, or None for any.
    error: str | None = None


_NOT_DONE = (Outcome.FAILED, Outcome.UNKNOWN)

#: The first rule that matches decides.
ACTIVITY_RULES: Mapping[ActivityKind, ActivityRule] = {
    ActivityKind.FAILED_SEND: ActivityRule(Stage.DIRECT, (OperationKind.SEND, OperationKind.SCHEDULE), _NOT_DONE),
    ActivityKind.DIVERTED: ActivityRule(Stage.BACKLOG_SEND, (OperationKind.SEND,), (Outcome.DONE,)),
    ActivityKind.FAILED_DIVERT: ActivityRule(Stage.BACKLOG_SEND, (OperationKind.SEND,), _NOT_DONE),
    ActivityKind.PING: ActivityRule(Stage.PING, (OperationKind.PING,), (Outcome.DONE,)),
    ActivityKind.FAILED_PING: ActivityRule(Stage.PING, (OperationKind.PING,), _NOT_DONE),
    ActivityKind.MOVED: ActivityRule(Stage.PRIMARY_SEND, (OperationKind.SEND,), (Outcome.DONE,)),
    ActivityKind.FAILED_MOVE: ActivityRule(Stage.PRIMARY_SEND, (OperationKind.SEND,), _NOT_DONE),
    ActivityKind.COMPLETED: ActivityRule(Stage.BACKLOG_RECEIVE, (OperationKind.COMPLETE,), (Outcome.DONE,)),
    ActivityKind.EXPIRED: ActivityRule(
        Stage.BACKLOG_RECEIVE, (OperationKind.DEAD_LETTER,), (Outcome.DONE,), EXPIRED_IN_BACKLOG
    ),
    ActivityKind.POISON: ActivityRule(Stage.BACKLOG_RECEIVE, (OperationKind.DEAD_LETTER,), (Outcome.DONE,)),
    ActivityKind.DEFERRED: ActivityRule(Stage.BACKLOG_RECEIVE, (OperationKind.DEFER,), (Outcome.DONE,)),
    ActivityKind.RENEWED: ActivityRule(Stage.BACKLOG_RECEIVE, (OperationKind.RENEW,), (Outcome.DONE,)),
}
