"""Writes result tables for tests as Spark lays them out, with pyarrow and without Spark."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

from twinbus.ledger.schema import pa, pq
from twinbus.tables.arrow_schemas import arrow_schema
from twinbus.tables.result_reader import is_partitioned
from twinbus.tables.table_schemas import GENERATION, INPUTS, VERSION, Table

Row = Mapping[str, Any]


def table_of(table: Table, rows: Iterable[Row]) -> pa.Table:
    """Rows as a table with all columns; what a row lacks is null."""
    return pa.Table.from_pylist(list(rows), schema=arrow_schema(table))


def parquet(rows: pa.Table, **options: Any) -> bytes:
    """The bytes of a Parquet file with these rows."""
    data = io.BytesIO()
    pq.write_table(rows, data, **options)
    return data.getvalue()


class ResultFiles:
    """Results at a folder or URL, written file by file."""

    def __init__(self, url: str | Path) -> None:
        self._fs, root = url_to_fs(str(url))
        self._root = root.rstrip("/")

    def put(self, path: str, data: bytes) -> None:
        full = f"{self._root}/{path}"
        self._fs.makedirs(full.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(full, data)

    def remove(self, path: str) -> None:
        full = f"{self._root}/{path}"
        if self._fs.exists(full):
            self._fs.rm(full, recursive=True)

    def write(self, table: Table, rows: Iterable[Row], name: str = "part-00000.snappy.parquet") -> None:
        """Write rows, a file for each day (or a single one for bookkeeping)."""
        if not is_partitioned(table):
            self.put(f"{table.name}/{name}", parquet(table_of(table, rows)))
            return
        days: defaultdict[date, list[Row]] = defaultdict(list)
        for row in rows:
            days[row["day"]].append(row)
        for day, mine in days.items():
            self.put(f"{table.name}/day={day}/{name}", parquet(table_of(table, mine).drop_columns(["day"])))

    def generation(self, **changes: Any) -> None:
        """Replace the row of `_generation`."""
        self.remove(GENERATION.name)
        self.write(GENERATION, [{**GENERATION_ROW, **changes}])

    def inputs(self, rows: Iterable[Row]) -> None:
        self.remove(INPUTS.name)
        number = GENERATION_ROW["number"]
        data = parquet(table_of(INPUTS, [{"number": number, **row} for row in rows]))
        self.put(f"{INPUTS.name}/{number % 2}/part-00000.snappy.parquet", data)


GENERATION_ROW: Row = {
    "version": VERSION,
    "number": 1,
    "run": "20261108T000000.000000Z-0a1b2c3d",
    "state": "complete",
    "format": "parquet",
    "started": datetime(2026, 11, 8, tzinfo=UTC),
    "finished": datetime(2026, 11, 8, 0, 1, tzinfo=UTC),
    "reconciled": True,
    "drained": False,
    "patience_us": 3_600_000_000,
    "horizon_days": 14,
    "days": [],
    "twinbus": "0.1.0",
    "spark": "4.3.0",
}
