"""Tasks of the pipeline that Spark runs: each is given a number, says what it found, and Spark tries again if it fails.

Tasks read and write files themselves, with Arrow: rows never go through Java, which would take many times as long
(docs/decisions/015). A task that is repeated writes files of other names, and only names that it has told count.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from twinbus.ledger.schema import pa, pq

from .results import Results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Parts that have no more rows than this together are done by one of Spark's tasks.
BUNDLE = 1_000_000

#: What a task is: given its number, it says what it found, in JSON's types.
Task = Callable[[int], Mapping[str, Any]]


def run(spark: SparkSession, task: Task, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Have Spark run a task for each of some parts; what they found.

    Args:
        rows: How many rows each part has, about. Small ones go together: to start one takes Spark a tenth of a second.
    """
    if not rows:
        return []
    starts = bundles(rows)
    ends = [*starts[1:], len(rows)]

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bundle in batch.column(0).to_pylist():
                for number in range(starts[bundle], ends[bundle]):
                    yield pa.RecordBatch.from_pydict({"found": [json.dumps(task(number), ensure_ascii=False)]})

    # What they are told travels with the function, not in the plan, which everybody can read.
    told = spark.range(0, len(starts), 1, len(starts)).mapInArrow(found, "found string").collect()
    return [json.loads(row.found) for row in told]


def bundles(rows: Sequence[int], most: int = BUNDLE) -> list[int]:
    """Where bundles of neighbouring parts begin that have at most so many rows, or are a single part."""
    starts: list[int] = []
    total = 0
    for at, more in enumerate(rows):
        if not starts or total + more > most:
            starts.append(at)
            total = 0
        total += more
    return starts


def write_table(
    results: Results, folder: str, parts: Sequence[pa.Table], *, rows: int | None = None, **options: Any
) -> str:
    """Write a file with a name of its own, and say where it is.

    Args:
        rows: Of a row group, at most.
        options: For `pyarrow.parquet.ParquetWriter`.
    """
    path, file = f"{folder}/{uuid.uuid4().hex}.parquet", BytesIO()
    with pq.ParquetWriter(file, parts[0].schema, compression="zstd", store_schema=False, **options) as writer:
        for table in parts:
            writer.write_table(table, rows)
    results.write_bytes(path, file.getbuffer())
    return path
