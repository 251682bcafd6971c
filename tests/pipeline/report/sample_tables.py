"""Builds result tables for tests of reports, as the pipeline writes them, but without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tests.tables.result_files import ResultFiles

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.report.render.formats import DAY, HOUR, MINUTE, SECOND
from twinbus.tables.activity import ActivityKind
from twinbus.tables.code_words import word_of
from twinbus.tables.histogram import bucket_of
from twinbus.tables.table_schemas import ACTIVITY, ANOMALIES, ARRIVALS, BACKLOG_TIME, LATENCY, USAGE, VERDICTS
from twinbus.tables.verdict import WORDS

START = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()) * SECOND
PAIRING = "contoso"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TABLES = (USAGE, LATENCY, ACTIVITY, BACKLOG_TIME, VERDICTS, ARRIVALS, ANOMALIES)


class LeftOut(NamedTuple):
    """A file of the ledger whose rows are not in the tables."""

    file: str
    status: str
    reason: str | None = None
    day: date = date(2026, 11, 1)


@dataclass
class SampleTables:
    """Collects rows of the result tables; `write` stores them."""

    days: int = 7
    usage: list[dict[str, Any]] = field(default_factory=list)
    latency: list[dict[str, Any]] = field(default_factory=list)
    activity: list[dict[str, Any]] = field(default_factory=list)
    backlog_time: list[dict[str, Any]] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    arrivals: list[dict[str, Any]] = field(default_factory=list)
    anomalies: list[dict[str, Any]] = field(default_factory=list)
    is_reconciled: bool = False
    left_out: Sequence[LeftOut] = ()

    def traffic(
        self, entities: Iterable[str], operations: int = 1_000, days: Iterable[int] | None = None
    ) -> SampleTables:
        """Add sends and receives at the primary, in each hour of each day or of `days`."""
        for entity in entities:
            for day in range(self.days) if days is None else days:
                for hour in range(24):
                    at = START + day * DAY + hour * HOUR
                    self.use(at, entity, OperationKind.SEND, Stage.DIRECT, operations)
                    self.use(at, entity, OperationKind.RECEIVE, Stage.PRIMARY_RECEIVE, operations)
                    self.latency.append(
                        {
                            **_hour(at),
                            "entity": entity,
                            "stage": "direct",
                            "operation": "send",
                            "bucket": bucket_of(4_200),
                            "count": operations,
                            "max_us": 90_000,
                        }
                    )
        return self

    def moved_by_syphon(self, entities: Iterable[str], at: int, count: int) -> SampleTables:
        """Add the rows of a syphon for messages of which no sender has a row."""
        for entity in entities:
            self.use(at, entity, OperationKind.RECEIVE, Stage.BACKLOG_RECEIVE, count)
            self.use(at, entity, OperationKind.SEND, Stage.PRIMARY_SEND, count)
        return self

    def dropped(self, count: int) -> SampleTables:
        """Add a row that reports rows as missing in the ledger."""
        return self.use(START, "", OperationKind.DROPPED, Stage.LEDGER, count, rows=1, units=0)

    def cancelled(self, requests: int) -> SampleTables:
        return self.use(START, "orders", OperationKind.CANCEL, Stage.DIRECT, requests)

    def outage(
        self, entities: Iterable[str], began: int, minutes: int, *, each: int = 10, is_back: bool = True, left: int = 0
    ) -> SampleTables:
        """Add an outage of some minutes with `each` diverted messages per minute, and its drain."""
        for entity in entities:
            self._add_event(began, entity, ActivityKind.FAILED_SEND, 3)
            for minute in range(minutes):
                at = began + minute * MINUTE
                self._add_event(at + 2 * SECOND, entity, ActivityKind.DIVERTED, each)
                if minute:
                    self._add_event(at, entity, ActivityKind.FAILED_PING, 1)
                self.use(at // HOUR * HOUR, entity, OperationKind.SEND, Stage.BACKLOG_SEND, each)
            if is_back:
                self._drain(entity, began + minutes * MINUTE, minutes * each - left, minutes)
        return self

    def forced_failover(self, entities: Iterable[str], began: int, minutes: int, *, each: int = 10) -> SampleTables:
        """Add messages that are diverted although no send failed and no ping was sent, and their drain."""
        for entity in entities:
            for minute in range(minutes):
                at = began + minute * MINUTE
                self._add_event(at, entity, ActivityKind.DIVERTED, each)
                self.use(at, entity, OperationKind.SEND, Stage.BACKLOG_SEND, each)
            back = began + minutes * MINUTE
            self._add_event(back, entity, ActivityKind.MOVED, minutes * each)
            self._add_event(back, entity, ActivityKind.COMPLETED, minutes * each)
        return self

    def without_rows(self, since: int, until: int) -> SampleTables:
        """Remove the rows of whole hours."""
        hours = range(since, until, HOUR)
        for rows in (self.usage, self.latency):
            rows[:] = [row for row in rows if _us(row["hour"]) not in hours]
        return self

    def ending(self, at: int) -> SampleTables:
        """End the rows of the last hour at this time."""
        for row in self.usage:
            row["last_time"] = min(row["last_time"], moment(at))
        return self

    def _drain(self, entity: str, back: int, count: int, minutes: int) -> None:
        self._add_event(back, entity, ActivityKind.PING, 1)
        self._add_event(back + 5 * SECOND, entity, ActivityKind.MOVED, count)
        self._add_event(back + 5 * SECOND, entity, ActivityKind.COMPLETED, count)
        self.use(back // HOUR * HOUR, entity, OperationKind.COMPLETE, Stage.BACKLOG_RECEIVE, count)
        row = {"entity": entity, "state": "moved", "bucket": bucket_of(minutes * MINUTE // 2), "count": count}
        hour = (back - minutes * MINUTE) // HOUR * HOUR
        self.backlog_time.append({**_hour(hour), **row, "max_us": minutes * MINUTE})

    def _add_event(self, at: int, entity: str, kind: ActivityKind, count: int) -> None:
        self.activity.append(
            {
                "day": moment(at).date(),
                "minute": moment(at // MINUTE * MINUTE),
                "pairing": PAIRING,
                "entity": entity,
                "kind": kind.value,
                "count": count,
                "first_time": moment(at),
                "last_time": moment(at),
            }
        )

    def use(
        self,
        at: int,
        entity: str,
        kind: OperationKind,
        stage: Stage,
        count: int,
        *,
        rows: int | None = None,
        units: int | None = None,
    ) -> SampleTables:
        """Add a row of `usage` that covers its whole hour."""
        role = NamespaceRole.SECONDARY if stage.name.startswith("BACKLOG") else NamespaceRole.PRIMARY
        words = {"namespace": role, "operation": kind, "stage": stage, "outcome": Outcome.DONE}
        hour = at // HOUR * HOUR
        self.usage.append(
            {
                **_hour(hour),
                "pairing": PAIRING,
                "client": "client-1",
                "entity": entity,
                **{name: word_of(code) for name, code in words.items()},
                "rows": count if rows is None else rows,
                "count": count,
                "units": count if units is None else units,
                "bytes": 900 * count,
                "transferred": 0,
                "first_time": moment(hour),
                "last_time": moment(hour + HOUR - 1),
            }
        )
        return self

    def reconciled(self, entities: Iterable[str], evidence: str = "receivers", **words: int) -> SampleTables:
        """Add a reconciliation: `words` are for the first entity; the others are all ok."""
        self.is_reconciled = True
        for number, entity in enumerate(entities):
            counts = {"attempted": 1_000, "acknowledged": 1_000, "ok": 1_000, **(words if number == 0 else {})}
            self.verdict(entity, evidence, **counts)
        return self

    def verdict(self, entity: str, evidence: str = "receivers", day: int = 0, **words: int) -> SampleTables:
        """Add a row of `verdicts`."""
        self.is_reconciled = True
        counts = {word: words.get(word, 0) for word in (*WORDS, "before_receivers")}
        day_of = moment(START + day * DAY).date()
        self.verdicts.append({"day": day_of, "destination": entity, "evidence": evidence, **counts})
        return self

    def arrived(self, topic: str, subscription: str, messages: int, day: int = 0) -> SampleTables:
        day_of = moment(START + day * DAY).date()
        row = {"day": day_of, "destination": topic, "subscription": subscription, "messages": messages}
        self.arrivals.append(row)
        return self

    def anomaly(self, word: str, message_id: str, destination: str, at: int = START) -> SampleTables:
        self.anomalies.append(
            {
                "day": moment(at).date(),
                "word": word,
                "destination": destination,
                "message_id": message_id,
                "first_time": moment(at),
                "last_time": moment(at + SECOND),
                "sends": 1,
                "moves": 0,
                "arrivals": 0,
                "evidence": "receivers",
            }
        )
        return self

    def write(self, folder: Path | str) -> ResultFiles:
        """Write all tables as one generation."""
        files = ResultFiles(folder)
        for table in _TABLES:
            files.write(table, getattr(self, table.name))
        rows: dict[date, int] = {}
        for row in self.usage:
            rows[row["day"]] = rows.get(row["day"], 0) + row["rows"]
        read = [{"day": day, "file": "a.parquet", "status": "read", "rows": count} for day, count in rows.items()]
        files.inputs([*read, *({**file._asdict(), "rows": 0} for file in self.left_out)])
        files.generation(reconciled=self.is_reconciled, started=moment(START + self.days * DAY))
        return files


def moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def _us(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def _hour(at: int) -> dict[str, Any]:
    return {"day": moment(at).date(), "hour": moment(at // HOUR * HOUR)}
