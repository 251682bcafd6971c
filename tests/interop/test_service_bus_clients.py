"""The embedded namespace with unmodified Service Bus SDKs: JavaScript and an older Python one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.node import Script

from twinbus.emulator import Namespace

HERE = Path(__file__).parent
Features = dict[str, dict[str, Any]]


async def features(modules: Path, ca_file: str, **asked: str) -> Features:
    """The JavaScript SDK's result for each feature. Its administration client needs HTTPS."""
    async with Script(modules, "service_bus_client.js", asked, environment={"NODE_EXTRA_CA_CERTS": ca_file}) as client:
        return {said.pop("event"): said for said in await client.all_events()}


def check(found: Features) -> None:
    """The expected result of each feature in both SDKs."""
    assert found["administration"] == {
        "queues": ["baskets", "orders"],
        "lock_duration": "PT1M",
        "max_delivery_count": 5,
        "missing": False,
    }
    assert found["sent"] == {
        "body": {"order": 1},
        "id": "one",
        "properties": {"text": "grüße", "number": 7, "yes": True, "when": 1_794_000_000_000},
        "count": 2,
        "bodies": ["two", "three"],
        "time_to_live": 60_000,
    }
    assert found["settled"] == {"again": "two", "delivery_count": 1, "deferred": "three", "peeked": 2}
    assert found["dead_letter"] == {"body": "broken", "reason": "broken", "description": "no price"}
    assert found["schedule"] == {"peeked": "scheduled", "body": "later", "early": False, "arrived_early": False}
    assert found["sessions"] == {"bodies": [0, 2], "state": {"seen": 2}, "refused": True, "next": "b"}
    rules = found["rules"]
    assert "osition 8" in rules.pop("refused")
    assert rules == {"names": ["color", "subject"], "bodies": ["passes", "correlates"], "seen": [1, None]}
    assert found["counted"] == {"left": 0, "deleted": True}


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[Namespace]:
    async with Namespace("contoso", data=tmp_path) as running:
        yield running


async def test_javascript_sdk_works(namespace: Namespace, node_modules: Path) -> None:
    assert namespace.certificate is not None
    given = {"connection_string": namespace.connection_string, "administration": namespace.connection_string}
    check(await features(node_modules, str(namespace.certificate.ca_file), **given))


async def test_javascript_sdk_works_with_the_emulator_replacement(node_modules: Path, tmp_path: Path) -> None:
    """Uses the emulator's connection strings, with other ports because the usual ones may be taken."""
    ports = ["--namespace", "sbemulatorns=0", "--administration-port", "0"]
    serve = ["-m", "twinbus", "serve", "--json", "--emulator", *ports, "--data", str(tmp_path)]
    process = await asyncio.create_subprocess_exec(sys.executable, *serve, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        served = ready["namespaces"]["sbemulatorns"]
        key = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        check(
            await features(
                node_modules,
                ready["ca_file"],
                connection_string=f"Endpoint=sb://localhost:{served['port']};{key}",
                administration=f"Endpoint=sb://localhost:{served['administration_port']};{key}",
            )
        )
    finally:
        process.terminate()
        await process.wait()


async def test_older_python_sdk_works(namespace: Namespace, older_python: Path) -> None:
    assert namespace.certificate is not None
    ca_file = str(namespace.certificate.ca_file)
    plain = namespace.connection_string.replace(";UseDevelopmentEmulator=true", "")
    asked = json.dumps({"connection_string": plain, "ca_file": ca_file})
    client = await asyncio.create_subprocess_exec(
        *(str(older_python), str(HERE / "service_bus_client.py"), asked),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "REQUESTS_CA_BUNDLE": ca_file},
    )
    said, _ = await client.communicate()
    assert client.returncode == 0
    check({one.pop("event"): one for one in map(json.loads, said.splitlines())})
