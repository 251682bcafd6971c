"""Tests the columns of the ledger's files, which are a contract."""

from __future__ import annotations

import hashlib
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.rows import NOON, a_send, operations

from twinbus.ledger.recorder import Operation
from twinbus.ledger.schema import (
    CODES,
    SCHEMA,
    encode,
    message_key,
    to_batch,
    to_batch_of_fitting,
    to_operations,
)

# Stored in files: these columns must never change; new ones may be added.
COLUMNS = {
    "op_id": "fixed_size_binary[16] not null",
    "ts": "timestamp[us, tz=UTC] not null",
    "pairing": "string not null",
    "client": "string not null",
    "namespace": "int8 not null",
    "entity": "string not null",
    "operation": "int8 not null",
    "stage": "int8 not null",
    "message_id": "string",
    "message_key": "int64",
    "destination": "string",
    "backlog_queue": "string",
    "sequence_number": "int64",
    "delivery_count": "int64",
    "attempt": "int32 not null",
    "bytes": "int64 not null",
    "count": "int64 not null",
    "outcome": "int8 not null",
    "error": "string",
    "latency_us": "int64",
}


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Return the type of each column, and whether it is required."""
    return {field.name: f"{field.type}{'' if field.nullable else ' not null'}" for field in schema}


def test_file_has_contract_columns_and_version() -> None:
    file = pq.ParquetFile(BytesIO(encode(pa.Table.from_batches([to_batch([a_send()])]))))
    assert types_of(file.schema_arrow) == types_of(SCHEMA) == COLUMNS
    assert file.metadata.metadata[b"twinbus.ledger.version"] == b"1"


def test_codes_fit_their_columns() -> None:
    for column, codes in CODES.items():
        assert SCHEMA.field(column).type == pa.int8()
        assert all(0 < code <= 127 for code in codes)


@given(st.lists(operations, max_size=30))
def test_operations_round_trip_through_file(given_operations: list[Operation]) -> None:
    table = pq.read_table(BytesIO(encode(pa.Table.from_batches([to_batch(given_operations)]))))
    assert list(to_operations(table)) == given_operations


@pytest.mark.parametrize(
    ("message_id", "key"),
    [("", -3162216497309240828), ("order-1", 7962229630616640349), ("Bestellung ä", 3883573129440605550)],
)
def test_message_key_is_stable(message_id: str, key: int) -> None:
    assert message_key(message_id) == key
    assert key % 2**64 == int(hashlib.md5(message_id.encode()).hexdigest()[:16], 16)


def test_message_key_is_null_without_message_id() -> None:
    batch = to_batch([a_send(None), a_send("order-1")])
    assert batch["message_key"].to_pylist() == [None, message_key("order-1")]


@pytest.mark.parametrize(
    "changes",
    [
        {"ts": -1},
        {"ts": 253_402_300_800_000_000},
        {"ts": None},
        {"entity": None},
        {"entity": 5},
        {"message_id": "\ud800"},
        {"bytes": 2**63},
        {"bytes": "many"},
        {"attempt": 2**31},
        {"stage": 128},
        {"op_id": -1},
        {"op_id": 2**128},
        {"op_id": "7"},
    ],
    ids=str,
)
def test_value_that_does_not_fit_only_drops_its_row(changes: dict[str, Any]) -> None:
    bad = a_send("bad")._replace(**changes)
    rows = [a_send("before"), bad, a_send("after")]
    with pytest.raises((ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException)):
        to_batch(rows)
    batch, refused = to_batch_of_fitting(rows)
    assert [operation.message_id for operation in to_operations(pa.Table.from_batches([batch]))] == ["before", "after"]
    assert len(refused) == 1
    assert refused[0] is bad


def test_time_is_utc() -> None:
    (time,) = to_batch([a_send(ts=NOON + 1)])["ts"].to_pylist()
    assert time.isoformat() == "2026-11-16T12:00:00.000001+00:00"
