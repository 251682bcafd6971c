"""What all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A deadline per example measures the machine, not the code; pytest-timeout bounds the whole test.
settings.register_profile("twinbus", deadline=None, print_blob=True)
settings.load_profile("twinbus")

# The Sparks of tests live for minutes at most. Java's second compiler would take the cores from them and not pay off.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")

#: The tests in the first share one Spark, which takes many seconds to start. Those in the second start their own, with
#: executors: more than one of these at a time would be too much for a small machine.
ONE_AFTER_THE_OTHER = ("tests/pipeline/", "tests/spark/")
#: `make test-fast` leaves these out as a whole: they start processes and other clients, or play an outage through.
SLOW_FOLDERS = tuple(
    f"tests/{name}/" for name in ("interop", "live", "outage", "pipeline/drain", "proof", "security", "spark", "spec")
)
#: These need no Spark: reports read results without it.
WITHOUT_SPARK = "tests/pipeline/report/"


def folder_of_spark(nodeid: str) -> str | None:
    """The folder whose tests all run on the same worker, if the test is in one."""
    if nodeid.startswith(WITHOUT_SPARK):
        return None
    return next((folder for folder in ONE_AFTER_THE_OTHER if nodeid.startswith(folder)), None)


class ModulesAndSpark(LoadScopeScheduling):
    """Every module stays on one worker, as `--dist loadscope` has it, and all that share Spark on the same one."""

    def _split_scope(self, nodeid: str) -> str:
        return folder_of_spark(nodeid) or super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    if config.getvalue("dist") != "loadscope":
        return None
    config.option.loadscopereorder = False  # by the number of tests; ours is below
    return ModulesAndSpark(config, log)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long begins first, so that no worker is left with it when the others have ended."""
    for item in items:
        if item.nodeid.startswith(SLOW_FOLDERS):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):  # else there is one process, and the order is as good as any
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (folder_of_spark(item.nodeid) is None, item.path not in slow))
