"""What the ledger says of a run, against what senders and receivers say."""

from __future__ import annotations

from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.proof.checker import Verdict, check
from twinbus.proof.history import History
from twinbus.proof.ledger_words import disagreements


def _row(stage: Stage, kind: OperationKind = OperationKind.SEND, outcome: Outcome = Outcome.DONE) -> Operation:
    return Operation(
        pairing="p",
        client="c",
        namespace=NamespaceRole.PRIMARY,
        entity="orders",
        operation=kind,
        stage=stage,
        outcome=outcome,
        message_id="1",
        destination="orders",
    )


def _verdict(*, arrived: bool = True) -> Verdict:
    history = History()
    history.attempt("orders", "1")
    history.acknowledge("orders", "1")
    if arrived:
        history.receive("orders", "1", 1)
    history.drained()
    return check(history)


def test_they_agree_on_a_message_that_was_diverted_and_moved() -> None:
    complete = _row(Stage.BACKLOG_RECEIVE, OperationKind.COMPLETE)
    rows = [_row(Stage.BACKLOG_SEND), _row(Stage.PRIMARY_SEND), complete]
    assert disagreements(_verdict(), rows, completed=["1"]) == []


def test_a_ledger_that_knows_nothing_of_an_acknowledged_message_disagrees() -> None:
    assert disagreements(_verdict(), []) == ["only the checker says that 1 was acknowledged"]


def test_a_completion_without_a_row_of_the_move_is_told() -> None:
    rows = [_row(Stage.BACKLOG_SEND), _row(Stage.DIRECT, outcome=Outcome.UNKNOWN)]
    found = disagreements(_verdict(), rows, completed=["1"])
    assert "1 was completed in the backlog without a row of its move" in found


def test_they_agree_on_a_message_that_is_lost() -> None:
    assert disagreements(_verdict(arrived=False), [_row(Stage.BACKLOG_SEND)]) == []


def test_a_dead_letter_that_was_only_planned_is_not_lost() -> None:
    planned = _row(Stage.BACKLOG_RECEIVE, OperationKind.DEAD_LETTER, Outcome.PLANNED)
    assert disagreements(_verdict(), [_row(Stage.BACKLOG_SEND), planned]) == []


def test_an_arrival_that_receivers_did_not_see_is_told() -> None:
    found = disagreements(_verdict(arrived=False), [_row(Stage.DIRECT)])
    assert "only the ledger says that 1 is ok" in found


def test_a_message_that_nobody_sent_is_told() -> None:
    history = History()
    history.drained()
    found = disagreements(check(history), [_row(Stage.DIRECT)])
    assert "the ledger knows of 1, which nobody sent" in found
