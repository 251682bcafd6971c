"""Sum up the tables of reconciliation by destination, and note what the figures do not answer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from twinbus.ledger.schema import pa
from twinbus.report.reconciliation_summary import EntityVerdict, Summary
from twinbus.tables.verdict import NAMESPACE, RECEIVERS, WORDS

from .render.formats import number, plural
from .report_inputs import CLOCK, LATE, UNREADABLE, ReportTables

#: Word of anomalies for operations that came after the horizon of their message.
LATE_WORD = "late"


def summary_of(tables: ReportTables) -> Summary | None:
    """Return the result for the whole ledger; None if the tables of reconciliation are not current."""
    if tables.verdicts is None or tables.arrivals is None or tables.anomalies is None:
        return None
    entities, before_receivers = _entities(tables.verdicts, tables.arrivals)
    statuses = tables.inputs.statuses
    dropped = tables.facts.total("dropped")
    notes = notes_of(
        entities,
        before_receivers,
        cancelled=tables.facts.total("cancelled"),
        dropped=dropped,
        left_out=statuses,
        late_messages=tables.anomalies.words[LATE_WORD],
        horizon_days=tables.generation.horizon_days,
    )
    return Summary(entities, dropped, statuses.total(), notes, statuses[UNREADABLE])


def _entities(verdicts: pa.Table, arrivals: pa.Table) -> tuple[list[EntityVerdict], dict[str, int]]:
    """Return the sums of each destination over all days, and the messages accepted before its receivers recorded."""
    words: defaultdict[str, Counter[str]] = defaultdict(Counter)
    names: dict[str, str] = {}
    by_receivers: set[str] = set()
    for row in verdicts.to_pylist():
        key = _key(row["destination"], names)
        words[key].update({word: row[word] or 0 for word in (*WORDS, "before_receivers")})
        if row["evidence"] == RECEIVERS:
            by_receivers.add(key)
    subscriptions: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in arrivals.to_pylist():
        subscriptions[_key(row["destination"], names)][_key(row["subscription"], names)] += row["messages"]
    entities = [
        EntityVerdict(
            names[key],
            RECEIVERS if key in by_receivers else NAMESPACE,
            {word: counts[word] for word in WORDS},
            dict(sorted((names[path], count) for path, count in subscriptions[key].items() if count)),
        )
        for key, counts in sorted(words.items())
    ]
    early = {names[key]: counts["before_receivers"] for key, counts in words.items() if counts["before_receivers"]}
    return entities, early


def _key(path: str, names: dict[str, str]) -> str:
    """Return a path in lower case; `names` keeps one spelling, which does not depend on the order of rows."""
    key = path.lower()
    names[key] = min(path, names.get(key, path))
    return key


def notes_of(
    entities: Sequence[EntityVerdict],
    before_receivers: Mapping[str, int],
    *,
    cancelled: int,
    dropped: int,
    left_out: Counter[str],
    late_messages: int,
    horizon_days: int,
) -> list[str]:
    """Return sentences that say what the figures do not answer, and why.

    Args:
        before_receivers: Messages of each destination that were accepted before its receivers began to record.
        cancelled: Requests to cancel scheduled messages.
        dropped: Rows that the ledger reports as missing.
        left_out: Number of ledger files whose rows are not in the tables, by status.
        late_messages: Messages with operations after their horizon.
        horizon_days: The horizon.
    """
    notes = []
    unseen = [verdict.entity for verdict in entities if verdict.evidence == NAMESPACE]
    if unseen:
        notes.append(
            f"{_named(unseen)}: no receiver records there (record_receives), so a message counts as arrived when the"
            " namespace accepted it. Not known: whether a receiver got it, whether attempts without an answer arrived"
            " as well, and what other senders sent."
        )
    if before_receivers:
        notes.append(
            f"{_named(sorted(before_receivers))}: {sum(before_receivers.values())} messages were accepted before"
            " receivers began to record. They count as arrived because the namespace accepted them."
        )
    if sum(verdict.words.get("in_flight", 0) for verdict in entities):
        notes.append(
            "Messages in flight were accepted and may still arrive. If backlog and destinations are empty, run the"
            " pipeline with --drained: then they count as lost."
        )
    if cancelled:
        notes.append(
            f"Scheduled messages were cancelled ({cancelled} requests). The ledger does not know which ones: they count"
            " as in flight, or with --drained as lost."
        )
    if dropped:
        notes.append(f"The ledger lacks {dropped} rows, so up to {dropped} messages may have the wrong word.")
    if left_out[UNREADABLE]:
        notes.append(
            f"{left_out[UNREADABLE]} files of the ledger could not be read. Their rows are missing here, so the"
            " verdict is unknown. The next run reads them again."
        )
    if left_out[LATE]:
        files = plural(
            left_out[LATE],
            "file of the ledger came after its day had expired",
            "files of the ledger came after their days had expired",
        )
        notes.append(f"{files}: the rows are not in the tables, and not billed.")
    if left_out[CLOCK]:
        files = plural(left_out[CLOCK], "file of the ledger has", "files of the ledger have")
        notes.append(f"{files} rows outside a plausible clock window: they are not in the tables, and not billed.")
    if late_messages:
        messages = plural(late_messages, "message")
        notes.append(
            f"Operations of {messages} came more than {number(horizon_days)} days after the first ones: the messages"
            " keep their words, and are listed as late in the table anomalies."
        )
    return notes


def _named(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
