"""Limits on the number of queues, topics and rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from azure.core.exceptions import HttpResponseError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import SqlRuleFilter
from tests.emulator.faults.bench import until
from tests.emulator.raw_client import Delivery, RawClient, RefusedError, encoded_message
from tests.emulator.wire import async_administration

from twinbus.emulator import Namespace, SubscriptionDescription, TopicDescription
from twinbus.emulator.admin import api
from twinbus.servicebus import entity_descriptions as descriptions

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("serving")]

FEW = 3
AT_ONCE = 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(namespace: Namespace) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with async_administration(namespace.connection_string) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def client(namespace: Namespace) -> AsyncIterator[RawClient]:
    async with RawClient(namespace.connection_string) as connected:
        await connected.put_token("")
        yield connected


@pytest.fixture
def entity_limit(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> int:
    """Limit the namespace to a few more queues and topics; returns the limit."""
    limit = namespace.entity_count + FEW
    monkeypatch.setattr(api, "MAX_ENTITIES", limit)
    return limit


async def test_entity_beyond_the_limit_is_refused_until_another_is_deleted(
    namespace: Namespace, admin: ServiceBusAdministrationClient, client: RawClient, entity_limit: int
) -> None:
    await admin.create_queue("bounded-queue")
    await admin.create_queue("bounded-other")
    await admin.create_topic("bounded-topic")
    for create in (admin.create_queue, admin.create_topic):
        with pytest.raises(HttpResponseError, match=f"can have at most {entity_limit} queues and topics") as refused:
            await create("bounded-beyond")
        assert refused.value.status_code == 403
    assert (namespace.entity_count, namespace.find("bounded-beyond")) == (entity_limit, None)
    await admin.create_subscription("bounded-topic", "all")  # subscriptions have another limit
    await admin.update_queue(await admin.get_queue("bounded-queue"), max_delivery_count=5)
    await (await client.sender("bounded-queue")).send(encoded_message("m"))
    await admin.delete_topic("bounded-topic")
    await admin.create_queue("bounded-beyond")
    assert namespace.entity_count == entity_limit


async def test_concurrent_creates_do_not_exceed_the_entity_limit(
    namespace: Namespace, admin: ServiceBusAdministrationClient, entity_limit: int
) -> None:
    names = [f"crowd-{number}" for number in range(AT_ONCE)]
    outcomes = await asyncio.gather(*(admin.create_queue(name) for name in names), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert [error.status_code for error in refused if isinstance(error, HttpResponseError)] == [403] * (AT_ONCE - FEW)
    assert len(refused) == AT_ONCE - FEW
    assert namespace.entity_count == entity_limit


async def new_subscription(namespace: Namespace, topic: str) -> str:
    """Create a subscription with its default rule; returns its path."""
    await namespace.create(TopicDescription(topic))
    description = SubscriptionDescription(topic, "all")
    await namespace.create_subscription(description)
    return description.path


async def rules_of(admin: ServiceBusAdministrationClient, topic: str) -> list[str]:
    return sorted([rule.name async for rule in admin.list_rules(topic, "all")])


async def add_rule(client: RawClient, subscription: str, name: str) -> None:
    body = {"rule-name": name, "rule-description": {"sql-filter": {"expression": "1 = 1"}}}
    await client.manage(subscription, "add-rule", body)


async def test_rule_beyond_the_limit_is_refused_over_http_and_amqp(
    namespace: Namespace,
    admin: ServiceBusAdministrationClient,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(descriptions, "MAX_RULES", FEW)
    subscription = await new_subscription(namespace, "ruled")
    await admin.create_rule("ruled", "all", "by-http", filter=SqlRuleFilter("1 = 0"))
    await add_rule(client, subscription, "by-amqp")
    with pytest.raises(HttpResponseError, match=f"at most {FEW} rules") as refused:
        await admin.create_rule("ruled", "all", "beyond", filter=SqlRuleFilter("1 = 1"))
    assert refused.value.status_code == 400
    with pytest.raises(RefusedError, match=f"argument-error: .*at most {FEW} rules"):
        await add_rule(client, subscription, "beyond")
    assert await rules_of(admin, "ruled") == ["$Default", "by-amqp", "by-http"]

    deliveries: list[Delivery] = []
    await (await client.sender("ruled")).send(encoded_message("m"))
    (await client.receiver(subscription, deliveries.append, deletes=True)).grant(10)
    await until(lambda: bool(deliveries))

    await admin.delete_rule("ruled", "all", "by-http")
    await add_rule(client, subscription, "beyond")
    assert await rules_of(admin, "ruled") == ["$Default", "beyond", "by-amqp"]


async def test_concurrent_rule_creates_do_not_exceed_the_limit(
    namespace: Namespace,
    admin: ServiceBusAdministrationClient,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(descriptions, "MAX_RULES", FEW)
    subscription = await new_subscription(namespace, "crowded")
    by_http = (admin.create_rule("crowded", "all", f"http-{number}") for number in range(AT_ONCE))
    by_amqp = (add_rule(client, subscription, f"amqp-{number}") for number in range(AT_ONCE))
    outcomes = await asyncio.gather(*by_http, *by_amqp, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(error, (HttpResponseError, RefusedError)) for error in refused), refused
    assert len(refused) == 2 * AT_ONCE - (FEW - 1)
    assert len(await rules_of(admin, "crowded")) == FEW
