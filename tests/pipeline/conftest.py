"""What the tests of the pipeline share: one Spark for the whole run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from twinbus.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Small data: a partition costs more than what is in it.
SETTINGS = {"spark.sql.shuffle.partitions": "4"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all tests share: they must not stop it, nor leave settings or tables behind."""
    session = spark_session(slots=4, memory="1g", config=SETTINGS)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """Commands and tasks set up the logs of their process. In that of the tests they must not do so for the others."""
    root, ours = logging.getLogger(), logging.getLogger("twinbus")
    before = list(root.handlers), root.level, ours.level
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)
    logging.captureWarnings(False)
