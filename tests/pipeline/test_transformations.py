"""Tables of one day, on a handful of rows, and against plain Python for rows of all kinds."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.pipeline.ledger_files import HOUR, MINUTE, SECOND, START, an_operation, put, some_operations
from tests.pipeline.reconciling import backlog, diverted, moved, received, reconcile, row, sent, write

from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import message_key
from twinbus.spark.pipeline.day_planning import IdRange, InputFile, files_to_compare
from twinbus.spark.transformations.activity import activity
from twinbus.spark.transformations.backlog_time import backlog_time
from twinbus.spark.transformations.latency import latency
from twinbus.spark.transformations.message_days import message_days
from twinbus.spark.transformations.operation_counts import operation_counts
from twinbus.spark.transformations.operations import each_operation_once, read_files
from twinbus.spark.transformations.usage import usage
from twinbus.spark.transformations.verdicts import spellings
from twinbus.tables.activity import ACTIVITY_RULES
from twinbus.tables.billed_units import billed_units, is_transferred
from twinbus.tables.histogram import bucket_of
from twinbus.tables.table_schemas import TABLES
from twinbus.tables.verdict import WORDS, Facts, destination_of, facts_of, judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def rows_of(spark: SparkSession, folder: Path) -> DataFrame:
    return read_files(spark, str(folder), [str(path) for path in sorted(folder.rglob("*.parquet"))])


def time_of(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def collected(frame: DataFrame, table: str) -> list[dict[str, Any]]:
    """The rows of a table, with times in UTC."""
    assert frame.columns == TABLES[table].names
    found = [one.asDict() for one in frame.collect()]
    return [
        {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in one.items()}
        for one in found
    ]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Operation]]:
    """Rows of all kinds."""
    folder = tmp_path_factory.mktemp("mixed")
    operations = some_operations(3, 1500)
    put(folder, operations)
    return folder, operations


@pytest.fixture(scope="module")
def counts(spark: SparkSession, mixed: tuple[Path, list[Operation]]) -> DataFrame:
    return operation_counts(rows_of(spark, mixed[0])).cache()


def test_usage_is_what_plain_python_counts(mixed: tuple[Path, list[Operation]], counts: DataFrame) -> None:
    expected: defaultdict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for one in mixed[1]:
        codes = (one.namespace, one.operation, one.stage, one.outcome)
        names = tuple(code.name.lower() for code in codes)
        key = (time_of(one.ts - one.ts % HOUR), one.client, one.destination or one.entity, *names)
        expected[key].update(
            rows=1,
            count=one.count,
            bytes=one.bytes,
            units=billed_units(one.operation, one.stage, one.outcome, size=one.bytes, count=one.count),
            transferred=one.bytes if is_transferred(one.namespace, one.operation, one.outcome) else 0,
        )
    found = {
        tuple(row[name] for name in ("hour", "client", "entity", "namespace", "operation", "stage", "outcome")): row
        for row in collected(usage(counts), "usage")
    }
    assert found.keys() == expected.keys()
    for key, sums in expected.items():
        assert {name: found[key][name] for name in ("rows", "count", "bytes", "units", "transferred")} == dict(
            {"rows": 0, "count": 0, "bytes": 0, "units": 0, "transferred": 0} | sums
        )
    assert {row["day"] for row in found.values()} == {date(2026, 11, 1)}
    first = min(one.ts for one in mixed[1])
    assert min(row["first_time"] for row in found.values()) == time_of(first)


def test_latency_is_what_plain_python_counts(mixed: tuple[Path, list[Operation]], counts: DataFrame) -> None:
    expected: Counter[tuple[Any, ...]] = Counter()
    for one in mixed[1]:
        if one.outcome is Outcome.DONE and one.latency_us is not None:
            hour, entity = time_of(one.ts - one.ts % HOUR), one.destination or one.entity
            key = hour, entity, one.stage.name.lower(), one.operation.name.lower(), bucket_of(one.latency_us)
            expected[key] += 1
    found = {
        (row["hour"], row["entity"], row["stage"], row["operation"], row["bucket"]): row["count"]
        for row in collected(latency(counts), "latency")
    }
    assert found == expected


def test_activity_is_what_plain_python_counts(mixed: tuple[Path, list[Operation]], counts: DataFrame) -> None:
    expected: Counter[tuple[Any, ...]] = Counter()
    for one in mixed[1]:
        for kind, rule in ACTIVITY_RULES.items():
            fits = one.stage is rule.stage and one.operation in rule.operations and one.outcome in rule.outcomes
            if fits and rule.error in (None, one.error):
                expected[time_of(one.ts - one.ts % MINUTE), one.destination or one.entity, str(kind)] += 1
                break
    found = {
        (row["minute"], row["entity"], row["kind"]): row["count"] for row in collected(activity(counts), "activity")
    }
    assert found == expected


def test_an_expired_dead_letter_is_told_from_a_poison_one(spark: SparkSession, tmp_path: Path) -> None:
    dead = {"operation": OperationKind.DEAD_LETTER, "stage": Stage.BACKLOG_RECEIVE, "destination": "orders"}
    put(tmp_path, [an_operation(START, **dead, error="ExpiredInBacklog"), an_operation(START + 1, **dead)])
    found = collected(activity(operation_counts(rows_of(spark, tmp_path))), "activity")
    assert sorted(row["kind"] for row in found) == ["expired", "poison"]


def test_codes_of_a_later_release_have_a_word(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    put(tmp_path, [an_operation(START)])
    later = rows_of(spark, tmp_path).withColumn("operation", F.lit(99).cast("tinyint"))
    [found] = collected(usage(operation_counts(later)), "usage")
    assert (found["operation"], found["stage"]) == ("code_99", "direct")


def test_time_in_the_backlog_belongs_to_the_hour_of_diverting(spark: SparkSession, tmp_path: Path) -> None:
    write(
        tmp_path,
        [
            diverted("Orders", "m1"),
            *moved("Orders", "m1", 90 * SECOND),
            diverted("Orders", "m2", HOUR),
            backlog(OperationKind.DEAD_LETTER, "Orders", "m2", HOUR + 10 * SECOND),
            diverted("Orders", "m3", HOUR),
            # Moved, but it is not known when it was diverted.
            *moved("Orders", "m4"),
        ],
    )
    rows = rows_of(spark, tmp_path)
    found = collected(backlog_time(message_days(rows), spellings(usage(operation_counts(rows))), 14), "backlog_time")
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    seen = {(row["hour"], row["entity"], row["state"]): (row["bucket"], row["count"], row["max_us"]) for row in found}
    assert seen == {
        (noon, "Orders", "moved"): (bucket_of(90 * SECOND + 1), 1, 90 * SECOND + 1),
        (noon + timedelta(hours=1), "Orders", "dead_lettered"): (None, 1, 10 * SECOND),
        (noon + timedelta(hours=1), "Orders", "waiting"): (None, 1, 0),
    }


def test_a_message_without_a_key_gets_that_of_its_id(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    ids = ["a", "order 1", "ö", "0" * 128]
    write(tmp_path, [sent("orders", one) for one in ids])
    rows = rows_of(spark, tmp_path).withColumn("message_key", F.lit(None).cast("bigint"))
    found = {row["message_id"]: row["message_key"] for row in collected(message_days(rows), "message_days")}
    assert found == {one: message_key(one) for one in ids}


# ---- each operation once ----


RANGES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30), st.integers(0, 8)), max_size=3)


def a_file(name: str, ids: list[IdRange] | None) -> InputFile:
    return InputFile(date(2026, 11, 1), name, 1, 1, ids=None if ids is None else tuple(ids))


@given(files=st.dictionaries(st.sampled_from("abcdef"), RANGES))
def test_files_are_compared_just_if_they_share_an_id(files: dict[str, list[tuple[int, int, int]]]) -> None:
    ids = {
        name: {(w, at) for w, low, size in some for at in range(low, low + size + 1)} for name, some in files.items()
    }
    sharing = {one for one in ids for other in ids if one != other and ids[one] & ids[other]}
    surveyed = [
        a_file(name, [IdRange(writer, low, low + size) for writer, low, size in some]) for name, some in files.items()
    ]
    assert files_to_compare(surveyed) >= sharing
    if not sharing and all(len(some) <= 1 for some in files.values()):
        assert files_to_compare(surveyed) == set()


def test_a_file_with_too_many_writers_is_compared_with_all() -> None:
    many, few = a_file("a", None), a_file("b", [IdRange(1, 1, 2)])
    assert files_to_compare([many, few]) == {"a", "b"}
    assert files_to_compare([many]) == set()


def test_repeated_rows_count_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [an_operation(START + number) for number in range(10)]
    put(tmp_path, rows)
    copy = put(tmp_path, rows[3:7])
    unlike = put(tmp_path, [an_operation(START + 20)])
    files = [path.name for path in copy.parent.iterdir()]
    compared = [name for name in files if name != unlike.name]
    assert each_operation_once(rows_of(spark, tmp_path), compared, ["ts"]).count() == 11
    assert each_operation_once(rows_of(spark, tmp_path), [], ["ts"]).count() == 15


# ---- the rule of verdicts ----

DONE, FAILED, UNKNOWN = Outcome.DONE, Outcome.FAILED, Outcome.UNKNOWN
EVENTS = st.one_of(
    st.tuples(st.sampled_from(["direct", "divert", "move"]), st.sampled_from([DONE, FAILED, UNKNOWN])),
    st.tuples(st.sampled_from(["take", "complete", "dead_letter", "plan"]), st.just(DONE)),
    st.tuples(st.just("receive"), st.integers(1, 3)),
    st.tuples(st.just("subscription"), st.integers(1, 3)),
)
HISTORIES = st.lists(st.lists(EVENTS, min_size=1, max_size=7), min_size=1, max_size=60)


def operations_of(number: int, history: list[tuple[str, Any]]) -> list[Operation]:
    to, name = f"queue-{number}", f"m-{number}"
    made: list[Operation] = []
    for at, (what, how) in enumerate(history):
        match what:
            case "direct":
                made.append(sent(to, name, at, how))
            case "divert":
                made.append(diverted(to, name, at, how))
            case "move":
                made.append(row(OperationKind.SEND, Stage.PRIMARY_SEND, to, name, at, destination=to, outcome=how))
            case "take":
                made.append(backlog(OperationKind.RECEIVE, to, name, at))
            case "complete":
                made.append(backlog(OperationKind.COMPLETE, to, name, at))
            case "dead_letter":
                made.append(backlog(OperationKind.DEAD_LETTER, to, name, at))
            case "plan":
                planned = {"outcome": Outcome.PLANNED, "namespace": NamespaceRole.SECONDARY, "destination": to}
                made.append(row(OperationKind.DEAD_LETTER, Stage.BACKLOG_RECEIVE, "q", name, at, **planned))
            case "receive":
                made += received(to, name, how, at)
            case "subscription":
                made += received(f"{to}/subscriptions/{how % 2}", name, how, at)
    return made


# Not shrunk: every example is a job of Spark.
@settings(max_examples=3, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories=HISTORIES, drained=st.booleans())
def test_the_words_on_spark_are_those_of_plain_python(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    histories: list[list[tuple[str, Any]]],
    drained: bool,
) -> None:
    folder = tmp_path_factory.mktemp("histories")
    operations = [one for number, history in enumerate(histories) for one in operations_of(number, history)]
    write(folder, operations)
    by_destination: defaultdict[str, list[Operation]] = defaultdict(list)
    for one in operations:
        if facts_of([one]) != Facts():
            by_destination[destination_of(one)].append(one)
    expected = {}
    for destination, some in by_destination.items():
        facts = facts_of(some)
        accepted = [one.ts for one in some if facts_of([one]).accepted]
        arrived = [one.ts for one in some if facts_of([one]).received]
        facts.by_receivers = bool(arrived)
        facts.is_over = drained
        assert not arrived or not accepted or facts.received  # what was received was not accepted too early
        expected[destination] = set(judge(facts).words())
    found = reconcile(rows_of(spark, folder), drained=drained)
    said = {one["destination"]: {word for word in WORDS if one[word]} for one in found.verdicts}
    assert said == expected
