"""The columns of the ledger's files: a contract with everything that reads them (docs/reference/ledger.md).

Within one version columns and codes are only added, never changed. Readers take a missing column as null and leave out
one they do not know.
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

#: The columns that hold codes, and what the codes mean.
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

# The ids differ from row to row: a dictionary of them would only cost.
_NO_DICTIONARY = ("op_id", "ts", "message_id", "message_key", "sequence_number", "latency_us")
_DICTIONARY = [name for name in SCHEMA.names if name not in _NO_DICTIONARY]
_FROM_OPERATION = Operation._fields
_MD5 = hashlib.md5(usedforsecurity=False)


def message_key(message_id: str) -> int:
    """The 64-bit key of a message id: the first eight bytes of the MD5 of its UTF-8, big-endian, signed.

    It makes joins and groups fast. Two ids may share a key, so what must be exact compares the ids as well.
    """
    digest = _MD5.copy()  # half the time of a new one
    digest.update(message_id.encode())
    return int.from_bytes(digest.digest()[:8], "big", signed=True)


def to_batch(operations: Sequence[Operation]) -> pa.RecordBatch:
    """The operations as rows.

    Raises ValueError, TypeError, OverflowError or one of Arrow's errors if a value does not fit its column.
    """
    columns: dict[str, Sequence[Any]] = dict(
        zip(_FROM_OPERATION, zip(*operations, strict=True) if operations else [()] * len(_FROM_OPERATION), strict=True)
    )
    times = columns["ts"]
    if times and not 0 <= min(times) <= max(times) < END_OF_TIME_US:
        raise ValueError(f"ts must be from 0 to {END_OF_TIME_US - 1} µs since the epoch")
    columns["op_id"] = [one.to_bytes(16, "big") for one in columns["op_id"]]
    columns["message_key"] = [None if one is None else message_key(one) for one in columns["message_id"]]
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    for field, array in zip(SCHEMA, arrays, strict=True):
        if not field.nullable and array.null_count:
            raise ValueError(f"{field.name} must not be null")
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def to_batch_of_fitting(operations: Sequence[Operation]) -> tuple[pa.RecordBatch, list[Operation]]:
    """The operations as rows, and apart those that do not fit: a bad value must not cost its neighbours their rows."""
    fits, refused = [], []
    for one in operations:
        try:
            to_batch([one])
        except (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException):
            refused.append(one)
        else:
            fits.append(one)
    return to_batch(fits), refused


def to_operations(table: pa.Table) -> Iterator[Operation]:
    """The rows of a table as operations. Raises ValueError for a code of a later release."""
    for row in table.cast(_with_plain_time(table.schema)).to_pylist():
        del row["message_key"]
        for column, codes in CODES.items():
            row[column] = codes(row[column])
        yield Operation(**{**row, "op_id": int.from_bytes(row["op_id"], "big")})


def _with_plain_time(schema: pa.Schema) -> pa.Schema:
    # As integers the times keep every microsecond and need no time zone database.
    return schema.set(schema.get_field_index("ts"), pa.field("ts", pa.int64(), _REQUIRED))


def new_file_writer(file: BytesIO) -> pq.ParquetWriter:
    """Writes row groups of a ledger's file into `file`."""
    return pq.ParquetWriter(file, SCHEMA, compression="zstd", compression_level=1, use_dictionary=_DICTIONARY)


def encode(table: pa.Table) -> bytes:
    """A file with these rows."""
    file = BytesIO()
    with new_file_writer(file) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
    return file.getvalue()
