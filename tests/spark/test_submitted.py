"""A job of spark-submit, which is how hosted services start one: Spark is there before we are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from twinbus.spark.java import find_java, java_home_for_spark

PROGRAM = Path(__file__).with_name("submitted.py")
SUBMIT = Path(pyspark.__file__).with_name("bin") / "spark-submit"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_uses_the_spark_it_was_submitted_to_and_does_not_stop_it(tmp_path: Path) -> None:
    java = java_home_for_spark(find_java(pyspark.__version__), {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    process = subprocess.run(
        [SUBMIT, "--master", "local[2]", "--conf", "spark.ui.enabled=false", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "JAVA_HOME": str(java), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout.splitlines()[-1]) == {
        "master": "local[2]",
        "time_zone": "UTC",
        "partitions": "3",
        "sum": 45,
        "runs_on": True,
    }
