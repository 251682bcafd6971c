"""Spark with executors in processes of their own, as on a cluster, and as a Spark Connect server."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from bench.ledger_shape import Shape
from bench.ledgers import generate
from tests.free_port import free_port

PROGRAM = Path(__file__).with_name("cluster.py")
#: PySpark brings the server since 4.0.
HAS_CONNECT = not pyspark.__version__.startswith("3.")
CLIENT = """
from pyspark.sql import functions as f
from twinbus.spark.draining.worker_check import check_workers
from twinbus.spark.session import spark_session

spark = spark_session(remote={remote!r})
assert type(spark).__module__ == "pyspark.sql.connect.session"
assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
check_workers(spark)
assert spark_session() is spark
print(spark.range(10).select(f.sum("id")).collect()[0][0])
spark.stop()
"""

EXPECTED_ERROR = re.compile("RPC error during: (analyze|releaseExecute|async-grpc-response-sender)")

PATIENCE = 280.0  # for what takes less than a minute on a machine that has nothing else to do

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@dataclass(frozen=True)
class Cluster:
    seen: dict[str, Any]
    remote: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, PROGRAM, *([str(port)] if HAS_CONNECT else [])],
        cwd=tmp_path_factory.mktemp("here"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        seen = json.loads(line)
        yield Cluster(seen, f"sc://127.0.0.1:{port}")
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    # The server logs an error if a client has gone before it took or released its last answer, which PySpark does on
    # the side, and for each table that a first run looks for and does not find.
    complaints = [line for line in errors.splitlines() if not EXPECTED_ERROR.search(line)]
    assert (process.returncode, complaints) == (0, [])
    for folder in {Path(one).parent for one in seen["folders"]}:  # this kind of cluster works where Spark is installed
        shutil.rmtree(folder)


def test_the_workers_of_every_executor_have_our_package(cluster: Cluster) -> None:
    assert len(cluster.seen["folders"]) == 2
    assert cluster.seen["units"] == 24


def test_a_ledger_that_is_another_place_on_a_worker_is_refused_by_its_path_and_host(cluster: Cluster) -> None:
    host = re.escape(socket.gethostname())
    assert re.match(rf"the ledger \S*of-each is another place on worker {host}: give a", cluster.seen["refusal"])
    assert cluster.seen["left"] == []


@pytest.mark.skipif(not HAS_CONNECT, reason="this PySpark brings no Spark Connect server")
def test_a_spark_connect_server_is_used_like_any_other_spark(cluster: Cluster) -> None:
    client = [sys.executable, "-c", CLIENT.format(remote=cluster.remote)]
    process = subprocess.run(client, capture_output=True, text=True, timeout=PATIENCE)
    assert (process.returncode, process.stdout, process.stderr) == (0, "45\n", "")


def pipeline_run(ledger: Path, results: Path, where: tuple[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "twinbus", "pipeline", "run", str(ledger), "--results", str(results), "--json"]
    process = subprocess.run([*command, *where], capture_output=True, text=True, timeout=PATIENCE, cwd=ledger.parent)
    assert process.returncode == 0, process.stderr
    answer: dict[str, Any] = json.loads(process.stdout)
    return {name: answer[name] for name in ("ingested", "ledger", "unreadable", "reconciliation")}


def report_of(results: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "twinbus", "report", str(results), "--json"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode == 0, process.stderr
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer


def test_the_pipeline_says_the_same_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    expected = generate(tmp_path / "ledger", Shape(rows=20_000, days=2, outages=1, lost=3, repeats=100))
    # The server's executors are processes of their own, too.
    elsewhere = ("--remote", cluster.remote) if HAS_CONNECT else ("--master", "local-cluster[2,2,1024]")
    places = {"alone": ("--master", "local[2]"), "elsewhere": elsewhere}
    answers = {name: pipeline_run(tmp_path / "ledger", tmp_path / name, where) for name, where in places.items()}
    assert answers["alone"]["ledger"]["rows"] == expected.rows
    assert answers["alone"]["reconciliation"]["lost"] == 3
    reports = {name: report_of(tmp_path / name) for name in places}
    assert answers["elsewhere"] == answers["alone"]
    assert unplaced(reports["elsewhere"]) == unplaced(reports["alone"])


def unplaced(report: dict[str, Any]) -> dict[str, Any]:
    """All but where the results are and when they were made."""
    return {name: value for name, value in report.items() if name not in ("source", "made_at")}
