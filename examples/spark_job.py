"""After an outage, as one Spark job: drain the backlog, bring results up to date, say whether anything is missing.

TWINBUS_PRIMARY=… TWINBUS_SECONDARY=… spark-submit examples/spark_job.py contoso abfs://…/ledger
Without spark-submit it starts a Spark on this machine.
"""

from __future__ import annotations

import asyncio
import os
import sys

from twinbus.pipeline.drain.loop import Settings, SparkDrain
from twinbus.pipeline.ingest import ingest
from twinbus.pipeline.prices import load_prices
from twinbus.pipeline.reconciliation import reconcile
from twinbus.pipeline.report.assemble import Wishes, assemble, open_results
from twinbus.pipeline.report.html import render
from twinbus.pipeline.results import Results, default_results
from twinbus.pipeline.session import check_workers, running_spark
from twinbus.syphon import Side

QUEUES = 10


def main(primary_name: str, ledger: str, html: str = "report.html") -> int:
    primary, secondary = (
        Side.from_connection_string(os.environ[name]) for name in ("TWINBUS_PRIMARY", "TWINBUS_SECONDARY")
    )
    queues = [f"{primary_name}/x-servicebus-transfer/{index}" for index in range(QUEUES)]
    settings = Settings(pairing=primary_name, pumps=QUEUES, ledger=ledger)
    with running_spark(app_name="after the outage") as spark:
        check_workers(spark)  # the executors must have this twinbus, too

        async def drain() -> bool:
            report = await SparkDrain(spark, primary, secondary, queues, settings).run()
            print(report.to_json(), flush=True)
            return report.drain.is_empty

        is_empty = asyncio.run(drain())
        results = Results.open(default_results(ledger))
        ingest(spark, ledger, results, reconcile=reconcile)
    report = assemble(open_results(results.url), Wishes(book=load_prices()))
    with open(html, "w", encoding="utf-8") as file:
        file.write(render(report))
    verdict = report.to_json()["verdict"]
    print(verdict["sentence"])
    return 0 if verdict["valid"] and is_empty else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
