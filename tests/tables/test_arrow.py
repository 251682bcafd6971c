"""Tests the Arrow schemas derived from the definition of the tables."""

from __future__ import annotations

import pytest

from twinbus.ledger.schema import pa
from twinbus.tables.arrow_schemas import arrow_schema, arrow_type
from twinbus.tables.table_schemas import GENERATION, INPUTS, TABLES, USAGE, Table


@pytest.mark.parametrize("table", [*TABLES.values(), INPUTS, GENERATION], ids=lambda table: table.name)
def test_every_table_has_a_schema_with_its_columns(table: Table) -> None:
    assert arrow_schema(table).names == table.names


def test_types_match_those_of_spark() -> None:
    schema = arrow_schema(USAGE)
    assert schema.field("day").type == pa.date32()
    assert schema.field("hour").type == pa.timestamp("us", "UTC")
    assert schema.field("rows").type == pa.int64()
    assert arrow_schema(GENERATION).field("reconciled").type == pa.bool_()
    ranges = [("writer", pa.int64()), ("lowest", pa.decimal128(20, 0)), ("highest", pa.decimal128(20, 0))]
    assert arrow_schema(INPUTS).field("ids").type == pa.list_(pa.struct(ranges))


def test_nested_types_are_split_at_outer_commas() -> None:
    inner = pa.struct([("a", pa.decimal128(3, 1)), ("b", pa.list_(pa.struct([("c", pa.int32())])))])
    assert arrow_type("struct<a:decimal(3,1),b:array<struct<c:int>>>") == inner


@pytest.mark.parametrize("name", ["", "text", "decimal(20)", "array<int", "map<int,int>", "struct<a>"])
def test_unknown_type_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match="expected a type of the result tables"):
        arrow_type(name)
