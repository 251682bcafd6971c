"""A program that starts Spark with two executors, which are processes of their own, and runs a job on them.

It prints what it saw as JSON, and ends when its standard input is closed. With a port as its argument it is a Spark
Connect server until then.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pyarrow as pa

from twinbus.spark.draining.worker_check import check_workers
from twinbus.spark.pipeline_errors import WorkersUnpreparedError
from twinbus.spark.session import running_spark

MASTER = "local-cluster[2,6,1024]"
TASKS = 12


def main(port: str | None) -> None:
    server = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port or "",
    }
    with running_spark(master=MASTER, memory="1g", config=server if port else None) as spark:
        check_workers(spark)
        try:
            check_workers(spark, "ledger-of-each")  # every executor has a working folder of its own
        except WorkersUnpreparedError as error:
            refusal = str(error)
        rows = spark.range(TASKS, numPartitions=TASKS).mapInArrow(work, "folder string, units long").collect()
        seen = {"folders": sorted({row.folder for row in rows}), "units": sum(row.units for row in rows)}
        seen["refusal"], seen["left"] = refusal, os.listdir("ledger-of-each")
        print(json.dumps(seen), flush=True)
        sys.stdin.read()


def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Uses our package, as the tasks of a drain do; a worker's folder is that of its executor."""
    from twinbus.tables.billed_units import units_of

    for batch in batches:
        units = [units_of(64 * 1024 + 1)] * batch.num_rows
        yield pa.RecordBatch.from_pydict({"folder": [os.getcwd()] * batch.num_rows, "units": units})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
