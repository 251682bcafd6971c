"""What the tests of the pipeline share: one Spark for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.untouched_logging import untouched_logging

from twinbus.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark", "untouched_logging"]

#: Small data: a partition costs more than what is in it.
SETTINGS = {"spark.sql.shuffle.partitions": "2"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever waits for Spark to start is slow."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all tests share: they must not stop it, nor leave settings or tables behind."""
    session = spark_session(slots=4, memory="1g", config=SETTINGS)
    yield session
    session.stop()
