"""After an outage, as one Spark job: drain the backlog, bring the tables up to date, say whether anything is missing.

TWINBUS_PRIMARY=… TWINBUS_SECONDARY=… spark-submit examples/spark_job.py contoso abfs://…/ledger
Without spark-submit it starts a Spark on this machine.
"""

from __future__ import annotations

import os
import sys

from twinbus.report.assemble import Wishes, assemble, open_results
from twinbus.report.cost.prices import load_prices
from twinbus.report.render.html import render
from twinbus.spark import DrainSettings, drain, run_pipeline
from twinbus.spark.session import running_spark
from twinbus.syphon import Side

QUEUES = 10


def main(primary_name: str, ledger: str, html: str = "report.html") -> int:
    primary, secondary = (
        Side.from_connection_string(os.environ[name]) for name in ("TWINBUS_PRIMARY", "TWINBUS_SECONDARY")
    )
    queues = [f"{primary_name}/x-servicebus-transfer/{index}" for index in range(QUEUES)]
    settings = DrainSettings(pairing=primary_name, pumps=QUEUES, ledger=ledger)
    with running_spark(app_name="after the outage") as spark:
        drained = drain(spark, primary, secondary, queues, settings)
        print(drained.to_json(), flush=True)
        run_pipeline(spark, ledger)
    report = assemble(open_results(ledger), Wishes(book=load_prices()))
    with open(html, "w", encoding="utf-8") as file:
        file.write(render(report))
    verdict = report.to_json()["verdict"]
    print(verdict["sentence"])
    return 0 if verdict["valid"] and drained.drain.is_empty else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
