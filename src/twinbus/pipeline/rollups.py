"""How rows of the ledger become rollups, with arrays: each table of rows is summed up, and the sums are summed up.

Their columns are in `twinbus.pipeline.tables`. What a group is made of becomes one number for each row, for one number
is grouped many times as fast as eight columns are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from twinbus.ledger.layout import DAY_US
from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.ledger.schema import pa
from twinbus.syphon.moves import EXPIRED

from .codes import Array, codes_of, table_of
from .tables import HOUR_US, MINUTE_US, ROLLUP_SCHEMAS, Happening, bucket_of
from .usage import BILLED, NOT_BILLED_STAGES, SIZED, SIZED_TOGETHER, UNIT_BYTES

#: What is read of the ledger for each rollup, beside what all of them need.
_COLUMNS = {
    "usage": ("pairing", "client", "namespace", "bytes", "count"),
    "latency": ("latency_us",),
    "activity": ("pairing", "error"),
}
_FOR_ALL = ("ts", "entity", "destination", "operation", "stage", "outcome")
#: The rollups whose hours are functions of the ledger's rows of those hours.
ROLLUPS = tuple(_COLUMNS)
#: Columns of texts that repeat, which Parquet keeps as numbers.
ENCODED = ("pairing", "client", "entity", "destination", "error")

#: Rows of these are counted by the minute.
_HAPPENINGS: dict[Happening, tuple[Stage, tuple[OperationKind, ...], tuple[Outcome, ...]]] = {
    Happening.FAILED_SEND: (
        Stage.DIRECT,
        (OperationKind.SEND, OperationKind.SCHEDULE),
        (Outcome.FAILED, Outcome.UNKNOWN),
    ),
    Happening.DIVERTED: (Stage.BACKLOG_SEND, (OperationKind.SEND,), (Outcome.DONE,)),
    Happening.FAILED_DIVERT: (Stage.BACKLOG_SEND, (OperationKind.SEND,), (Outcome.FAILED, Outcome.UNKNOWN)),
    Happening.PING: (Stage.PING, (OperationKind.PING,), (Outcome.DONE,)),
    Happening.FAILED_PING: (Stage.PING, (OperationKind.PING,), (Outcome.FAILED, Outcome.UNKNOWN)),
    Happening.MOVED: (Stage.PRIMARY_SEND, (OperationKind.SEND,), (Outcome.DONE,)),
    Happening.FAILED_MOVE: (Stage.PRIMARY_SEND, (OperationKind.SEND,), (Outcome.FAILED, Outcome.UNKNOWN)),
    Happening.COMPLETED: (Stage.BACKLOG_RECEIVE, (OperationKind.COMPLETE,), (Outcome.DONE,)),
    Happening.POISON: (Stage.BACKLOG_RECEIVE, (OperationKind.DEAD_LETTER,), (Outcome.DONE,)),
    Happening.DEFERRED: (Stage.BACKLOG_RECEIVE, (OperationKind.DEFER,), (Outcome.DONE,)),
    Happening.RENEWED: (Stage.BACKLOG_RECEIVE, (OperationKind.RENEW,), (Outcome.DONE,)),
}


def _happening(stage: Stage, operation: OperationKind, outcome: Outcome) -> int:
    for kind, (where, operations, outcomes) in _HAPPENINGS.items():
        if stage is where and operation in operations and outcome in outcomes:
            return int(kind)
    return 0


_KINDS = table_of(_happening, np.int8)
_IS_BILLED = table_of(lambda stage, _, outcome: outcome in BILLED and stage not in NOT_BILLED_STAGES)
_IS_SIZED = table_of(lambda _, operation, __: operation in SIZED)
_IS_SIZED_TOGETHER = table_of(lambda _, operation, __: operation in SIZED_TOGETHER)
#: `usage.is_transferred`, if it is the secondary's.
_IS_CARRIED = table_of(lambda _, operation, outcome: operation in SIZED | SIZED_TOGETHER and outcome in BILLED)

#: How the columns of a rollup are put together that its groups are not made of.
_SUMS: Mapping[str, Mapping[str, str]] = {
    "usage": dict.fromkeys(("rows", "count", "units", "bytes", "transferred"), "sum"),
    "latency": {"count": "sum", "max_us": "max"},
    "activity": {"count": "sum", "first_us": "min", "last_us": "max"},
}


def columns_of(rollups: Iterable[str]) -> list[str]:
    """What must be read of the ledger for these."""
    return [*dict.fromkeys([*_FOR_ALL, *(column for name in rollups for column in _COLUMNS[name])])]


class Rolling:
    """Rollups of the rows that are added."""

    def __init__(self, rollups: Sequence[str] = ROLLUPS) -> None:
        self._parts: dict[str, list[pa.Table]] = {name: [ROLLUP_SCHEMAS[name].empty_table()] for name in rollups}

    def add(self, rows: pa.Table) -> None:
        """Count rows of one day, a row group at most, with `columns_of` and texts of `ENCODED` as numbers."""
        if not len(rows):
            return
        read = _Rows(rows)
        for name, parts in self._parts.items():
            parts.append(_MADE[name](read))

    def keep(self, rollup: str, made: pa.Table) -> None:
        """Take what was made before, of other hours."""
        self._parts[rollup].append(made)

    def tables(self) -> dict[str, pa.Table]:
        """The rollups, in order."""
        return {name: _merged(name, parts) for name, parts in self._parts.items()}


class _Rows:
    """Columns of a table, as arrays, made when they are asked for."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self.code = codes_of(rows)
        us: Array = rows["ts"].cast(pa.int64()).to_numpy()
        self.us = us
        #: When the day of the rows began.
        self.day_us = int(us[0]) // DAY_US * DAY_US
        self.entities, self.entity = self._entities()

    def __getitem__(self, name: str) -> Array:
        found: Array = self._rows[name].to_numpy()
        return found

    def known(self, name: str) -> tuple[Array, Array]:
        """A column of numbers, and which of them are there."""
        column = self._rows[name]
        return column.fill_null(0).to_numpy(), column.is_valid().to_numpy()

    def encoded(self, name: str) -> tuple[list[str], Array]:
        """The texts of a column, and which of them a row has; -1 for none."""
        column = self._rows[name].unify_dictionaries().combine_chunks()
        # A column that a file lacks is not encoded.
        column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        return column.dictionary.to_pylist(), column.indices.fill_null(-1).to_numpy()

    def _entities(self) -> tuple[list[str], Array]:
        """As `usage_of` has it: a diverted message costs on account of where it goes, not of the backlog queue."""
        (asked, entity), (wanted, destination) = self.encoded("entity"), self.encoded("destination")
        numbers = {name: number for number, name in enumerate(dict.fromkeys([*asked, *wanted]))}
        of_asked, of_wanted = (np.array([*(numbers[one] for one in names), 0], np.int32) for names in (asked, wanted))
        return list(numbers), np.where(destination >= 0, of_wanted[destination], of_asked[entity])

    def begin_of(self, length_us: int) -> Array:
        """Which hour or minute of its day a row belongs to."""
        return (self.us - self.day_us) // length_us


def _usage(rows: _Rows) -> pa.Table:
    """What is billed, by the hour."""
    (pairings, pairing), (clients, client) = rows.encoded("pairing"), rows.encoded("client")
    hour, namespace, size = rows.begin_of(HOUR_US), rows["namespace"], rows["bytes"]
    codes = {name: rows[name] for name in ("operation", "stage", "outcome")}
    groups = _Groups(
        [
            (hour, DAY_US // HOUR_US),
            (pairing, len(pairings)),
            (client, len(clients)),
            (rows.entity, len(rows.entities)),
            *((one.view(np.uint8), 256) for one in (namespace, *codes.values())),
        ],
        sums={"count": rows["count"], "units": _units(rows, size), "bytes": size},
    )
    # What a row is, all rows of its group are: so it is asked once for each group.
    code = groups.of(rows.code)
    is_transferred = _IS_CARRIED[code] & (groups.of(namespace) == int(NamespaceRole.SECONDARY))
    return _table(
        "usage",
        hour_us=groups.of(hour) * HOUR_US + rows.day_us,
        pairing=_taken(pairings, groups.of(pairing)),
        client=_taken(clients, groups.of(client)),
        namespace=groups.of(namespace),
        entity=_taken(rows.entities, groups.of(rows.entity)),
        **{name: groups.of(one) for name, one in codes.items()},
        rows=groups.sizes,
        count=groups["count", "sum"],
        units=np.where(_IS_BILLED[code], groups["units", "sum"], 0),
        bytes=groups["bytes", "sum"],
        transferred=np.where(is_transferred, groups["bytes", "sum"], 0),
    )


def _units(rows: _Rows, size: Array) -> Array:
    """`usage.billed_units` of rows that are billed, without the copies of topics."""
    count, together = rows["count"], _IS_SIZED_TOGETHER[rows.code]
    if size.max(initial=0) <= UNIT_BYTES:  # as nearly always: then no message has more than one unit
        return np.where(together, 1, np.maximum(1, count))
    sized = np.maximum(1, (size + (UNIT_BYTES - 1)) // UNIT_BYTES)
    by_message = np.maximum(np.where(_IS_SIZED[rows.code], sized, 1), count)
    return np.where(together, sized, by_message)


def _latency(rows: _Rows) -> pa.Table:
    """How long it took, by the hour."""
    us, is_known = rows.known("latency_us")
    chosen = np.flatnonzero((rows["outcome"] == int(Outcome.DONE)) & is_known)
    hour, entity = rows.begin_of(HOUR_US)[chosen], rows.entity[chosen]
    stage, operation = rows["stage"][chosen], rows["operation"][chosen]
    us = us[chosen]
    bucket = buckets_of(us)
    groups = _Groups(
        [
            (hour, DAY_US // HOUR_US),
            (entity, len(rows.entities)),
            (stage.view(np.uint8), 256),
            (operation.view(np.uint8), 256),
            (bucket, len(_first_durations())),
        ],
        greatest={"us": us},
    )
    return _table(
        "latency",
        hour_us=groups.of(hour) * HOUR_US + rows.day_us,
        entity=_taken(rows.entities, groups.of(entity)),
        stage=groups.of(stage),
        operation=groups.of(operation),
        bucket=groups.of(bucket),
        count=groups.sizes,
        max_us=groups["us", "max"],
    )


def buckets_of(durations_us: Array) -> Array:
    """`tables.bucket_of`, of many."""
    return np.searchsorted(_first_durations(), np.maximum(durations_us, 1), side="right") - 1


@cache
def _first_durations() -> Array:
    """The least whole duration of each bucket. Looking it up says what `bucket_of` says, to the last microsecond."""
    most = 2**63 - 1
    return np.array(
        [bisect_left(range(most), bucket, lo=1, key=bucket_of) for bucket in range(bucket_of(most) + 1)], np.int64
    )


def _activity(rows: _Rows) -> pa.Table:
    """What outages are made of, by the minute."""
    kind = _KINDS[rows.code]
    chosen = np.flatnonzero(kind)
    errors, error = rows.encoded("error")
    is_expired = np.array([*(one == EXPIRED for one in errors), False])[error[chosen]]
    kind = np.where(is_expired & (kind[chosen] == Happening.POISON), np.int8(Happening.EXPIRED), kind[chosen])
    pairings, pairing = rows.encoded("pairing")
    minute, entity, pairing, us = (one[chosen] for one in (rows.begin_of(MINUTE_US), rows.entity, pairing, rows.us))
    groups = _Groups(
        [(minute, DAY_US // MINUTE_US), (pairing, len(pairings)), (entity, len(rows.entities)), (kind, 128)],
        least={"us": us},
        greatest={"us": us},
    )
    return _table(
        "activity",
        minute_us=groups.of(minute) * MINUTE_US + rows.day_us,
        pairing=_taken(pairings, groups.of(pairing)),
        entity=_taken(rows.entities, groups.of(entity)),
        kind=groups.of(kind),
        count=groups.sizes,
        first_us=groups["us", "min"],
        last_us=groups["us", "max"],
    )


_MADE = {"usage": _usage, "latency": _latency, "activity": _activity}


class _Groups:
    """Rows that have the same in all of some columns, and their sums and extremes."""

    def __init__(
        self,
        columns: Sequence[tuple[Array, int]],
        *,
        sums: Mapping[str, Array] | None = None,
        least: Mapping[str, Array] | None = None,
        greatest: Mapping[str, Array] | None = None,
    ) -> None:
        """Columns have whole numbers from 0 on, below the number that is beside them."""
        rows = pa.table(
            {
                "group": _joined(columns),
                "row": np.arange(len(columns[0][0])),
                **(sums or {}),
                **(least or {}),
                **(greatest or {}),
            }
        )
        wanted = [
            *((name, how) for how, names in (("sum", sums), ("min", least), ("max", greatest)) for name in names or ()),
            ("row", "min"),
            ([], "count_all"),
        ]
        self._found = rows.group_by("group", use_threads=False).aggregate(wanted)
        self._first = self["row", "min"]
        self.sizes: Array = self._found["count_all"].to_numpy()

    def __getitem__(self, wanted: tuple[str, str]) -> Array:
        """A column, put together as it was asked for."""
        found: Array = self._found["_".join(wanted)].to_numpy()
        return found

    def of(self, column: Array) -> Array:
        """What all rows of a group have."""
        return column[self._first]


def _joined(columns: Sequence[tuple[Array, int]]) -> Array:
    """One number for each row; the same for rows that have the same in all columns."""
    found, size = np.zeros(len(columns[0][0]), np.int64), 1
    for column, width in columns:
        if size * width >= 2**62:
            names, found = np.unique(found, return_inverse=True)
            size = len(names)
        found *= width
        found += column
        size *= width
    return found


def _taken(texts: Sequence[str], numbers: Array) -> pa.Array:
    return pa.array(texts, pa.string()).take(pa.array(numbers))


def _table(rollup: str, **columns: Any) -> pa.Table:
    return pa.table(columns).cast(ROLLUP_SCHEMAS[rollup])


def _merged(rollup: str, parts: Sequence[pa.Table]) -> pa.Table:
    """The sum of some parts of a rollup, in order."""
    schema, how = ROLLUP_SCHEMAS[rollup], _SUMS[rollup]
    keys = [name for name in schema.names if name not in how]
    sums = pa.concat_tables(parts).group_by(keys, use_threads=False).aggregate(list(how.items()))
    named = sums.select([*keys, *(f"{name}_{one}" for name, one in how.items())]).rename_columns([*keys, *how])
    return named.select(schema.names).cast(schema).sort_by([(name, "ascending") for name in keys])
