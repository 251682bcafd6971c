"""The state of an entity, told from the last rows of a ledger."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.admin_tools.entity_states import State, states_of
from twinbus.ledger import NamespaceRole, Operation, OperationKind, Outcome, Stage

SENT = (OperationKind.SEND, Stage.DIRECT, Outcome.DONE)
FAILED = (OperationKind.SEND, Stage.DIRECT, Outcome.FAILED)
UNKNOWN = (OperationKind.SEND, Stage.DIRECT, Outcome.UNKNOWN)
DIVERTED = (OperationKind.SEND, Stage.BACKLOG_SEND, Outcome.DONE)
PING_OK = (OperationKind.PING, Stage.PING, Outcome.DONE)
PING_FAILED = (OperationKind.PING, Stage.PING, Outcome.FAILED)
MOVED = (OperationKind.SEND, Stage.PRIMARY_SEND, Outcome.DONE)
COMPLETED = (OperationKind.COMPLETE, Stage.BACKLOG_RECEIVE, Outcome.DONE)
POLLED = (OperationKind.POLL, Stage.POLL, Outcome.EMPTY)
DROPPED = (OperationKind.DROPPED, Stage.LEDGER, Outcome.DONE)

Kind = tuple[OperationKind, Stage, Outcome]


def row(kind: Kind, ts: int, entity: str = "orders", count: int = 1) -> Operation:
    operation, stage, outcome = kind
    return Operation(
        pairing="contoso",
        client="test",
        namespace=NamespaceRole.PRIMARY,
        entity="backlog" if stage in (Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE) else entity,
        destination=entity if stage in (Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE, Stage.PRIMARY_SEND) else None,
        operation=operation,
        stage=stage,
        outcome=outcome,
        ts=ts,
        count=count,
    )


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ([SENT], State.PRIMARY),
        ([SENT, FAILED], State.SUSPECT),
        ([SENT, UNKNOWN], State.SUSPECT),
        ([SENT, FAILED, DIVERTED], State.BACKLOG),
        ([DIVERTED, PING_FAILED], State.BACKLOG),
        ([SENT, DIVERTED, FAILED], State.BACKLOG),
        ([FAILED, DIVERTED, PING_OK], State.PRIMARY),
        ([DIVERTED, SENT], State.PRIMARY),
        ([PING_FAILED], State.UNKNOWN),
        ([MOVED], State.UNKNOWN),
        ([COMPLETED], State.UNKNOWN),
    ],
)
def test_last_operation_decides_the_state(kinds: list[Kind], state: State) -> None:
    (found,) = states_of(row(kind, at + 1) for at, kind in enumerate(kinds))
    assert found.state is state


def test_rows_about_ledger_and_queues_have_no_entity() -> None:
    assert states_of([row(POLLED, 1), row(DROPPED, 2)]) == []


def test_counts_are_messages_not_rows() -> None:
    (found,) = states_of([row(DIVERTED, 1, count=100), row(DIVERTED, 2, count=3), row(MOVED, 3, count=1)])
    assert (found.diverted, found.moved) == (103, 1)


def test_two_spellings_of_a_path_are_one_entity() -> None:
    assert len(states_of([row(SENT, 1, "Orders"), row(SENT, 2, "orders")])) == 1


@given(st.permutations([row(SENT, 1), row(FAILED, 2), row(DIVERTED, 3), row(PING_OK, 4), row(MOVED, 5)]))
def test_row_order_does_not_matter(rows: list[Operation]) -> None:
    (found,) = states_of(rows)
    assert found.state is State.PRIMARY
    assert (found.sent_at, found.failed_at, found.diverted_at, found.moved_at) == (1, 2, 3, 5)
