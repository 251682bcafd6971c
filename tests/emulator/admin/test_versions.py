"""ETags of a real namespace over HTTP: each update changes the ETag, and requests with an old one are refused."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
from tests.emulator.admin.test_requests import entry
from tests.emulator.wire import async_administration

from twinbus.emulator import Namespace
from twinbus.emulator.auth.security import ROOT_POLICY, sign

QUEUE, TOPIC, SUBSCRIPTION = "/orders", "/events", "/events/subscriptions/billing"
RULE = f"{SUBSCRIPTION}/rules/all"


class Answer(NamedTuple):
    status: int
    version: str


class Client:
    """Sends signed requests to a namespace whose clock stands still: ETags change nevertheless."""

    def __init__(self, data: Path | None = None) -> None:
        self._now = time.time()
        self.namespace = Namespace("contoso", data=data, clock=lambda: self._now)
        self._session: aiohttp.ClientSession

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        async with self.namespace, aiohttp.ClientSession() as self._session:
            yield self

    async def _send(self, method: str, path: str, body: bytes | None = None, version: str | None = None) -> Answer:
        address = f"http://127.0.0.1:{self.namespace.port}"
        key = self.namespace.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]
        headers = {"Authorization": sign(address, ROOT_POLICY, key, self._now + 60)}
        if version is not None:
            headers["If-Match"] = version
        async with self._session.request(method, address + path, data=body, headers=headers) as answer:
            return Answer(answer.status, answer.headers.get("ETag", ""))

    async def create(self, path: str, kind: str, properties: bytes = b"") -> Answer:
        return await self._send("PUT", path, entry(kind.encode(), properties))

    async def update(self, path: str, kind: str, version: str) -> Answer:
        return await self._send("PUT", path, entry(kind.encode()), version)

    async def read(self, path: str) -> Answer:
        return await self._send("GET", path)

    async def delete(self, path: str, version: str) -> Answer:
        return await self._send("DELETE", path, version=version)


async def with_subscription(client: Client) -> None:
    assert (await client.create(TOPIC, "TopicDescription")).status == 201
    assert (await client.create(SUBSCRIPTION, "SubscriptionDescription")).status == 201


@pytest.mark.parametrize(
    ("path", "kind"),
    [(QUEUE, "QueueDescription"), (TOPIC, "TopicDescription"), (SUBSCRIPTION, "SubscriptionDescription")],
)
async def test_etag_is_valid_for_one_update(path: str, kind: str) -> None:
    async with Client().connected() as client:
        if path == SUBSCRIPTION:
            await with_subscription(client)
        else:
            assert (await client.create(path, kind)).status == 201
        first = (await client.read(path)).version
        updated = await client.update(path, kind, first)
        assert updated.status == 200
        assert (await client.update(path, kind, first)).status == 412
        assert (await client.delete(path, first)).status == 412
        assert await client.read(path) == (200, updated.version)
        assert (await client.update(path, kind, updated.version)).status == 200


async def test_adding_a_rule_changes_the_etag_of_its_subscription() -> None:
    async with Client().connected() as client:
        await with_subscription(client)
        first = (await client.read(SUBSCRIPTION)).version
        rule = b'<Filter i:type="TrueFilter"/><Name>all</Name>'
        assert (await client.create(RULE, "RuleDescription", rule)).status == 201
        assert (await client.update(SUBSCRIPTION, "SubscriptionDescription", first)).status == 412
        assert (await client.delete(RULE, first)).status == 412
        second = (await client.read(SUBSCRIPTION)).version
        assert (await client.update(SUBSCRIPTION, "SubscriptionDescription", second)).status == 200
        async with async_administration(client.namespace.connection_string) as admin:
            kept = [rule.name async for rule in admin.list_rules("events", "billing")]
        assert sorted(kept) == ["$Default", "all"]


async def test_removing_a_rule_changes_the_etag_of_its_subscription() -> None:
    async with Client().connected() as client:
        await with_subscription(client)
        first = (await client.read(SUBSCRIPTION)).version
        assert (await client.delete(f"{SUBSCRIPTION}/rules/$Default", first)).status == 200
        assert (await client.delete(SUBSCRIPTION, first)).status == 412
        assert (await client.delete(SUBSCRIPTION, (await client.read(SUBSCRIPTION)).version)).status == 200


async def test_etag_survives_a_restart(tmp_path: Path) -> None:
    async with Client(tmp_path).connected() as client:
        created = await client.create(QUEUE, "QueueDescription")
        updated = await client.update(QUEUE, "QueueDescription", created.version)
    async with Client(tmp_path).connected() as client:
        assert (await client.update(QUEUE, "QueueDescription", created.version)).status == 412
        assert (await client.update(QUEUE, "QueueDescription", updated.version)).status == 200
