"""Ledgers made by hand, and what reconciliation says of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinbus.ledger.layout import FileName, folder_of
from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import encode, pa, to_batch
from twinbus.ledger.store import open_store
from twinbus.pipeline.files import survey
from twinbus.pipeline.reconciliation import reconcile
from twinbus.pipeline.results import Results, new_run
from twinbus.pipeline.summary import ANOMALIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    """What a run has said."""

    def __init__(self, results: Results, state: Mapping[str, Any]) -> None:
        self.results = results
        self.state = state
        self.summary: Mapping[str, Any] = state["summary"]
        self.rows: list[dict[str, Any]] = results.table(state["anomalies"], ANOMALIES).to_pylist()

    def ids(self, word: str, entity: str | None = None) -> list[str]:
        """The ids with a word, in order."""
        return sorted(
            one["message_id"] for one in self.rows if one["word"] == word and entity in (None, one["destination"])
        )

    def words(self, entity: str) -> dict[str, int]:
        """The words of an entity that are not 0."""
        [found] = [one for one in self.summary["entities"] if one["entity"] == entity]
        return {name: value for name, value in found.items() if isinstance(value, int) and value}

    def of(self, message_id: str) -> list[dict[str, Any]]:
        return [one for one in self.rows if one["message_id"] == message_id]


def run(spark: SparkSession, ledger: Path, results: Path, before: Reconciled | None = None, **rules: Any) -> Reconciled:
    """Reconcile a ledger, after what an earlier run has said."""
    store = Results.open(results)
    state = reconcile(spark, survey(ledger), store, before.state if before else None, new_run(), **rules)
    return Reconciled(store, state)
