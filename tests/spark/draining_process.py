"""Drains a backlog with an event log and pages that are on, and saves all that anybody could read there.

`python -m tests.spark.draining_process FOLDER CONFIG`, with the connection strings in the environment; CONFIG is JSON.
It prints the report, or the class and text of the error that it ended with.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.pipeline.drain.backlogs import QUEUES

from twinbus.pairing.options import SyphonOptions
from twinbus.spark.draining.drain_loop import DrainSettings, SparkDrain
from twinbus.spark.draining.drain_task import SliceWork
from twinbus.spark.draining.slice_planning import Assignment
from twinbus.spark.session import spark_session
from twinbus.syphon.connector import Side


class Watched(SparkDrain):
    """Tells which tokens went to tasks."""

    tokens: list[str]

    async def _work(self, assignments: tuple[Assignment, ...], seconds: float) -> SliceWork:
        work = await super()._work(assignments, seconds)
        for tokens in (work.primary, work.secondary):
            self.tokens += [token.text for token in tokens.by_audience.values()]
        return work


def main(folder: Path, given: dict[str, Any]) -> None:
    spark = spark_session(slots=4, memory="1g", config=given["config"])
    sides = [Side.from_connection_string(os.environ[f"TWINBUS_{name}"]) for name in ("PRIMARY", "SECONDARY")]
    settings = DrainSettings(options=SyphonOptions(), pumps=3, order=given.get("order"), ledger=str(folder / "ledger"))
    try:
        drain = Watched(spark, *sides, QUEUES, settings)
        drain.tokens = []
        report = asyncio.run(drain.run())
    except ValueError as error:
        print(json.dumps({"error": str(error)}))
        return
    pages = folder / "pages"
    pages.mkdir()
    address = spark.sparkContext.uiWebUrl
    if address is not None:
        application = f"/api/v1/applications/{spark.sparkContext.applicationId}"
        for number, path in enumerate(
            ["/environment/", "/jobs/", "/stages/", "/SQL/", "/executors/", "/SQL/execution/?id=0"]
            + [f"{application}{one}" for one in ("/environment", "/sql?details=true", "/jobs", "/stages?details=true")]
        ):
            with urlopen(address + path, timeout=30) as answer:
                (pages / f"{number}.txt").write_bytes(answer.read())
    spark.stop()
    print(json.dumps({"report": report.to_json(), "tokens": drain.tokens}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
