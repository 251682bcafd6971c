"""The embedded namespace with the third-party client rhea."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.interop.node import Script

from twinbus.emulator import AZURE, DEFAULT, Namespace, Profile, QueueDescription, sign

ROOT = "RootManageSharedAccessKey"
LARGE = 200_000


@pytest.fixture(params=[DEFAULT, replace(AZURE, throttle=None)], ids=["default", "azure"])
async def namespace(request: pytest.FixtureRequest) -> AsyncIterator[Namespace]:
    profile: Profile = request.param
    async with Namespace("contoso", profile=profile) as running:
        await running.create(QueueDescription("orders"))
        yield running


def orders(namespace: Namespace, **more: Any) -> dict[str, Any]:
    return {"port": namespace.port, "queue": "orders", "large": LARGE, **more}


def with_password(namespace: Namespace) -> dict[str, Any]:
    return orders(namespace, username=ROOT, password=namespace.policy(ROOT).primary_key)


def with_token(namespace: Namespace) -> dict[str, Any]:
    audience = f"sb://127.0.0.1:{namespace.port}/orders"
    token = sign(audience, ROOT, namespace.policy(ROOT).primary_key, time.time() + 600)
    return orders(
        namespace,
        username="anonymous",
        audience=audience,
        token=token,
        token_type="servicebus.windows.net:sastoken",
        settles_second=True,
    )


def left(namespace: Namespace, path: str) -> int:
    node = namespace.entities.resolve(path)
    assert node is not None
    return node.queue.counters.active


async def run(modules: Path, asked: dict[str, Any]) -> list[dict[str, Any]]:
    async with Script(modules, "rhea_client.js", asked) as client:
        return await client.all_events()


@pytest.mark.parametrize("way", [with_password, with_token])
async def test_rhea_client_logs_in_sends_receives_and_settles(
    namespace: Namespace, node_modules: Path, way: Any
) -> None:
    events = await run(node_modules, way(namespace))
    kinds = Counter(event["event"] for event in events)
    assert [event["outcome"] for event in events if event["event"] == "sent"] == ["accepted"] * 4
    received = [event for event in events if event["event"] == "received"]
    assert sorted((event["body"], event["delivery_count"] or 0) for event in received) == [
        ("abandon", 0),
        ("abandon", 1),
        ("complete", 0),
        ("dead-letter", 0),
        ("x" * 20, 0),
    ]
    assert max(event["size"] for event in received) == LARGE
    assert received[0]["application_properties"] == {"text": "compl", "number": 7, "yes": True}
    assert left(namespace, "orders") == 0
    assert left(namespace, "orders/$DeadLetterQueue") == 1
    assert kinds["closed"] == 1
    if way is with_token:
        assert [event["status"] for event in events if event["event"] == "token"] == [202]
        assert kinds["settled"] == 5, "each settlement is confirmed"


async def test_rhea_client_with_a_wrong_password_is_refused(namespace: Namespace, node_modules: Path) -> None:
    asked = {**with_password(namespace), "password": "wrong"}
    async with Script(node_modules, "rhea_client.js", asked) as client:
        with pytest.raises(AssertionError, match="Failed to authenticate"):
            await client.all_events()
