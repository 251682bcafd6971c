"""Writes the pipeline's tables with DuckDB, for `bench.pipeline`: the same rows and columns, as Parquet.

Does not handle messages with operations beyond the horizon, which generated ledgers do not have, and repeated rows.
"""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum
from pathlib import Path

import duckdb

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.spark.transformations.message_days import NO_NUMBER
from twinbus.tables.billed_units import BILLED, NOT_BILLED_STAGES, SIZED, SIZED_TOGETHER, UNIT_BYTES
from twinbus.tables.table_schemas import ANOMALIES, MESSAGE_DAYS, USAGE, VERDICTS, Table
from twinbus.tables.verdict import ANOMALIES as ANOMALY_WORDS
from twinbus.tables.verdict import WORDS

_TYPES = {"string": "varchar", "timestamp": "timestamptz"}


class DuckTables:
    """The tables of one ledger.

    Args:
        memory: DuckDB's memory limit, such as `8GB`.
    """

    def __init__(self, ledger: Path, results: Path, *, threads: int, memory: str) -> None:
        self._rows = f"read_parquet('{ledger}/*/*.parquet', hive_partitioning = true)"
        self._results = results
        results.mkdir(parents=True, exist_ok=True)
        temporary = str(results / "_temp")
        self._duck = duckdb.connect(
            config={
                "threads": threads,
                "memory_limit": memory,
                "temp_directory": temporary,
                "preserve_insertion_order": False,
            }
        )

    def close(self) -> None:
        self._duck.close()

    def usage(self) -> None:
        self._write(USAGE, _USAGE.format(rows=self._rows))

    def reconcile(self, horizon: int, patience: timedelta, drained: bool = False) -> None:
        """Write `message_days`, `verdicts` and `anomalies`. Needs `usage`."""
        self._write(MESSAGE_DAYS, _MESSAGE_DAYS.format(rows=self._rows))
        names = {table.name: self._read(self._results, table) for table in (USAGE, MESSAGE_DAYS)}
        for name in ("spelling", "reported", "counted"):
            values = {**names, "patience": patience // timedelta(microseconds=1)}
            sql = _STEPS[name].format(**values, horizon=horizon, drained=drained)
            self._duck.execute(f"create or replace temp table {name} as {sql}")
        [(beyond,)] = self._duck.execute("select count(*) from counted where is_beyond").fetchall()
        if beyond:
            raise ValueError("expected no operations beyond the horizon; these queries do not handle them")
        self._duck.execute(_MARK_LATE.format(**names))
        self._write(VERDICTS, _VERDICTS)
        self._write(ANOMALIES, _ANOMALIES)

    def fingerprint(self, results: Path, table: Table) -> tuple[int, int]:
        """The number of rows of a table and the sum of their hashes, independent of the order."""
        columns = ", ".join(f'"{column.name}"::{_TYPES.get(column.type, column.type)}' for column in table.columns)
        sql = f"select count(*), sum(hash({columns})::hugeint) from {self._read(results, table)}"
        [(rows, total)] = self._duck.execute(sql).fetchall()
        return rows, total

    def words(self, results: Path) -> dict[str, dict[str, int]]:
        """The number of messages per verdict, by destination."""
        sums = ", ".join(f"sum({word})::bigint" for word in WORDS)
        sql = f"select destination, {sums} from {self._read(results, VERDICTS)} group by 1"
        return {row[0]: dict(zip(WORDS, row[1:], strict=True)) for row in self._duck.execute(sql).fetchall()}

    def _write(self, table: Table, sql: str) -> None:
        columns = ", ".join(
            f'"{column.name}"::{_TYPES.get(column.type, column.type)} as "{column.name}"' for column in table.columns
        )
        target = f"'{self._results / table.name}' (format parquet, partition_by (day), overwrite true)"
        self._duck.execute(f"copy (select {columns} from ({sql})) to {target}")

    @staticmethod
    def _read(results: Path, table: Table) -> str:
        return f"read_parquet('{results / table.name}/*/*.parquet', hive_partitioning = true)"


def _any_of(column: str, *codes: IntEnum) -> str:
    return f"{column} in ({', '.join(str(int(code)) for code in codes)})"


def _word(column: str, codes: type[IntEnum]) -> str:
    cases = " ".join(f"when {int(code)} then '{code.name.lower()}'" for code in codes)
    return f"case {column} {cases} else 'code_' || {column} end as {column}"


_SIZED_UNITS = f"greatest(1, (bytes + {UNIT_BYTES - 1}) // {UNIT_BYTES})"
_USAGE = f"""
select day, to_timestamp(hour * 3600) as hour, pairing, client, {_word("namespace", NamespaceRole)}, entity,
    {_word("operation", OperationKind)}, {_word("stage", Stage)}, {_word("outcome", Outcome)}, rows, count, units,
    bytes,
    case when namespace = {NamespaceRole.SECONDARY:d} and {_any_of("operation", *SIZED, *SIZED_TOGETHER)}
        and {_any_of("outcome", *BILLED)} then bytes else 0 end as transferred, first_time, last_time
from (
    select day, epoch_us(ts) // 3600000000 as hour, pairing, client, namespace,
        coalesce(destination, entity) as entity, operation, stage, outcome, count(*) as rows, sum(count) as count,
        sum(case when not {_any_of("outcome", *BILLED)} or {_any_of("stage", *NOT_BILLED_STAGES)} then 0
            when {_any_of("operation", *SIZED_TOGETHER)} then {_SIZED_UNITS}
            when {_any_of("operation", *SIZED)} then greatest({_SIZED_UNITS}, count)
            else greatest(1, count) end) as units,
        sum(bytes) as bytes, min(ts) as first_time, max(ts) as last_time
    from {{rows}} group by all)
"""

_IS_DONE = f"outcome = {Outcome.DONE:d}"
_IS_SENT, _IS_MOVE = _any_of("stage", Stage.DIRECT, Stage.BACKLOG_SEND), f"stage = {Stage.PRIMARY_SEND:d}"
_IN_BACKLOG = f"stage = {Stage.BACKLOG_RECEIVE:d}"
_BACKLOG_KINDS = (OperationKind.RECEIVE, OperationKind.COMPLETE, OperationKind.DEAD_LETTER)
_IS_DEAD_OUTCOME = _any_of("outcome", Outcome.DONE, Outcome.PLANNED)
_IS_DEAD = f"{_IN_BACKLOG} and operation = {OperationKind.DEAD_LETTER:d} and {_IS_DEAD_OUTCOME}"
_IS_ACCEPTED = f"({_IS_MOVE} or stage = {Stage.DIRECT:d}) and {_IS_DONE}"
_SUMS = ("sends", "acknowledged", "accepted", "moves", "held", "completed", "dead", "scheduled", "receives")
_MINIMA = ("lowest_number", "first_time", "diverted_time", "moved_time")
_MAXIMA = ("highest_number", "last_time", "accepted_time", "dead_time")


def _merged(*names: str) -> str:
    """Aggregate expressions that merge the facts of several rows."""
    how = {**dict.fromkeys(_SUMS, "sum"), **dict.fromkeys(_MINIMA, "min"), **dict.fromkeys(_MAXIMA, "max")}
    return ", ".join(f"{how[name]}({name}) as {name}" for name in names or how)


_MESSAGE_DAYS = f"""
with events as (
    select *, lower(entity) as path, instr(path, '/subscriptions/') as cut,
        stage = {Stage.PRIMARY_RECEIVE:d} and operation = {OperationKind.RECEIVE:d} and {_IS_DONE}
            and not contains(entity, '/$') as is_arrival
    from {{rows}} where message_id is not null),
facts as (
    select day, message_key, message_id,
        case when not is_arrival then lower(coalesce(destination, entity))
            when cut > 0 then path[:cut - 1] else path end as destination,
        case when is_arrival and cut > 0 then path end as subscription,
        case when is_arrival then coalesce(sequence_number, {NO_NUMBER}) end as number,
        count(*) filter ({_IS_SENT}) as sends,
        count(*) filter ({_IS_SENT} and {_IS_DONE}) as acknowledged,
        count(*) filter ({_IS_ACCEPTED}) as accepted,
        count(*) filter ({_IS_MOVE} and {_IS_DONE}) as moves,
        count(*) filter ({_IN_BACKLOG} or {_IS_MOVE}) as held,
        count(*) filter ({_IN_BACKLOG} and operation = {OperationKind.COMPLETE:d} and {_IS_DONE}) as completed,
        count(*) filter ({_IS_DEAD}) as dead,
        count(*) filter (operation = {OperationKind.SCHEDULE:d}) as scheduled,
        count(*) filter (is_arrival) as receives,
        min(number) as lowest_number, max(number) as highest_number, min(ts) as first_time, max(ts) as last_time,
        max(ts) filter ({_IS_ACCEPTED}) as accepted_time,
        min(ts) filter (stage = {Stage.BACKLOG_SEND:d} and {_IS_DONE}) as diverted_time,
        min(ts) filter ({_IS_MOVE} and {_IS_DONE}) as moved_time,
        max(ts) filter ({_IS_DEAD} and {_IS_DONE}) as dead_time
    from events
    where is_arrival or ({_IS_SENT} and {_any_of("operation", OperationKind.SEND, OperationKind.SCHEDULE)})
        or ({_IS_MOVE} and operation = {OperationKind.SEND:d})
        or ({_IN_BACKLOG} and {_any_of("operation", *_BACKLOG_KINDS)})
    group by all)
select day, message_key, message_id, destination, subscription, {_merged()}, count(number) as arrivals
from facts group by all
"""

_SPELLING = """
select lower(entity) as path, min(entity) as spelt
from (select entity from {usage} union all
    select entity[:instr(lower(entity), '/subscriptions/') - 1]
    from {usage} where contains(lower(entity), '/subscriptions/'))
group by 1
"""

_REPORTED = """
with first_days as (select distinct day as first_day from {message_days}),
used as (select * from {usage} join first_days on day <= first_day + {horizon} - 1),
clocks as (select first_day, client, max(last_time) as last_time from used group by all),
second as (select first_day, max(last_time, 2)[2] as second from clocks group by 1),
spans as (
    select first_day, split_part(lower(entity), '/subscriptions/', 1) as destination,
        min(first_time) as since, max(last_time) as until
    from used
    where stage = 'primary_receive' and operation = 'receive' and outcome = 'done' and not contains(entity, '/$')
    group by all)
select first_day, destination, since, least(until, coalesce(second, until)) as until
from spans join second using (first_day)
"""

_DETAILS = ("message_id", "message_key", "first_time", "last_time", "sends", "moves")
_COUNTED = f"""
with places as (
    select message_key, message_id, destination, subscription, min(day) as earliest_day, max(day) as latest_day,
        {_merged()}, sum(arrivals) as arrivals
    from {{message_days}} group by 1, 2, 3, 4),
messages as (
    select message_key, message_id, destination, min(earliest_day) as first_day, max(latest_day) as last_day,
        {_merged()},
        max(case when receives = 0 then 0 when lowest_number = highest_number then 1 else greatest(arrivals, 2) end)
            as received
    from places group by 1, 2, 3),
known as (
    select messages.*, last_day - first_day >= {{horizon}} as is_beyond, since is not null as has_receivers,
        coalesce(has_receivers and (received > 0 or accepted_time is null or accepted_time >= since), false)
            as by_receivers,
        coalesce({{drained}} or (epoch_us(until) >= epoch_us(accepted_time) + {{patience}} and scheduled = 0), false)
            or (completed > 0 and accepted = 0) as is_over,
        case when by_receivers then received else accepted end as arrivals,
        sends > 0 or held > 0 as is_attempted, acknowledged > 0 or held > 0 as is_known,
        dead > 0 and accepted = 0 as is_dead, arrivals = 0 and is_known and not is_dead as is_missing
    from messages left join reported using (first_day, destination)),
judged as (
    select * exclude (acknowledged), is_attempted as attempted, acknowledged > 0 as acknowledged,
        is_attempted and arrivals > 0 as ok, is_missing and is_over as lost,
        not is_attempted and arrivals > 0 as unexpected, arrivals > 1 as duplicated,
        is_attempted and arrivals > 0 and acknowledged = 0 as recovered, is_missing and not is_over as in_flight,
        arrivals = 0 and is_dead as dead_lettered, arrivals = 0 and sends > 0 and not is_known as unconfirmed,
        lost or unexpected or duplicated or recovered or in_flight or dead_lettered as is_listed
    from known)
select first_day, destination, has_receivers, by_receivers, is_beyond, false as is_late, {", ".join(WORDS)},
    {", ".join(f"case when is_listed then judged.{name} end as {name}" for name in (*_DETAILS, "arrivals"))},
    count(*) as messages
from judged group by all
"""
_STEPS = {"spelling": _SPELLING, "reported": _REPORTED, "counted": _COUNTED}

_MARK_LATE = """
update counted set is_late = true from {message_days} as older
where unexpected and older.message_key = counted.message_key and older.message_id = counted.message_id
    and older.destination = counted.destination and older.day < counted.first_day
"""

_VERDICTS = f"""
select first_day as day, coalesce(spelt, destination) as destination,
    case when bool_or(has_receivers) then 'receivers' else 'namespace' end as evidence,
    {", ".join(f"coalesce(sum(messages) filter ({word}), 0) as {word}" for word in WORDS)},
    coalesce(sum(messages) filter (has_receivers and not by_receivers), 0) as before_receivers
from counted left join spelling on destination = path where not is_late group by first_day, destination, spelt
"""

_ANOMALIES = f"""
select first_day as day, word, coalesce(spelt, destination) as destination, message_id, first_time, last_time, sends,
    moves, arrivals, case when by_receivers then 'receivers' else 'namespace' end as evidence
from (
    select *, unnest(case when is_late then ['late'] else list_filter(
        [{", ".join(f"case when {word} then '{word}' end" for word in ANOMALY_WORDS)}], lambda word: word is not null)
        end) as word
    from counted where message_id is not null)
left join spelling on destination = path
"""
