"""What `spark_session` gives where there is a session already, as in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from twinbus import __version__
from twinbus.spark.draining.worker_check import check_workers
from twinbus.spark.pipeline_errors import SparkNotStartedError, WorkersUnpreparedError
from twinbus.spark.session import is_running, running_spark, spark_session

TIME_ZONE = "spark.sql.session.timeZone"


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def test_the_session_that_is_there_is_used_with_settings_of_its_own(spark: SparkSession) -> None:
    with setting(spark, TIME_ZONE, "Asia/Tokyo"):
        ours = spark_session(config={"spark.sql.shuffle.partitions": "3"})
        assert ours.sparkContext is spark.sparkContext
        assert (ours.conf.get(TIME_ZONE), spark.conf.get(TIME_ZONE)) == ("UTC", "Asia/Tokyo")
        assert ours.conf.get("spark.sql.shuffle.partitions") == "3"
        assert spark.conf.get("spark.sql.shuffle.partitions") != "3"


def test_a_session_that_was_there_is_not_stopped(spark: SparkSession) -> None:
    with running_spark() as ours:
        assert ours.range(3).count() == 3
    assert is_running()
    assert spark.range(3).count() == 3


def test_another_master_is_refused_while_spark_runs(spark: SparkSession) -> None:
    with pytest.raises(SparkNotStartedError, match="Spark runs in this process already"):
        spark_session(master="local[2,4]")
    assert spark.range(3).count() == 3


def test_a_setting_that_cannot_be_changed_any_more_is_named(spark: SparkSession) -> None:
    with pytest.raises(SparkNotStartedError, match=r"does not let spark\.driver\.memory be set"):
        spark_session(config={"spark.driver.memory": "2g"})


def test_workers_on_this_machine_have_our_package(spark: SparkSession) -> None:
    check_workers(spark)


def test_workers_without_our_package_are_reported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"  # one that has its standard library only
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    with pytest.raises(WorkersUnpreparedError, match=rf"needs twinbus {__version__}, it has none"):
        check_workers(spark)


def test_workers_that_do_not_start_are_reported(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "no-such-python")
    with pytest.raises(WorkersUnpreparedError, match="do not work"):
        check_workers(spark)
