"""Neither a key nor a token is in anything that Spark shows or keeps."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.drain.backlogs import QUEUES, Backlogs
from tests.spark.processes import Marked
from tests.syphon.pumping import numbered


@pytest.fixture
async def pair() -> AsyncIterator[Backlogs]:
    async with Backlogs() as running:
        yield running


async def drained(pair: Backlogs, folder: Path, **given: Any) -> tuple[dict[str, Any], str]:
    """What the process printed on standard output, as JSON, and its errors."""
    running = await Marked(
        "tests.spark.draining_process",
        str(folder),
        json.dumps(given),
        TWINBUS_PRIMARY=pair.primary.connection_string,
        TWINBUS_SECONDARY=pair.secondary.connection_string,
        PYTHONPATH=str(Path(__file__).parents[2]),
    ).start(folder)
    try:
        code, output, errors = await running.ended()
    finally:
        running.kill_all()
    assert code == 0, errors
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found, errors


def files_in(folder: Path) -> dict[Path, bytes]:
    """Every file but the standard output of the process, which printed its tokens there for us."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".out")
    return {path: path.read_bytes() for path in found}


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_keys_and_tokens_are_in_no_event_log_page_plan_setting_or_file(pair: Backlogs, tmp_path: Path) -> None:
    for queue in QUEUES:
        await pair.put_in(queue, numbered("orders", range(50)))
    logs, scratch, work = tmp_path / "events", tmp_path / "scratch", tmp_path / "work"
    for folder in (logs, scratch, work):
        folder.mkdir()
    config = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": logs.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.local.dir": str(scratch),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    found, errors = await drained(pair, work, config=config)
    assert found["report"]["moved"] == 150

    secrets = [re.search(r"sig=([^&]+)", token)[1] for token in found["tokens"]]  # type: ignore[index]
    assert len(set(secrets)) >= 1 + len(QUEUES)
    for namespace in (pair.primary, pair.secondary):
        secrets.append(namespace.connection_string.partition("SharedAccessKey=")[2].partition(";")[0])
    kept = files_in(tmp_path)
    events = b"".join(data for path, data in kept.items() if logs in path.parents)
    assert b"MapInArrow pump" in events  # the plans are in there
    assert b"SparkListenerEnvironmentUpdate" in events
    assert any("pages" in path.parts for path in kept)
    for secret in secrets:
        for path, data in kept.items():
            assert secret.encode() not in data, f"a secret is in {path}"
    assert not any(b"SharedAccessSignature sr=" in data for data in kept.values())
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_order_and_speculation_exclude_each_other(pair: Backlogs, tmp_path: Path) -> None:
    found, _ = await drained(pair, tmp_path, config={"spark.speculation": "true"}, order="session")
    assert found["error"].startswith("order cannot be kept with spark.speculation")
