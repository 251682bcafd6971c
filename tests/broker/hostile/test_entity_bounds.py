"""How many queues, topics and rules there may be: one more is refused in plain words, and the rest goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from azure.core.exceptions import HttpResponseError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import SqlRuleFilter
from tests.broker.faults.bench import until
from tests.broker.raw_client import Delivery, RawClient, Refused, encoded_message
from tests.broker.wire import async_administration

from twinbus.broker import Namespace, SubscriptionDescription, TopicDescription, descriptions
from twinbus.broker.admin import api

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
def room(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> int:
    """The namespace has room for a few queues and topics more; the most that there can be."""
    most = namespace.entity_count + FEW
    monkeypatch.setattr(api, "MAX_ENTITIES", most)
    return most


async def test_one_entity_too_many_is_refused_until_another_is_deleted(
    namespace: Namespace, admin: ServiceBusAdministrationClient, client: RawClient, room: int
) -> None:
    await admin.create_queue("bounded-queue")
    await admin.create_queue("bounded-other")
    await admin.create_topic("bounded-topic")
    for create in (admin.create_queue, admin.create_topic):
        with pytest.raises(HttpResponseError, match=f"can have at most {room} queues and topics") as refused:
            await create("bounded-beyond")
        assert refused.value.status_code == 403
    assert (namespace.entity_count, namespace.find("bounded-beyond")) == (room, None)
    await admin.create_subscription("bounded-topic", "all")  # has a bound of its own
    await admin.update_queue(await admin.get_queue("bounded-queue"), max_delivery_count=5)
    await (await client.sender("bounded-queue")).send(encoded_message("m"))
    await admin.delete_topic("bounded-topic")
    await admin.create_queue("bounded-beyond")
    assert namespace.entity_count == room


async def test_of_many_entities_that_are_created_at_once_only_as_many_as_there_is_room_for_are(
    namespace: Namespace, admin: ServiceBusAdministrationClient, room: int
) -> None:
    names = [f"crowd-{number}" for number in range(AT_ONCE)]
    outcomes = await asyncio.gather(*(admin.create_queue(name) for name in names), return_exceptions=True)
    refused = [one for one in outcomes if isinstance(one, BaseException)]
    assert [one.status_code for one in refused if isinstance(one, HttpResponseError)] == [403] * (AT_ONCE - FEW)
    assert len(refused) == AT_ONCE - FEW
    assert namespace.entity_count == room


async def new_subscription(namespace: Namespace, topic: str) -> str:
    """A subscription with the one rule that each begins with."""
    await namespace.create(TopicDescription(topic))
    description = SubscriptionDescription(topic, "all")
    await namespace.create_subscription(description)
    return description.path


async def rules_of(admin: ServiceBusAdministrationClient, topic: str) -> list[str]:
    return sorted([rule.name async for rule in admin.list_rules(topic, "all")])


async def add_rule(client: RawClient, subscription: str, name: str) -> None:
    body = {"rule-name": name, "rule-description": {"sql-filter": {"expression": "1 = 1"}}}
    await client.manage(subscription, "add-rule", body)


async def test_one_rule_too_many_is_refused_either_way_and_the_others_stay_in_force(
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
    with pytest.raises(Refused, match=f"argument-error: .*at most {FEW} rules"):
        await add_rule(client, subscription, "beyond")
    assert await rules_of(admin, "ruled") == ["$Default", "by-amqp", "by-http"]

    deliveries: list[Delivery] = []
    await (await client.sender("ruled")).send(encoded_message("m"))
    (await client.receiver(subscription, deliveries.append, deletes=True)).grant(10)
    await until(lambda: bool(deliveries))

    await admin.delete_rule("ruled", "all", "by-http")
    await add_rule(client, subscription, "beyond")
    assert await rules_of(admin, "ruled") == ["$Default", "beyond", "by-amqp"]


async def test_of_many_rules_that_are_added_at_once_only_as_many_as_there_is_room_for_are(
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
    refused = [one for one in outcomes if isinstance(one, BaseException)]
    assert all(isinstance(one, (HttpResponseError, Refused)) for one in refused), refused
    assert len(refused) == 2 * AT_ONCE - (FEW - 1)
    assert len(await rules_of(admin, "crowded")) == FEW
