"""Rows of every result table for docs/how-to/query-the-tables.md, and what each of its queries must find in them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from tests.tables.result_files import ResultFiles

from twinbus.ledger.schema import message_key
from twinbus.tables.table_schemas import (
    ACTIVITY,
    ANOMALIES,
    ARRIVALS,
    BACKLOG_TIME,
    LATENCY,
    MESSAGE_DAYS,
    USAGE,
    VERDICTS,
    Column,
    Table,
)

DAY = date(2026, 11, 16)
Row = dict[str, Any]


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 11, 16, hour, minute, tzinfo=UTC)


def _row(table: Table, **values: Any) -> Row:
    """A row of the day; counts that are not given are 0."""
    return {column.name: _nothing(column) for column in table.columns} | {"day": DAY} | values


def _nothing(column: Column) -> int | None:
    return 0 if column.type in ("int", "bigint") and not column.name.endswith("_number") else None


def _usage(client: str, entity: str, operation: str, stage: str, last: datetime, **values: Any) -> Row:
    given = {"hour": at(12), "pairing": "contoso", "namespace": "primary", "outcome": "done", "first_time": at(12)}
    given |= {"client": client, "entity": entity, "operation": operation, "stage": stage, "last_time": last}
    return _row(USAGE, **given | values)


def _message(message_id: str, destination: str = "orders", **values: Any) -> Row:
    given = {"message_key": message_key(message_id), "first_time": at(12), "last_time": at(12)}
    return _row(MESSAGE_DAYS, **given | {"message_id": message_id, "destination": destination} | values)


def _arrived(*numbers: int, **values: Any) -> Row:
    counts = {"receives": len(numbers), "arrivals": len(set(numbers))}
    return counts | {"lowest_number": min(numbers), "highest_number": max(numbers)} | values


_SENT = {"sends": 1, "acknowledged": 1, "accepted": 1, "accepted_time": at(12)}

ROWS: dict[Table, Iterable[Row]] = {
    USAGE: [
        _usage("app", "Orders", "send", "direct", at(13, 30), rows=6, count=6, units=6),
        _usage("app", "Orders", "send", "direct", at(12, 10), rows=2, count=2, outcome="unknown", units=2),
        _usage("app", "Orders", "send", "backlog_send", at(12, 10), rows=1, count=1, namespace="secondary", units=1),
        _usage("app", "bills", "send", "direct", at(12), rows=1, count=1, units=1),
        _usage("app", "", "dropped", "ledger", at(12), rows=1, count=5, namespace="neither", outcome="failed"),
        _usage("worker", "orders", "receive", "primary_receive", at(14), rows=5, count=5, units=5),
        _usage("worker", "news/Subscriptions/all", "receive", "primary_receive", at(14), rows=2, count=2, units=2),
        # A clock that is hours fast, on its own.
        _usage("fast", "orders", "receive", "primary_receive", at(20), rows=1, count=1, units=1),
    ],
    LATENCY: [
        _row(LATENCY, hour=at(12), entity="orders", stage="direct", operation="send", bucket=80, count=98),
        _row(LATENCY, hour=at(12), entity="orders", stage="direct", operation="send", bucket=100, count=2),
    ],
    BACKLOG_TIME: [
        _row(BACKLOG_TIME, hour=at(12), entity="orders", state="moved", bucket=190, count=2, max_us=75_000_000),
        _row(BACKLOG_TIME, hour=at(12), entity="orders", state="waiting", bucket=None, count=1),
    ],
    ACTIVITY: [
        _row(ACTIVITY, minute=at(12), pairing="contoso", entity="orders", kind="diverted", count=3),
        _row(ACTIVITY, minute=at(12, 1), pairing="contoso", entity="orders", kind="diverted", count=2),
        _row(ACTIVITY, minute=at(12, 1), pairing="contoso", entity="orders", kind="moved", count=1),
        _row(ACTIVITY, minute=at(12, 2), pairing="contoso", entity="orders", kind="expired", count=1),
        _row(ACTIVITY, minute=at(12, 2), pairing="contoso", entity="orders", kind="ping", count=9),
    ],
    MESSAGE_DAYS: [
        _message("arrived", **_SENT | _arrived(1)),
        _message("redelivered", **_SENT | _arrived(2, 2)),
        _message("twice", **_SENT | _arrived(3, 4)),
        _message("gone", **_SENT),
        _message("young", **_SENT | {"accepted_time": at(13, 30)}),
        _message("order-7", **_SENT | {"sends": 2} | _arrived(5)),
        _message("foreign", **_arrived(6)),
        _message("unsure", sends=1, **_arrived(7)),
        _message("refused", sends=1),
        _message("waiting", sends=1, acknowledged=1, held=1),
        _message("dead", sends=1, acknowledged=1, held=1, dead=1),
        _message("swallowed", sends=1, acknowledged=1, held=1, completed=1),
        _message("unseen", "bills", **_SENT),
        _message("news-1", "news", **_SENT),
        _message("news-1", "news", subscription="news/subscriptions/all", **_arrived(1)),
        _message("news-1", "news", subscription="news/subscriptions/some", **_arrived(1)),
    ],
    VERDICTS: [
        _row(VERDICTS, destination="orders", evidence="receivers", attempted=11, acknowledged=9, ok=5, lost=2),
        _row(VERDICTS, destination="bills", evidence="namespace", attempted=1, acknowledged=1, ok=1),
    ],
    ARRIVALS: [
        _row(ARRIVALS, destination="news", subscription="news/Subscriptions/all", messages=1),
        _row(ARRIVALS, destination="news", subscription="news/Subscriptions/some", messages=1),
    ],
    ANOMALIES: [
        _row(ANOMALIES, word="lost", destination="orders", message_id="gone", sends=1, evidence="receivers"),
        _row(ANOMALIES, word="duplicated", destination="orders", message_id="twice", sends=1, evidence="receivers"),
    ],
}
INPUTS_ROWS = [
    {"day": DAY, "file": "a.parquet", "status": "read", "rows": 20},
    {"day": DAY, "file": "b.parquet", "status": "unreadable", "reason": "it is damaged", "rows": 0},
    {"day": DAY, "file": "c.parquet", "status": "replaced", "reason": "its rows are in a.parquet", "rows": 0},
]

#: The words of every message by the view `messages`.
MESSAGE_WORDS = {
    "arrived": "attempted acknowledged ok",
    "redelivered": "attempted acknowledged ok",
    "twice": "attempted acknowledged ok duplicated",
    "gone": "attempted acknowledged lost",
    # Its receivers went on for half an hour by all clocks but one.
    "young": "attempted acknowledged in_flight",
    "order-7": "attempted acknowledged ok",
    "foreign": "unexpected",
    "unsure": "attempted ok recovered",
    "refused": "attempted unconfirmed",
    "waiting": "attempted acknowledged in_flight",
    "dead": "attempted acknowledged dead_lettered",
    "swallowed": "attempted acknowledged lost",
    "unseen": "attempted acknowledged ok",
    "news-1": "attempted acknowledged ok",
}

#: What the other queries find, by the first words of their heading; times as hours and minutes.
FOUND: dict[str, list[tuple[Any, ...]]] = {
    "Are the tables complete": [(1, "complete", "00:00", "00:01", True, 14, "0.1.0")],
    "Which files of the ledger": [(DAY, "b.parquet", "unreadable", "it is damaged")],
    "Did everything arrive": [
        ("orders", "receivers", 11, 9, 5, 2, 0, 0, 0, 0, 0),
        ("bills", "namespace", 1, 1, 1, 0, 0, 0, 0, 0, 0),
    ],
    "How many rows does the ledger": [(DAY, "contoso", "app", 5)],
    "Which messages of a day were lost": [("orders", "gone", None, None, 1, 0, "receivers")],
    "What is known of one message": [(DAY, "orders", None, 2, 1, 1, 0, 1, 1, "12:00", "12:00")],
    "One row per message": [],
    "Which messages were sent more": [("orders", "order-7", 2)],
    "How many messages of a topic": [
        ("news", "news/Subscriptions/all", 1),
        ("news", "news/Subscriptions/some", 1),
    ],
    "What is billed, by entity": [
        ("Orders", 9, 1, 0),
        ("orders", 6, 0, 0),
        ("news/Subscriptions/all", 2, 0, 0),
        ("bills", 1, 0, 0),
        ("", 0, 0, 0),
    ],
    "How slow is the slowest": [("orders", "12:00", 100, 14.5)],
    "How deep was the backlog": [("12:00", 3), ("12:01", 4), ("12:02", 3)],
    "How long were diverted": [("orders", "moved", 2, 75.0), ("orders", "waiting", 1, 0.0)],
    "When did sends fail": [("12:00", "Orders", "primary", "unknown", 2)],
}


def write_results(folder: Path) -> None:
    """Write all tables to `ledger-results` in a folder."""
    results = ResultFiles(folder / "ledger-results")
    for table, rows in ROWS.items():
        results.write(table, rows)
    results.inputs(INPUTS_ROWS)
    results.generation()


def plain(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    """Rows of a query as `FOUND` has them, whatever the engine."""
    return [tuple(_plain(value) for value in row) for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return f"{moment:%H:%M}"
    return value


def blocks(page: str, language: str) -> list[tuple[str, str]]:
    """The blocks of a language, each with the heading above it."""
    title, found, inside = "", [], None
    for line in page.splitlines():
        if inside is None and line.startswith("#"):
            title = line.lstrip("# ")
        if inside is None and line == f"```{language}":
            inside = []
        elif inside is not None and line == "```":
            found.append((title, "\n".join(inside)))
            inside = None
        elif inside is not None:
            inside.append(line)
    return found


def expected(title: str) -> list[tuple[Any, ...]]:
    """What the query below a heading must find."""
    (rows,) = (rows for start, rows in FOUND.items() if title.startswith(start))
    return rows
