"""Derive Arrow schemas from the description of the result tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from twinbus.ledger.schema import pa

from .table_schemas import Table

TIMESTAMP = pa.timestamp("us", "UTC")
_PLAIN = {
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def arrow_schema(table: Table) -> pa.Schema:
    """Return all columns of a table, including `day`."""
    return pa.schema([(column.name, arrow_type(column.type)) for column in table.columns])


def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type for a type name of Spark SQL. Raises ValueError for a type that no table has."""
    if name in _PLAIN:
        return _PLAIN[name]
    if decimal := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    kind, opening, rest = name.partition("<")
    if opening and rest.endswith(">"):
        inner = rest[:-1]
        if kind == "array":
            return pa.list_(arrow_type(inner))
        if kind == "struct":
            fields = (part.partition(":") for part in _parts(inner))
            return pa.struct([(field, arrow_type(type_name)) for field, _, type_name in fields])
    raise ValueError(f"expected a type of the result tables, got {name!r}")


def micros(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return timestamps as microseconds since the epoch, which need no time zone database."""
    return column.cast(pa.int64())


def _parts(fields: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    depth = start = 0
    for index, letter in enumerate(fields):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            yield fields[start:index]
            start = index + 1
    yield fields[start:]
