"""Ledgers made by hand, and what reconciliation says of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinbus.ledger.layout import FileName, folder_of
from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import encode, pa, to_batch
from twinbus.ledger.store import open_store
from twinbus.spark.transformations.anomalies import anomalies, with_late_arrivals
from twinbus.spark.transformations.arrivals import arrivals
from twinbus.spark.transformations.message_days import message_days
from twinbus.spark.transformations.operation_counts import operation_counts
from twinbus.spark.transformations.operations import read_files
from twinbus.spark.transformations.usage import usage
from twinbus.spark.transformations.verdicts import (
    messages,
    messages_beyond_horizon,
    receiver_times,
    spellings,
    verdict_counts,
    verdicts,
    with_words,
)
from twinbus.tables.verdict import WORDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000
NOON = int(datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()) * SECOND
QUEUE = "contoso/x-servicebus-transfer/0"


def row(kind: OperationKind, stage: Stage, entity: str, message_id: str | None, at: int, **columns: Any) -> Operation:
    """A row at `at` microseconds after noon."""
    role = NamespaceRole.SECONDARY if stage in (Stage.BACKLOG_SEND, Stage.BACKLOG_RECEIVE) else NamespaceRole.PRIMARY
    given: dict[str, Any] = {"pairing": "contoso", "client": "c", "namespace": role, "outcome": Outcome.DONE}
    return Operation(
        operation=kind, stage=stage, entity=entity, message_id=message_id, ts=NOON + at, **{**given, **columns}
    )


def sent(to: str, message_id: str, at: int = 0, outcome: Outcome = Outcome.DONE, **columns: Any) -> Operation:
    return row(OperationKind.SEND, Stage.DIRECT, to, message_id, at, outcome=outcome, destination=to, **columns)


def diverted(to: str, message_id: str, at: int = 0, outcome: Outcome = Outcome.DONE) -> Operation:
    return row(OperationKind.SEND, Stage.BACKLOG_SEND, QUEUE, message_id, at, outcome=outcome, destination=to)


def backlog(kind: OperationKind, to: str, message_id: str, at: int = 0) -> Operation:
    return row(kind, Stage.BACKLOG_RECEIVE, QUEUE, message_id, at, destination=to, sequence_number=7)


def moved(to: str, message_id: str, at: int = 0, outcome: Outcome = Outcome.DONE) -> list[Operation]:
    """The syphon's rows of a move: complete only if the primary said yes."""
    send = row(OperationKind.SEND, Stage.PRIMARY_SEND, to, message_id, at + 1, destination=to, outcome=outcome)
    ended = OperationKind.COMPLETE if outcome is Outcome.DONE else OperationKind.ABANDON
    return [backlog(OperationKind.RECEIVE, to, message_id, at), send, backlog(ended, to, message_id, at + 2)]


def received(at_path: str, message_id: str | None, number: int | None, at: int = SECOND) -> list[Operation]:
    """A receiver's rows."""
    stage, facts = Stage.PRIMARY_RECEIVE, {"sequence_number": number}
    return [
        row(OperationKind.RECEIVE, stage, at_path, message_id, at, delivery_count=0, **facts),
        row(OperationKind.COMPLETE, stage, at_path, message_id, at + 1, **facts),
    ]


def write(
    folder: Path, operations: Iterable[Operation], number: int = 1, keys: Mapping[str, int] | None = None
) -> None:
    """Put rows into a ledger, one file for each of their days; `keys` are other message keys than the real ones."""
    days: defaultdict[str, list[Operation]] = defaultdict(list)
    for one in operations:
        days[folder_of(one.ts)].append(one)
    for day, rows in days.items():
        table = pa.Table.from_batches([to_batch(sorted(rows, key=lambda one: one.ts))])
        if keys:
            changed = [keys.get(one, key) for one, key in zip(*(table[c].to_pylist() for c in KEYED), strict=True)]
            at = table.schema.get_field_index("message_key")
            table = table.set_column(at, table.schema.field(at), pa.array(changed, pa.int64()))
        name = FileName(max(one.ts for one in rows), "00112233aabbccdd", 1, number)
        open_store(folder).put(day, str(name), encode(table))


KEYED = ("message_id", "message_key")


class Reconciled:
    """What the tables of reconciliation say."""

    def __init__(self, verdicts: list[dict[str, Any]], arrivals: list[dict[str, Any]], anomalies: list[dict[str, Any]]):
        self.verdicts = verdicts
        self.arrivals = arrivals
        self.rows = anomalies

    def count(self, word: str) -> int:
        return sum(one[word] for one in self.verdicts)

    def ids(self, word: str, entity: str | None = None) -> list[str]:
        """The ids with a word, in order."""
        return sorted(
            one["message_id"] for one in self.rows if one["word"] == word and entity in (None, one["destination"])
        )

    def words(self, entity: str) -> dict[str, int]:
        """The words of an entity that are not 0."""
        found: Counter[str] = Counter()
        for one in self.verdicts:
            if one["destination"] == entity:
                found.update({word: one[word] for word in WORDS if one[word]})
        assert found, f"nothing is said of {entity}"
        return dict(found)

    def evidence(self, entity: str) -> set[str]:
        return {one["evidence"] for one in self.verdicts if one["destination"] == entity}

    def of(self, message_id: str) -> list[dict[str, Any]]:
        return [one for one in self.rows if one["message_id"] == message_id]

    def at_subscriptions(self, topic: str) -> dict[str, int]:
        found: Counter[str] = Counter()
        for one in self.arrivals:
            if one["destination"] == topic:
                found[one["subscription"]] += one["messages"]
        return dict(found)


def run(spark: SparkSession, ledger: Path, **rules: Any) -> Reconciled:
    """Reconcile the messages of a ledger by the transformations, without a run that writes tables."""
    files = [str(path) for path in sorted(ledger.rglob("*.parquet"))]
    return reconcile(read_files(spark, str(ledger), files), **rules)


def reconcile(
    raw: DataFrame,
    *,
    horizon: int = 14,
    patience: timedelta = timedelta(hours=1),
    clock_skew: timedelta = timedelta(minutes=5),
    drained: bool = False,
) -> Reconciled:
    """Reconcile the messages of rows of a ledger."""
    rows = raw.dropDuplicates(["op_id"])
    used = usage(operation_counts(rows)).cache()
    by_day = message_days(rows).cache()
    spelt = spellings(used)
    times = receiver_times(used, by_day.select("day").distinct(), horizon)

    def counts_of(found: DataFrame) -> DataFrame:
        return verdict_counts(with_words(found, times, patience + clock_skew, drained))

    whole = counts_of(messages(by_day, horizon)).cache()
    beyond = counts_of(messages_beyond_horizon(by_day, whole, horizon))
    counts = with_late_arrivals(whole.where("not is_beyond").unionByName(beyond), by_day)
    tables = (verdicts(counts, spelt), arrivals(by_day, spelt, horizon), anomalies(counts, spelt))
    found = Reconciled(*([row.asDict() for row in table.collect()] for table in tables))
    for cached in (whole, used, by_day):
        cached.unpersist()
    return found
