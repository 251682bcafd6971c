"""What all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A deadline per example measures the machine, not the code; pytest-timeout bounds the whole test.
settings.register_profile("twinbus", deadline=None, print_blob=True)
settings.load_profile("twinbus")

#: The tests in here share one Spark, which takes many seconds to start. Those that start their own live in tests/spark.
SHARING_SPARK = "tests/pipeline/"
#: These need none: reports read results without it.
WITHOUT_SPARK = "tests/pipeline/report/"


class ModulesAndOneSpark(LoadScopeScheduling):
    """Every module stays on one worker, as `--dist loadscope` has it, and all that share Spark on the same one."""

    def _split_scope(self, nodeid: str) -> str:
        is_sharing = nodeid.startswith(SHARING_SPARK) and not nodeid.startswith(WITHOUT_SPARK)
        return SHARING_SPARK if is_sharing else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return ModulesAndOneSpark(config, log) if config.getvalue("dist") == "loadscope" else None
