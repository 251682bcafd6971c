"""Tests how operations become billed units."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.rows import DAY, HOUR, NOON, a_send, operations

from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.tables.billed_units import PAIRING_STAGES, Usage, billed_units, units_of, usage_of

KB = 1024
QUEUE = "contoso/x-servicebus-transfer/0"
UNKNOWN_OR_NOT = st.sampled_from((Outcome.DONE, Outcome.UNKNOWN))


def an_operation(kind: OperationKind, stage: Stage, **changes: Any) -> Operation:
    """Return an operation at the namespace of its stage."""
    backlog = stage in (Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE, Stage.POLL)
    given = {"entity": QUEUE, "namespace": NamespaceRole.SECONDARY} if backlog else {}
    return a_send(**{**given, "operation": kind, "stage": stage, "bytes": 0, **changes})


def a_poll(**changes: Any) -> Operation:
    given = {"message_id": None, "destination": None, "outcome": Outcome.EMPTY, "count": 0}
    return an_operation(OperationKind.POLL, Stage.POLL, **{**given, **changes})


def units(operations: list[Operation], **subscriptions: int) -> int:
    return sum(row.operations for row in usage_of(operations, subscriptions))


# ---- the rules of SPEC 9 ----


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 1), (1, 1), (64 * KB, 1), (64 * KB + 1, 2), (96 * KB, 2), (128 * KB, 2), (256 * KB, 4)]
)
def test_sends_and_receives_count_in_units_of_64_kb(size: int, expected: int) -> None:
    assert units_of(size) == expected
    for kind, stage in ((OperationKind.SEND, Stage.DIRECT), (OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE)):
        assert units([an_operation(kind, stage, bytes=size)]) == expected


@pytest.mark.parametrize(
    "kind", [OperationKind.COMPLETE, OperationKind.ABANDON, OperationKind.DEFER, OperationKind.DEAD_LETTER]
)
def test_a_receive_and_its_settlement_are_two_operations(kind: OperationKind) -> None:
    received = an_operation(OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, bytes=96 * KB)
    settled = an_operation(kind, Stage.PRIMARY_RECEIVE, bytes=96 * KB)
    assert units([received, settled]) == 2 + 1


def test_each_renewal_and_redelivery_is_an_operation() -> None:
    received = an_operation(OperationKind.RECEIVE, Stage.BACKLOG_RECEIVE, bytes=KB)
    renewed = an_operation(OperationKind.RENEW, Stage.BACKLOG_RECEIVE)
    assert units([received, renewed, renewed, received._replace(delivery_count=2)]) == 4


@pytest.mark.parametrize(("subscriptions", "expected"), [(0, 1), (1, 2), (3, 4)])
def test_send_to_a_topic_with_three_subscriptions_is_four_operations(subscriptions: int, expected: int) -> None:
    assert units([a_send(entity="Events")], events=subscriptions) == expected


def test_copies_of_a_large_message_count_by_its_size() -> None:
    assert units([a_send(entity="events", bytes=96 * KB)], events=3) == 8


def test_subscriptions_change_nothing_at_other_entities_and_for_other_operations() -> None:
    received = an_operation(OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, entity="events")
    assert units([a_send(entity="orders"), received], events=3) == 2


def test_empty_receives_polls_pings_and_management_count_one_each() -> None:
    rows = [
        an_operation(OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, outcome=Outcome.EMPTY, count=0),
        a_poll(),
        an_operation(OperationKind.PING, Stage.PING),
        *(an_operation(kind, Stage.MANAGE) for kind in (OperationKind.CREATE, OperationKind.GET, OperationKind.LIST)),
        an_operation(OperationKind.CANCEL, Stage.DIRECT),
    ]
    assert units(rows) == len(rows)


def test_a_peek_is_one_request_however_many_messages_it_shows() -> None:
    peek = an_operation(OperationKind.PEEK, Stage.MANAGE, count=50, bytes=50 * KB)
    assert units([peek]) == 1
    assert units([peek._replace(bytes=100 * KB)]) == 2


def test_a_row_about_several_messages_counts_each() -> None:
    assert units([an_operation(OperationKind.RECEIVE, Stage.BACKLOG_RECEIVE, count=7, bytes=7 * KB)]) == 7


def test_refused_operations_are_not_billed_and_unanswered_ones_are_counted_apart() -> None:
    [usage] = usage_of([a_send(), a_send(outcome=Outcome.FAILED), a_send(outcome=Outcome.UNKNOWN, bytes=65 * KB)])
    assert (usage.operations, usage.unanswered) == (3, 2)


def test_rows_about_the_ledger_are_not_operations() -> None:
    dropped = a_send(
        namespace=NamespaceRole.NEITHER, operation=OperationKind.DROPPED, stage=Stage.LEDGER, count=1_000, entity=""
    )
    assert usage_of([dropped]) == []


def test_every_kind_of_every_stage_is_counted() -> None:
    for kind, stage in product(OperationKind, Stage):
        assert billed_units(kind, stage, Outcome.DONE) == (stage is not Stage.LEDGER)


# ---- where it belongs ----


def test_usage_is_by_day_namespace_destination_and_stage() -> None:
    rows = [
        a_send(),
        a_send(ts=NOON + DAY),
        an_operation(OperationKind.SEND, Stage.BACKLOG_SEND, bytes=100),
        an_operation(OperationKind.RECEIVE, Stage.BACKLOG_RECEIVE, bytes=100),
        an_operation(OperationKind.COMPLETE, Stage.BACKLOG_RECEIVE, bytes=100),
        a_poll(),
    ]
    first = date(2026, 11, 16)
    primary, secondary = NamespaceRole.PRIMARY, NamespaceRole.SECONDARY
    assert usage_of(rows) == [
        Usage(first, primary, "orders", Stage.DIRECT, 1),
        Usage(first, secondary, QUEUE, Stage.POLL, 1),
        Usage(first, secondary, "orders", Stage.BACKLOG_SEND, 1, 0, 100),
        Usage(first, secondary, "orders", Stage.BACKLOG_RECEIVE, 2, 0, 100),
        Usage(first + timedelta(days=1), primary, "orders", Stage.DIRECT, 1),
    ]


def test_the_last_microsecond_of_a_day_belongs_to_it() -> None:
    midnight = NOON + DAY // 2
    assert [row.day.day for row in usage_of([a_send(ts=midnight - 1), a_send(ts=midnight)])] == [16, 17]


def test_message_through_the_secondary_is_transferred_twice() -> None:
    passed = [
        an_operation(OperationKind.SEND, Stage.BACKLOG_SEND, bytes=1_000),
        an_operation(OperationKind.RECEIVE, Stage.BACKLOG_RECEIVE, bytes=1_000),
        an_operation(OperationKind.COMPLETE, Stage.BACKLOG_RECEIVE),
        an_operation(OperationKind.SEND, Stage.PRIMARY_SEND, bytes=900),
        an_operation(OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, bytes=900),
    ]
    assert sum(row.transferred for row in usage_of(passed)) == 2_000


def test_pairing_pays_for_polls_pings_management_and_the_two_backlog_stages() -> None:
    assert {stage.name for stage in set(Stage) - PAIRING_STAGES} == {
        "DIRECT",
        "PRIMARY_SEND",
        "PRIMARY_RECEIVE",
        "LEDGER",
    }


@pytest.mark.parametrize("number", [-1, 2_001, True, 1.0])
def test_a_number_of_subscriptions_out_of_bounds_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="subscriptions of events must be a whole number from 0 to 2000"):
        usage_of([], {"events": number})


@given(st.lists(operations, max_size=20), st.integers(0, 20))
def test_usage_is_additive(rows: list[Operation], cut: int) -> None:
    whole, first, second = (sum(row.operations for row in usage_of(part)) for part in (rows, rows[:cut], rows[cut:]))
    assert whole == first + second


# ---- the documents' figures, from a recorded ledger ----


def test_a_ledger_of_ten_polled_queues_has_40_an_hour_960_a_day_and_28800_in_30_days() -> None:
    polls = [
        a_poll(ts=NOON + quarter * HOUR // 4, entity=f"contoso/x-servicebus-transfer/{index}")
        for index in range(10)
        for quarter in range(30 * 96)
    ]
    assert units([row for row in polls if row.ts < NOON + HOUR]) == 40
    assert units([row for row in polls if row.ts < NOON + DAY]) == 960
    assert units(polls) == 28_800


def test_a_ledger_of_a_diverted_message_has_four_stages_two_of_them_of_pairing() -> None:
    rows = [
        an_operation(OperationKind.SEND, Stage.BACKLOG_SEND, bytes=KB),
        an_operation(OperationKind.RECEIVE, Stage.BACKLOG_RECEIVE, bytes=KB),
        an_operation(OperationKind.SEND, Stage.PRIMARY_SEND, bytes=KB),
        an_operation(OperationKind.COMPLETE, Stage.BACKLOG_RECEIVE),
        an_operation(OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, bytes=KB),
        an_operation(OperationKind.COMPLETE, Stage.PRIMARY_RECEIVE),
    ]
    found = usage_of(rows)
    assert {row.stage: row.operations for row in found} == {
        Stage.BACKLOG_SEND: 1,
        Stage.BACKLOG_RECEIVE: 2,
        Stage.PRIMARY_SEND: 1,
        Stage.PRIMARY_RECEIVE: 2,
    }
    assert [row.stage for row in found if row.is_pairing] == [Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE]


@given(UNKNOWN_OR_NOT)
def test_a_ledger_of_an_hour_of_pings_has_60_for_each_entity_and_client(outcome: Outcome) -> None:
    pings = [
        an_operation(
            OperationKind.PING, Stage.PING, ts=NOON + minute * HOUR // 60, entity=entity, client=client, outcome=outcome
        )
        for minute, entity, client in product(range(60), ("orders", "events"), ("client-1", "client-2", "client-3"))
    ]
    assert units(pings) == 60 * 2 * 3
