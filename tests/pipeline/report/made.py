"""Stores of results for tests of reports: written as the pipeline writes them, in milliseconds and without Spark."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from twinbus.ledger.reading import SetAside
from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.ledger.schema import pa, pq
from twinbus.pipeline.report.formats import DAY, HOUR, MINUTE, SECOND
from twinbus.pipeline.results import DayResults, Results, Snapshot, new_run
from twinbus.pipeline.summary import ANOMALIES
from twinbus.pipeline.tables import ACTIVITY, LATENCY, USAGE, WAITS, Happening, bucket_of
from twinbus.pipeline.verdict import WORDS

START = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()) * SECOND
PAIRING = "contoso"
_SCHEMAS = {"usage": USAGE, "latency": LATENCY, "activity": ACTIVITY, "waits": WAITS}


@dataclass
class Made:
    """What is to be in the results; `write` puts it there."""

    days: int = 7
    usage: list[tuple[Any, ...]] = field(default_factory=list)
    latency: list[tuple[Any, ...]] = field(default_factory=list)
    activity: list[tuple[Any, ...]] = field(default_factory=list)
    waits: list[tuple[Any, ...]] = field(default_factory=list)
    summary: Mapping[str, Any] | None = None
    anomalies: list[tuple[Any, ...]] = field(default_factory=list)
    set_aside: Sequence[SetAside] = ()
    dropped: int = 0

    def traffic(self, entities: Iterable[str], operations: int = 1_000) -> Made:
        """Sends to the primary and what follows them, each hour of each day."""
        for entity in entities:
            for hour in range(self.days * 24):
                at = START + hour * HOUR
                self._use(at, entity, OperationKind.SEND, Stage.DIRECT, operations)
                self._use(at, entity, OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, operations)
                self.latency.append(
                    (at, entity, Stage.DIRECT, OperationKind.SEND, bucket_of(4_200), operations, 90_000)
                )
        return self

    def drained(self, entities: Iterable[str], at: int, count: int) -> Made:
        """What a syphon records, of an outage that no sender tells of."""
        for entity in entities:
            self._use(at, entity, OperationKind.RECEIVE, Stage.BACKLOG_RECEIVE, count)
            self._use(at, entity, OperationKind.SEND, Stage.PRIMARY_SEND, count)
        return self

    def outage(
        self, entities: Iterable[str], began: int, minutes: int, *, each: int = 10, is_back: bool = True, left: int = 0
    ) -> Made:
        """Some minutes without the primary, `each` messages a minute, and a drain of a few minutes."""
        for entity in entities:
            self._happen(began, entity, Happening.FAILED_SEND, 3)
            for minute in range(minutes):
                at = began + minute * MINUTE
                self._happen(at + 2 * SECOND, entity, Happening.DIVERTED, each)
                if minute:
                    self._happen(at, entity, Happening.FAILED_PING, 1)
                self._use(at // HOUR * HOUR, entity, OperationKind.SEND, Stage.BACKLOG_SEND, each)
            if is_back:
                self._drain(entity, began + minutes * MINUTE, minutes * each - left, minutes)
        return self

    def _drain(self, entity: str, back: int, count: int, minutes: int) -> None:
        self._happen(back, entity, Happening.PING, 1)
        self._happen(back + 5 * SECOND, entity, Happening.MOVED, count)
        self._happen(back + 5 * SECOND, entity, Happening.COMPLETED, count)
        self._use(back // HOUR * HOUR, entity, OperationKind.COMPLETE, Stage.BACKLOG_RECEIVE, count)
        hour = (back - minutes * MINUTE) // HOUR * HOUR
        self.waits.append((hour, entity, bucket_of(minutes * MINUTE // 2), count, minutes * MINUTE))

    def _happen(self, at: int, entity: str, kind: Happening, count: int) -> None:
        self.activity.append((at // MINUTE * MINUTE, PAIRING, entity, kind, count, at, at))

    def _use(self, at: int, entity: str, kind: OperationKind, stage: Stage, count: int) -> None:
        role = NamespaceRole.SECONDARY if stage.name.startswith("BACKLOG") else NamespaceRole.PRIMARY
        self.usage.append(
            (at, PAIRING, "client-1", role, entity, kind, stage, Outcome.DONE, count, count, count, 900 * count, 0)
        )

    def judged(self, entities: Iterable[str], evidence: str = "receivers", **words: int) -> Made:
        """A reconciliation: the words are those of the first entity, the others have none but attempted and ok."""
        every = []
        for number, entity in enumerate(entities):
            counts = {"attempted": 1_000, "acknowledged": 1_000, "ok": 1_000, **(words if number == 0 else {})}
            every.append({"entity": entity, **{word: counts.get(word, 0) for word in WORDS}, "evidence": evidence})
        sums = {word: sum(one[word] for one in every) for word in WORDS}
        valid = not sums["lost"] and not sums["unexpected"]
        self.summary = {
            **sums, "entities": every, "dropped_rows": 0, "set_aside": 0, "notes": [], "valid": valid
        }  # fmt: skip
        return self

    def anomaly(self, word: str, message_id: str, destination: str, at: int = START) -> Made:
        self.anomalies.append((word, destination, message_id, at, at + SECOND, 1, 0, 0, "receivers"))
        return self

    def write(self, folder: Path) -> Results:
        """Publish it as a snapshot."""
        results = Results.open(folder)
        run = new_run(datetime.fromtimestamp((START + self.days * DAY) / SECOND, UTC))
        tables = {name: (getattr(self, name), schema) for name, schema in _SCHEMAS.items()}
        days = {}
        for number in range(self.days):
            since = START + number * DAY
            name = datetime.fromtimestamp(since / SECOND, UTC).date().isoformat()
            paths = {}
            for rollup, (rows, schema) in tables.items():
                mine = [row for row in rows if since <= row[0] < since + DAY]
                if mine:
                    paths[rollup] = [f"rollups/{run}/{rollup}/day={name}/part-0.parquet"]
                    results.write_bytes(paths[rollup][0], parquet(mine, schema))
            rows_of_day = sum(row[8] for row in self.usage if since <= row[0] < since + DAY)
            days[name] = DayResults(
                rollups=paths,
                inventory=f"rollups/{run}/inventory-{name}.json",
                files=1,
                bytes=1,
                rows_in_files=rows_of_day,
                rows=rows_of_day,
                dropped=self.dropped if number == 0 else 0,
                first_us=since if rows_of_day else None,
                last_us=since + DAY - 1 if rows_of_day else None,
            )
        reconciliation = None
        if self.summary is not None:
            path = f"reconciliation/{run}/anomalies/part-0.parquet"
            results.write_bytes(path, parquet(self.anomalies, ANOMALIES))
            reconciliation = {"version": 1, "summary": self.summary, "anomalies": [path]}
        snapshot = Snapshot(
            run=run,
            versions={"twinbus": "0.1.0", "spark": "4.3.0"},
            days=days,
            set_aside=self.set_aside,
            reconciliation=reconciliation,
        )
        results.publish(snapshot, after=results.highest())
        return results


def parquet(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> bytes:
    """A file of these rows."""
    columns = list(zip(*rows, strict=True)) or [() for _ in schema]
    arrays = [pa.array(list(map(_plain, column)), field.type) for column, field in zip(columns, schema, strict=True)]
    data = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), data)
    return data.getvalue()


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, int) else value
