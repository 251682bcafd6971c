"""Measures the pipeline on a cluster with one and two workers: `make bench-scale`.

Uses Spark's standalone cluster on this machine: executors are processes, and the driver and master share the cores.
Processes all tables of the ledger of `bench.pipeline` (20 million rows; BIG=1, QUICK=1, --rows, --ledger), warm.
Spark's event log gives the processor time of executors and the time of stages with a single task, which do not get
faster with more workers. The last line is one JSON object.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.pipeline import FOLDER, NOW, OPTIONS, arguments, cached_ledger, history, truth_of
from rich.console import Console
from rich.table import Table

from twinbus.spark.pipeline.run import run_pipeline
from twinbus.spark.session import running_spark

WORKERS = (1, 2)
EVENTS = FOLDER / "events"
AIMS = {"times_as_fast": "≥ 1.4", "executor_cpu_ratio": "0.85 to 1.15", "longest_single_task_stage": "≤ 0.10"}


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of one run of the pipeline."""

    seconds: float
    #: Processor time of all tasks.
    cpu_seconds: float
    #: Seconds and description of the longest single-task stage.
    longest_single_task: tuple[float, str]


def measure(workers: int, ledger: Path, rounds: int, memory: str) -> list[Run]:
    """Run the pipeline on a cluster, after one warm-up run."""
    shutil.rmtree(EVENTS, ignore_errors=True)
    EVENTS.mkdir(parents=True)
    config = {
        "spark.executor.memory": memory,
        "spark.driver.memory": memory,
        "spark.sql.shuffle.partitions": str(4 * max(WORKERS)),  # the same for all clusters, so that the work is equal
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": EVENTS.absolute().as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    results, spans, rows = FOLDER / "scale-results", [], truth_of(ledger)["rows"]
    master = f"local-cluster[{workers},1,{_megabytes(memory)}]"
    with running_spark(master=master, memory=memory, config=config) as spark:
        for _ in range(rounds + 1):
            shutil.rmtree(results, ignore_errors=True)
            started = time.time()
            done = run_pipeline(spark, ledger.absolute().as_uri(), results.absolute().as_uri(), OPTIONS, now=NOW)
            spans.append((started, time.time()))
            print(f"{workers} workers: {spans[-1][1] - started:.1f} s", file=sys.stderr)
            if done.rows != rows:
                sys.exit(f"wrong result: expected {rows} rows, got {done.rows}")
    [log] = EVENTS.iterdir()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return [_run_of(events, *span) for span in spans[1:]]


def _run_of(events: Sequence[dict[str, Any]], started: float, ended: float) -> Run:
    def in_span(milliseconds: int) -> bool:
        return started <= milliseconds / 1000 <= ended

    cpu, longest, descriptions = 0.0, (0.0, ""), {}
    for event in events:
        if event["Event"] == "SparkListenerStageSubmitted":
            descriptions[event["Stage Info"]["Stage ID"]] = event["Properties"].get("spark.job.description") or ""
        elif event["Event"] == "SparkListenerTaskEnd" and in_span(event["Task Info"]["Finish Time"]):
            cpu += event.get("Task Metrics", {}).get("Executor CPU Time", 0) / 1e9
        elif event["Event"] == "SparkListenerStageCompleted" and event["Stage Info"]["Number of Tasks"] == 1:
            stage = event["Stage Info"]
            if in_span(stage["Submission Time"]):
                seconds = (stage["Completion Time"] - stage["Submission Time"]) / 1000
                longest = max(longest, (seconds, descriptions[stage["Stage ID"]]))
    return Run(ended - started, cpu, longest)


def _megabytes(memory: str) -> int:
    return int(memory[:-1]) * (1024 if memory.endswith("g") else 1)


def main() -> None:
    settings = arguments().parse_args()
    ledger = settings.ledger or cached_ledger("history", history(settings.rows))
    runs = {workers: measure(workers, ledger, settings.rounds, settings.memory) for workers in WORKERS}
    table = Table("workers", "seconds", "processor seconds of executors", "longest single-task stage")
    seconds, cpu, shares = {}, {}, {}
    for workers, worker_runs in runs.items():
        seconds[workers] = statistics.median(run.seconds for run in worker_runs)
        cpu[workers] = statistics.median(run.cpu_seconds for run in worker_runs)
        shares[workers], (longest, stage) = max(
            (run.longest_single_task[0] / run.seconds, run.longest_single_task) for run in worker_runs
        )
        share = f"{longest:.2f} s, {shares[workers]:.1%} ({stage})"
        table.add_row(str(workers), f"{seconds[workers]:.1f}", f"{cpu[workers]:.1f}", share)
    one, two = WORKERS
    figures = {
        "times_as_fast": round(seconds[one] / seconds[two], 2),
        "executor_cpu_ratio": round(cpu[two] / cpu[one], 2),
        "longest_single_task_stage": round(max(shares.values()), 3),
    }
    Console(width=120).print(table)
    for name, aim in AIMS.items():
        print(f"{name}: {figures[name]} (aim: {aim})")
    print(json.dumps({"rows": truth_of(ledger)["rows"], **figures}))


if __name__ == "__main__":
    main()
