"""Test configuration: Hypothesis profile, slow markers, and the distribution of tests over workers."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A deadline per example would measure the machine, not the code; pytest-timeout bounds the whole test.
settings.register_profile("twinbus", deadline=None, print_blob=True)
settings.load_profile("twinbus")

# Spark sessions of tests live for minutes at most, too short for Java's second compiler to pay off. Without it the room
# for compiled code is 48 MB by default, which Spark 3.5 fills in a long session, and then fails.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")

#: Tests in the first folder share one Spark session, which starts slowly. Those in the second start their own, with
#: executors; a small machine can run only one at a time.
SERIAL_FOLDERS = ("tests/pipeline/", "tests/spark/")
#: `make test-fast` skips these folders: they start processes and other clients, or run through an outage.
SLOW_FOLDERS = tuple(
    f"tests/{name}/" for name in ("interop", "live", "outage", "pipeline/drain", "proof", "security", "spark", "spec")
)
#: Needs no Spark: reports read results without it.
WITHOUT_SPARK = "tests/pipeline/report/"


def folder_of_spark(nodeid: str) -> str | None:
    """The serial folder of a test, or `None`."""
    if nodeid.startswith(WITHOUT_SPARK):
        return None
    return next((folder for folder in SERIAL_FOLDERS if nodeid.startswith(folder)), None)


class ModuleAndSparkScheduling(LoadScopeScheduling):
    """Keeps each module on one worker, as `--dist loadscope` does, and each serial folder on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return folder_of_spark(nodeid) or super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    if config.getvalue("dist") != "loadscope":
        return None
    config.option.loadscopereorder = False  # it orders by number of tests; see below for our order
    return ModuleAndSparkScheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests, and start them first, so that no worker is left with one at the end."""
    for item in items:
        if item.nodeid.startswith(SLOW_FOLDERS):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):  # with a single process the order does not matter
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (folder_of_spark(item.nodeid) is None, item.path not in slow))
