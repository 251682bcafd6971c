"""Tests the comparison of the ledger's verdicts with the checker's."""

from __future__ import annotations

import pytest
from proof.checker import Verdict, check
from proof.history import History, Id
from proof.ledger_words import disagreements

from twinbus.demo.tally import Tally
from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.tables.verdict import Facts, judge


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


def test_moved_message_agrees() -> None:
    complete = _row(Stage.BACKLOG_RECEIVE, OperationKind.COMPLETE)
    rows = [_row(Stage.BACKLOG_SEND), _row(Stage.PRIMARY_SEND), complete]
    assert disagreements(_verdict(), rows, completed=["1"]) == []


def test_missing_rows_of_acknowledged_message_disagree() -> None:
    assert disagreements(_verdict(), []) == ["only the checker says that 1 was acknowledged"]


def test_completion_without_move_row_is_reported() -> None:
    rows = [_row(Stage.BACKLOG_SEND), _row(Stage.DIRECT, outcome=Outcome.UNKNOWN)]
    differences = disagreements(_verdict(), rows, completed=["1"])
    assert "1 was completed in the backlog without a row of its move" in differences


def test_lost_message_agrees() -> None:
    assert disagreements(_verdict(arrived=False), [_row(Stage.BACKLOG_SEND)]) == []


def test_planned_dead_letter_is_not_lost() -> None:
    planned = _row(Stage.BACKLOG_RECEIVE, OperationKind.DEAD_LETTER, Outcome.PLANNED)
    assert disagreements(_verdict(), [_row(Stage.BACKLOG_SEND), planned]) == []


def test_arrival_unknown_to_receivers_is_reported() -> None:
    differences = disagreements(_verdict(arrived=False), [_row(Stage.DIRECT)])
    assert "only the ledger says that 1 is ok" in differences


def test_message_that_no_client_sent_is_reported() -> None:
    history = History()
    history.drained()
    differences = disagreements(check(history), [_row(Stage.DIRECT)])
    assert "the ledger knows of 1, which no client sent" in differences


def test_ledger_need_not_know_that_a_queue_was_deleted() -> None:
    history = History()
    history.attempt("orders", "1")
    history.acknowledge("orders", "1")
    history.delete("orders", "1")
    history.drained()
    verdict = check(history)
    in_backlog, at_destination = [_row(Stage.BACKLOG_SEND)], [_row(Stage.DIRECT)]
    assert disagreements(verdict, in_backlog, in_deleted_queues=[Id("orders", "1")]) == []
    assert disagreements(verdict, at_destination, in_deleted_queues=[Id("orders", "1")]) == []
    assert disagreements(verdict, in_backlog) == ["only the ledger says that 1 is lost"]


@pytest.mark.parametrize("is_acknowledged", [False, True])
@pytest.mark.parametrize("has_arrived", [False, True])
def test_ok_has_one_meaning_in_the_ledger_the_checker_and_the_demo(is_acknowledged: bool, has_arrived: bool) -> None:
    history, tally = History(), Tally({"orders": ("orders",)})
    history.attempt("orders", "1")
    tally.attempt("orders", "1")
    if is_acknowledged:
        history.acknowledge("orders", "1")
        tally.acknowledge("orders", "1", "primary")
    if has_arrived:
        history.receive("orders", "1", 1)
        tally.receive("orders", "1", 1)
    history.drained()
    facts = Facts(
        sends=1, acknowledged=int(is_acknowledged), received=int(has_arrived), by_receivers=True, is_over=True
    )
    is_ok = has_arrived  # whatever the sender was told
    assert (judge(facts).ok, bool(check(history).ok), bool(tally.verdict().ok)) == (is_ok, is_ok, is_ok)
