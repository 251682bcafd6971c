"""Tests which time the rows of the ledger cover."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.report.sample_tables import PAIRING, START, SampleTables, moment
from tests.tables.result_files import table_of

from twinbus.ledger.recorder import OperationKind, Stage
from twinbus.report.coverage import PAUSE_US, Coverage, Span, coverage_of, gaps_between, is_covered
from twinbus.report.render.formats import DAY, HOUR, MINUTE
from twinbus.tables.table_schemas import USAGE


def coverage(tables: SampleTables, *entities: str) -> Coverage:
    return coverage_of(table_of(USAGE, tables.usage), {(PAIRING, entity) for entity in entities})


def between(*minutes: tuple[int, int], entity: str = "orders") -> list[dict[str, Any]]:
    """Return a row of `usage` for each pair of minutes within one hour."""
    tables = SampleTables()
    for first, last in minutes:
        tables.use(START + first * MINUTE, entity, OperationKind.SEND, Stage.DIRECT, 1)
        tables.usage[-1] |= {
            "first_time": moment(START + first * MINUTE),
            "last_time": moment(START + last * MINUTE),
        }
    return tables.usage


def test_hours_that_follow_each_other_are_one_span() -> None:
    found = coverage(SampleTables().traffic(["orders"], days=[0, 1]).traffic(["mail"], days=[3]))
    assert found.spans == (Span(START, START + 2 * DAY - 1), Span(START + 3 * DAY, START + 4 * DAY - 1))
    assert (found.first, found.last) == (START, START + 4 * DAY - 1)


def test_each_entity_has_spans_of_its_own_whatever_the_case_of_its_name() -> None:
    found = coverage(SampleTables().traffic(["Orders"], days=[0]).traffic(["mail"], days=[1]), "orders", "mail")
    assert found.of(PAIRING, "ORDERS") == (Span(START, START + DAY - 1),)
    assert found.of(PAIRING, "mail") == (Span(START + DAY, START + 2 * DAY - 1),)
    assert found.of("fabrikam", "mail") == found.of(PAIRING, "events") == ()


def test_a_short_pause_is_covered_and_a_long_one_is_not() -> None:
    rows = between((0, 55), (64, 70), (125, 130))
    spans = coverage_of(table_of(USAGE, rows), ()).spans
    assert spans == (Span(START, START + 70 * MINUTE), Span(START + 125 * MINUTE, START + 130 * MINUTE))


def test_an_entity_is_covered_over_a_short_pause_at_both_ends() -> None:
    rows = [*between((0, 55)), *between((5, 46), entity="mail"), *between((11, 44), entity="events")]
    found = coverage_of(table_of(USAGE, rows), {("contoso", "mail"), ("contoso", "events")})
    assert found.of(PAIRING, "mail") == (Span(START, START + 55 * MINUTE),)
    assert found.of(PAIRING, "events") == (Span(START + 11 * MINUTE, START + 44 * MINUTE),)


def test_rows_of_a_subscription_cover_its_topic() -> None:
    found = coverage(SampleTables().traffic(["events/Subscriptions/audit"], days=[2]), "events")
    assert found.of(PAIRING, "events") == (Span(START + 2 * DAY, START + 3 * DAY - 1),)


def test_rows_that_stand_for_missing_rows_cover_nothing() -> None:
    assert coverage(SampleTables().dropped(7)) == Coverage()


def test_gaps_are_the_time_between_the_spans_and_at_both_ends() -> None:
    spans = [Span(START + HOUR, START + 2 * HOUR), Span(START + 5 * HOUR, START + 6 * HOUR)]
    assert gaps_between(spans, START, START + 6 * HOUR) == [
        Span(START, START + HOUR),
        Span(START + 2 * HOUR, START + 5 * HOUR),
    ]
    assert gaps_between([], START, START + HOUR) == [Span(START, START + HOUR)]
    assert gaps_between(spans, START + HOUR - PAUSE_US, START + 2 * HOUR) == []


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 59)), max_size=12))
def test_every_row_is_covered_and_no_gap_contains_one(times: list[tuple[int, int]]) -> None:
    pairs = [(first, min(first + length, first // 60 * 60 + 59)) for first, length in times]
    spans = coverage_of(table_of(USAGE, between(*pairs)), ()).spans
    gaps = gaps_between(spans, START, START + DAY)
    for first, last in pairs:
        assert any(span.since <= START + first * MINUTE <= START + last * MINUTE <= span.until for span in spans)
        assert not any(gap.since < START + first * MINUTE < gap.until for gap in gaps)
        assert is_covered(spans, START + first * MINUTE, START + first * MINUTE + 1)
    assert all(gap.until - gap.since > PAUSE_US for gap in gaps)
