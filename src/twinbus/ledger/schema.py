"""Defines the columns of the ledger's files, and converts operations to rows and back.

The columns are a contract with all readers (docs/reference/ledger.md). Within one version columns and codes are only
added, never changed. Readers treat a missing column as null and ignore an unknown one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

from .layout import END_OF_TIME_US
from .ledger_errors import ExtraMissingError
from .recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:
    raise ExtraMissingError from error

__all__ = [
    "CODES",
    "SCHEMA",
    "VERSION",
    "VERSION_KEY",
    "encode",
    "message_key",
    "new_file_writer",
    "pa",
    "pc",
    "pq",
    "to_batch",
    "to_batch_of_fitting",
    "to_operations",
]

VERSION = 1
VERSION_KEY = b"twinbus.ledger.version"

#: Maps each column of codes to the enum of its codes.
CODES = {"namespace": NamespaceRole, "operation": OperationKind, "stage": Stage, "outcome": Outcome}

_REQUIRED = False
SCHEMA = pa.schema(
    [
        pa.field("op_id", pa.binary(16), _REQUIRED),
        pa.field("ts", pa.timestamp("us", "UTC"), _REQUIRED),
        pa.field("pairing", pa.string(), _REQUIRED),
        pa.field("client", pa.string(), _REQUIRED),
        pa.field("namespace", pa.int8(), _REQUIRED),
        pa.field("entity", pa.string(), _REQUIRED),
        pa.field("operation", pa.int8(), _REQUIRED),
        pa.field("stage", pa.int8(), _REQUIRED),
        pa.field("message_id", pa.string()),
        pa.field("message_key", pa.int64()),
        pa.field("destination", pa.string()),
        pa.field("backlog_queue", pa.string()),
        pa.field("sequence_number", pa.int64()),
        pa.field("delivery_count", pa.int64()),
        pa.field("attempt", pa.int32(), _REQUIRED),
        pa.field("bytes", pa.int64(), _REQUIRED),
        pa.field("count", pa.int64(), _REQUIRED),
        pa.field("outcome", pa.int8(), _REQUIRED),
        pa.field("error", pa.string()),
        pa.field("latency_us", pa.int64()),
    ],
    metadata={VERSION_KEY: str(VERSION).encode()},
)

# Their values differ from row to row, so dictionary encoding would only add cost.
_NO_DICTIONARY = ("op_id", "ts", "message_id", "message_key", "sequence_number", "latency_us")
_DICTIONARY = [name for name in SCHEMA.names if name not in _NO_DICTIONARY]
_OPERATION_FIELDS = Operation._fields
_MD5 = hashlib.md5(usedforsecurity=False)


def message_key(message_id: str) -> int:
    """Return the 64-bit key of a message id: the first eight bytes of the MD5 of its UTF-8, big-endian, signed.

    Makes joins and groupings fast. Two ids may share a key, so exact results must compare the ids as well.
    """
    digest = _MD5.copy()  # takes half the time of a new one
    digest.update(message_id.encode())
    return int.from_bytes(digest.digest()[:8], "big", signed=True)


def to_batch(operations: Sequence[Operation]) -> pa.RecordBatch:
    """Return the operations as rows.

    Raises `ValueError`, `TypeError`, `OverflowError` or an error of Arrow if a value does not fit its column.
    """
    columns: dict[str, Sequence[Any]] = dict(
        zip(
            _OPERATION_FIELDS,
            zip(*operations, strict=True) if operations else [()] * len(_OPERATION_FIELDS),
            strict=True,
        )
    )
    times = columns["ts"]
    if times and not 0 <= min(times) <= max(times) < END_OF_TIME_US:
        raise ValueError(f"ts must be from 0 to {END_OF_TIME_US - 1} µs since the epoch")
    columns["op_id"] = [op_id.to_bytes(16, "big") for op_id in columns["op_id"]]
    columns["message_key"] = [None if id_ is None else message_key(id_) for id_ in columns["message_id"]]
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    for field, array in zip(SCHEMA, arrays, strict=True):
        if not field.nullable and array.null_count:
            raise ValueError(f"{field.name} must not be null")
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def to_batch_of_fitting(operations: Sequence[Operation]) -> tuple[pa.RecordBatch, list[Operation]]:
    """Return the operations that fit as rows, and those that do not: a bad value must only cost its own row."""
    fitting, refused = [], []
    for operation in operations:
        try:
            to_batch([operation])
        except (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException):
            refused.append(operation)
        else:
            fitting.append(operation)
    return to_batch(fitting), refused


def to_operations(table: pa.Table) -> Iterator[Operation]:
    """Yield the rows of a table as operations. Raises `ValueError` for a code of a later release."""
    for row in table.cast(_with_integer_time(table.schema)).to_pylist():
        del row["message_key"]
        for column, codes in CODES.items():
            row[column] = codes(row[column])
        yield Operation(**{**row, "op_id": int.from_bytes(row["op_id"], "big")})


def _with_integer_time(schema: pa.Schema) -> pa.Schema:
    # Integers keep every microsecond and need no time zone database.
    return schema.set(schema.get_field_index("ts"), pa.field("ts", pa.int64(), _REQUIRED))


def new_file_writer(file: BytesIO) -> pq.ParquetWriter:
    """Return a writer of row groups into `file`, with the ledger's schema and compression."""
    return pq.ParquetWriter(file, SCHEMA, compression="zstd", compression_level=1, use_dictionary=_DICTIONARY)


def encode(table: pa.Table) -> bytes:
    """Return the content of a ledger file with these rows."""
    file = BytesIO()
    with new_file_writer(file) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
    return file.getvalue()
