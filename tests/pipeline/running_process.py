"""One run of the pipeline in a process of its own: `running_process LEDGER MASTER`. It is there to be killed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from twinbus.spark import run_pipeline
from twinbus.spark.session import running_spark

NOW = datetime(2026, 11, 30, tzinfo=UTC)

if __name__ == "__main__":
    with running_spark(master=sys.argv[2], memory="1g", config={"spark.sql.shuffle.partitions": "2"}) as session:
        run_pipeline(session, sys.argv[1], now=NOW)
