"""Rules of subscriptions through the SDK: filters and actions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from tests.emulator.contract.bus import until
from tests.syphon.bus import connect

from twinbus.emulator import Namespace, TopicDescription
from twinbus.emulator.config.namespace_file import ConfigError, parse_config
from twinbus.pairing.namespace import Namespace as Dialled
from twinbus.syphon import RequestFailedError

pytestmark = pytest.mark.slow

TOPIC = "events"


class Bus:
    """A namespace with a topic, and helpers for tests."""

    def __init__(self, namespace: Namespace, client: ServiceBusClient, admin: ServiceBusAdministrationClient) -> None:
        self.namespace, self.client, self.admin = namespace, client, admin

    async def subscribe(self, name: str, *rules: tuple[Any, str | None], **properties: Any) -> None:
        """Create a subscription with only these rules, each a filter and optionally an action."""
        await self.admin.create_subscription(TOPIC, name, **properties)
        for number, (rule_filter, action) in enumerate(rules):
            rule_action = None if action is None else SqlRuleAction(action)
            await self.admin.create_rule(TOPIC, name, f"rule-{number}", filter=rule_filter, action=rule_action)
        if rules:
            await self.admin.delete_rule(TOPIC, name, "$Default")

    async def send(self, *messages: ServiceBusMessage) -> None:
        async with self.client.get_topic_sender(TOPIC) as sender:
            await sender.send_messages(list(messages))

    async def receive(self, name: str, count: int, sub_queue: str | None = None) -> list[ServiceBusReceivedMessage]:
        """Receive exactly `count` messages of a subscription and check that there are no more."""
        path = f"{TOPIC}/Subscriptions/{name}" + ("/$DeadLetterQueue" if sub_queue else "")
        node = self.namespace.entities.resolve(path)
        assert node is not None
        assert node.queue.counters.active == count
        async with self.client.get_subscription_receiver(TOPIC, name, sub_queue=sub_queue) as receiver:
            messages = [message async for message in _until(receiver, count)]
        return messages


async def _until(receiver: Any, count: int) -> AsyncIterator[ServiceBusReceivedMessage]:
    left = count
    while left:
        for message in await receiver.receive_messages(left, max_wait_time=10):
            await receiver.complete_message(message)
            left -= 1
            yield message


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    async with Namespace("contoso") as namespace:
        await namespace.create(TopicDescription(TOPIC))
        dialled = Dialled.from_connection_string(namespace.connection_string)
        async with dialled.async_client() as client, dialled.administration() as admin:
            yield Bus(namespace, client, admin)


def message(body: str, subject: str | None = None, **properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, subject=subject, application_properties=properties)


def bodies(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]


async def test_every_kind_of_filter_passes_matching_messages(bus: Bus) -> None:
    await bus.subscribe("all")
    await bus.subscribe("true", (TrueRuleFilter(), None))
    await bus.subscribe("none", (FalseRuleFilter(), None))
    await bus.subscribe("sql", (SqlRuleFilter("qty > @n", parameters={"@n": 5}), None))
    await bus.subscribe("label", (CorrelationRuleFilter(label="urgent"), None))
    await bus.subscribe("own", (CorrelationRuleFilter(label="urgent", properties={"qty": 9, "rush": True}), None))
    await bus.send(
        message("a", qty=3), message("b", qty=9), message("c", "urgent", qty=9, rush=True), message("d", "urgent")
    )
    assert bodies(await bus.receive("all", 4)) == ["a", "b", "c", "d"]
    assert bodies(await bus.receive("true", 4)) == ["a", "b", "c", "d"]
    await bus.receive("none", 0)
    assert bodies(await bus.receive("sql", 2)) == ["b", "c"]
    assert bodies(await bus.receive("label", 2)) == ["c", "d"]
    assert bodies(await bus.receive("own", 1)) == ["c"]


async def test_matching_rules_make_one_copy_plus_one_per_action(bus: Bus) -> None:
    await bus.subscribe(
        "s",
        (SqlRuleFilter("qty > 1"), None),
        (SqlRuleFilter("qty > 2"), None),
        (SqlRuleFilter("qty > 3"), "SET copy = 1"),
        (SqlRuleFilter("qty > 4"), "SET copy = 2"),
    )
    await bus.send(message("x", qty=9))
    copies = await bus.receive("s", 3)
    assert sorted(message.application_properties.get(b"copy", 0) for message in copies) == [0, 1, 2]


async def test_action_changes_only_its_properties(bus: Bus) -> None:
    action = "SET total = qty * 2; SET sys.Label = 'was ' + sys.Label; REMOVE secret; SET sys.ReplyTo = color"
    await bus.subscribe("s", (SqlRuleFilter("1=1"), action))
    await bus.send(message("body", "x", qty=21, color="red", secret="s", ratio=0.5, flag=True))
    (received,) = await bus.receive("s", 1)
    assert str(received) == "body"
    assert (received.subject, received.reply_to) == ("was x", "red")
    assert received.application_properties == {
        b"qty": 21, b"color": b"red", b"ratio": 0.5, b"flag": True, b"total": 42
    }  # fmt: skip


async def test_statement_sees_changes_of_earlier_statements(bus: Bus) -> None:
    await bus.subscribe("s", (TrueRuleFilter(), "SET n = 1; SET n = n + 1; SET n = n * 10"))
    await bus.send(message("x"))
    (received,) = await bus.receive("s", 1)
    assert received.application_properties == {b"n": 20}


async def test_message_with_a_failing_rule_is_dead_lettered_or_dropped(bus: Bus) -> None:
    rule = (SqlRuleFilter("qty + 1 > 0"), None)
    await bus.subscribe("kept", rule, dead_lettering_on_filter_evaluation_exceptions=True)
    await bus.subscribe("dropped", rule, dead_lettering_on_filter_evaluation_exceptions=False)
    await bus.send(message("x", qty="many"))
    await bus.receive("kept", 0)
    await bus.receive("dropped", 0)
    await bus.receive("dropped", 0, "deadletter")
    (dead,) = await bus.receive("kept", 1, "deadletter")
    assert dead.dead_letter_reason == "FilterEvaluationException"
    assert "rule-0" in (dead.dead_letter_error_description or "")
    assert str(dead) == "x"


async def test_a_scheduled_message_is_filtered_when_it_is_due(bus: Bus) -> None:
    await bus.subscribe("s", (SqlRuleFilter("qty > 5"), "SET seen = TRUE"))
    async with bus.client.get_topic_sender(TOPIC) as sender:
        due = datetime.now(UTC) + timedelta(seconds=1)
        await sender.schedule_messages([message("a", qty=1), message("b", qty=9)], due)
    async with bus.client.get_subscription_receiver(TOPIC, "s") as receiver:
        (received,) = await receiver.receive_messages(5, max_wait_time=10)
        await receiver.complete_message(received)
    assert str(received) == "b"
    assert received.application_properties == {b"qty": 9, b"seen": True}


# A time beyond the year 9999; the SDK sends a typed value unchecked.
FAR = {"TYPE": "TIMESTAMP", "VALUE": 1 << 62}


async def test_unreadable_value_fails_only_the_rules_that_read_it(bus: Bus) -> None:
    await bus.subscribe("s", (SqlRuleFilter("at > 1"), None), dead_lettering_on_filter_evaluation_exceptions=True)
    async with bus.client.get_topic_sender(TOPIC) as sender:
        await sender.send_messages(message("far", at=FAR))
        await sender.send_messages(message("near", at=2))
    assert bodies(await bus.receive("s", 1)) == ["near"]
    (dead,) = await bus.receive("s", 1, "deadletter")
    assert dead.dead_letter_reason == "FilterEvaluationException"


async def test_namespace_starts_with_a_due_message_with_an_unreadable_value(tmp_path: Path) -> None:
    config = f"[namespaces.contoso.topics.{TOPIC}.subscriptions.s.rules]\nr = 'at > 1'"
    (settings,) = parse_config(config, Path("some.toml")).namespaces
    async with (
        Namespace(settings, data=tmp_path) as namespace,
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_topic_sender(TOPIC) as sender,
    ):
        await sender.schedule_messages(message("far", at=FAR), datetime.now(UTC) + timedelta(hours=1))
    later = datetime.now(UTC) + timedelta(hours=2)
    async with Namespace(settings, data=tmp_path, clock=later.timestamp) as namespace:
        node = namespace.entities.resolve(f"{TOPIC}/Subscriptions/s/$DeadLetterQueue")
        assert node is not None
        await until(lambda: node.queue.counters.active == 1)


async def test_unreadable_value_does_not_block_forwarding(bus: Bus) -> None:
    await bus.subscribe("s", (SqlRuleFilter("at > 1"), None))
    await bus.admin.create_queue("in", forward_to=TOPIC)
    async with bus.client.get_queue_sender("in") as sender:
        for number in range(5):
            await sender.send_messages(message(str(number), at=FAR))
        await sender.send_messages(message("near", at=2))
    node = bus.namespace.entities.resolve(f"{TOPIC}/Subscriptions/s")
    assert node is not None
    await until(lambda: node.queue.counters.active == 1)
    assert bodies(await bus.receive("s", 1)) == ["near"]


# ---- subscriptions with sessions ----


async def test_copy_without_a_session_is_dead_lettered_in_a_session_subscription(bus: Bus) -> None:
    await bus.subscribe("plain")
    await bus.subscribe("red", (SqlRuleFilter("color = 'red'"), None), requires_session=True)
    await bus.subscribe("all", requires_session=True)
    await bus.send(message("a", color="blue"))
    assert bodies(await bus.receive("plain", 1)) == ["a"]
    await bus.receive("red", 0, "deadletter")
    (dead,) = await bus.receive("all", 1, "deadletter")
    assert (str(dead), dead.dead_letter_reason) == ("a", "Session id is null.")
    async with bus.client.get_topic_sender(TOPIC) as sender:
        await sender.send_messages(ServiceBusMessage("b", session_id="1"))
    async with bus.client.get_subscription_receiver(TOPIC, "all", session_id="1") as receiver:
        assert bodies(await receiver.receive_messages(max_wait_time=10)) == ["b"]


async def test_copy_whose_action_removes_the_session_is_dead_lettered(bus: Bus) -> None:
    await bus.subscribe("s", (SqlRuleFilter("1 = 1"), "REMOVE sys.SessionId"), requires_session=True)
    async with bus.client.get_topic_sender(TOPIC) as sender:
        await sender.send_messages(ServiceBusMessage("a", session_id="1"))
    (dead,) = await bus.receive("s", 1, "deadletter")
    assert (dead.dead_letter_reason, dead.session_id) == ("Session id is null.", None)


async def test_scheduled_message_without_a_session_reaches_subscriptions_without_sessions(bus: Bus) -> None:
    async with bus.client.get_topic_sender(TOPIC) as sender:
        await sender.schedule_messages(message("a"), datetime.now(UTC) + timedelta(seconds=2))
    await bus.subscribe("a-session", requires_session=True)
    await bus.subscribe("b-plain")
    node = bus.namespace.entities.resolve(f"{TOPIC}/Subscriptions/b-plain")
    assert node is not None
    await until(lambda: node.queue.counters.active == 1)
    assert bodies(await bus.receive("b-plain", 1)) == ["a"]
    assert len(await bus.receive("a-session", 1, "deadletter")) == 1


async def test_changed_rule_applies_to_later_messages(bus: Bus) -> None:
    await bus.subscribe("s", (SqlRuleFilter("qty > 5"), None))
    await bus.send(message("a", qty=1))
    rule = await bus.admin.get_rule(TOPIC, "s", "rule-0")
    rule.filter = SqlRuleFilter("qty < 5")
    await bus.admin.update_rule(TOPIC, "s", rule)
    await bus.send(message("b", qty=1))
    assert bodies(await bus.receive("s", 1)) == ["b"]


async def test_a_subscription_without_rules_gets_nothing(bus: Bus) -> None:
    await bus.subscribe("s")
    await bus.admin.delete_rule(TOPIC, "s", "$Default")
    await bus.send(message("a"))
    await bus.receive("s", 0)


async def test_updating_a_subscription_keeps_its_rules(bus: Bus) -> None:
    await bus.subscribe("s", (FalseRuleFilter(), None))
    subscription = await bus.admin.get_subscription(TOPIC, "s")
    subscription.max_delivery_count = 5
    await bus.admin.update_subscription(TOPIC, subscription)
    assert [rule.name async for rule in bus.admin.list_rules(TOPIC, "s")] == ["rule-0"]
    await bus.send(message("a"))
    await bus.receive("s", 0)


async def test_rules_survive_a_restart(tmp_path: Path) -> None:
    async with Namespace("contoso", data=tmp_path) as namespace:
        await namespace.create(TopicDescription(TOPIC))
        async with Dialled.from_connection_string(namespace.connection_string).administration() as admin:
            await admin.create_subscription(TOPIC, "s")
            rule_filter = CorrelationRuleFilter(label="x", properties={"n": 1, "f": 0.5, "b": True, "t": "text"})
            await admin.create_rule(TOPIC, "s", "mine", filter=rule_filter, action=SqlRuleAction("SET a = 1"))
            before = await admin.get_rule(TOPIC, "s", "mine")
    async with (
        Namespace("contoso", data=tmp_path) as namespace,
        Dialled.from_connection_string(namespace.connection_string).administration() as admin,
    ):
        after = await admin.get_rule(TOPIC, "s", "mine")
        assert [rule.name async for rule in admin.list_rules(TOPIC, "s")] == ["$Default", "mine"]
    assert vars(after.filter) == vars(before.filter)
    assert after.filter.properties == {"n": 1, "f": 0.5, "b": True, "t": "text"}
    assert after.created_at_utc == before.created_at_utc


FILE = """
[namespaces.contoso.topics.events.subscriptions.plain]
[namespaces.contoso.topics.events.subscriptions.urgent.rules]
high = "priority > 5"
red = { sql = "color = 'red'", action = "SET seen = 1" }
blue = { correlation = { label = "x", properties = { n = 1 } } }
"""


async def test_configuration_without_rules_keeps_existing_rules(tmp_path: Path) -> None:
    config = parse_config(FILE, tmp_path / "bus.toml").namespaces[0]
    for _ in range(2):
        async with (
            Namespace(replace(config, port=0), data=tmp_path) as namespace,
            Dialled.from_connection_string(namespace.connection_string).administration() as admin,
        ):
            urgent = {rule.name: rule async for rule in admin.list_rules(TOPIC, "urgent")}
            plain = [rule.name async for rule in admin.list_rules(TOPIC, "plain")]
            if plain == ["$Default"]:
                times = {name: rule.created_at_utc for name, rule in urgent.items()}
                await admin.create_rule(TOPIC, "plain", "mine", filter=SqlRuleFilter("a = 1"))
    assert plain == ["$Default", "mine"]
    assert {name: rule.created_at_utc for name, rule in urgent.items()} == times
    assert list(urgent) == ["blue", "high", "red"]
    assert urgent["high"].filter.sql_expression == "priority > 5"
    assert urgent["red"].action.sql_expression == "SET seen = 1"
    assert (urgent["blue"].filter.label, urgent["blue"].filter.properties) == ("x", {"n": 1})


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ('"priority >"', "rules.r: The rule 'r' is not valid. At position 11"),
        ("{ }", "must have either sql or correlation"),
        ('{ sql = "1=1", correlation = { label = "x" } }', "must have either sql or correlation"),
        ("{ correlation = { colour = 1 } }", "'colour' is not a property"),
        ("{ correlation = { label = 1 } }", "'label' of a correlation filter must be a string"),
        ("{ correlation = { } }", "at least one property"),
        ('{ sql = "1=1", act = "x" }', "is not known here"),
        ("5", "must be text"),
    ],
)
def test_invalid_rule_in_a_file_is_refused_with_its_path(rule: str, says: str, tmp_path: Path) -> None:
    text = f"[namespaces.contoso.topics.events.subscriptions.s.rules]\nr = {rule}\n"
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse_config(text, tmp_path / "bus.toml")


@pytest.mark.parametrize(
    ("rule_filter", "says"),
    [
        (SqlRuleFilter("qty ="), "At position 6"),
        (SqlRuleFilter("sys.Nothing = 1"), "sys.Nothing"),
        (SqlRuleFilter("x" * 2000), "at most 1024 characters"),
        (CorrelationRuleFilter(), "at least one property"),
        (SqlRuleFilter("qty = @n"), "no parameter @n"),
    ],
)
async def test_invalid_rule_is_refused_and_changes_nothing(bus: Bus, rule_filter: Any, says: str) -> None:
    await bus.subscribe("s")
    with pytest.raises(HttpResponseError, match=says):
        await bus.admin.create_rule(TOPIC, "s", "bad", filter=rule_filter)
    assert [rule.name async for rule in bus.admin.list_rules(TOPIC, "s")] == ["$Default"]


async def test_existing_and_missing_rules_answer_like_the_service(bus: Bus) -> None:
    await bus.subscribe("s")
    with pytest.raises(ResourceExistsError):
        await bus.admin.create_rule(TOPIC, "s", "$default")
    for call in (bus.admin.get_rule, bus.admin.delete_rule):
        with pytest.raises(ResourceNotFoundError):
            await call(TOPIC, "s", "none")
    with pytest.raises(ResourceNotFoundError):
        await bus.admin.get_rule(TOPIC, "missing", "$Default")


async def test_long_rule_list_is_paged(bus: Bus) -> None:
    await bus.subscribe("s")
    await asyncio.gather(*(bus.admin.create_rule(TOPIC, "s", f"r{number:03}") for number in range(120)))
    names = [rule.name async for rule in bus.admin.list_rules(TOPIC, "s")]
    assert names == ["$Default", *(f"r{number:03}" for number in range(120))]


# ---- over $management ----


async def ask(bus: Bus, operation: str, body: dict[str, Any], path: str = f"{TOPIC}/Subscriptions/s") -> Any:
    async with connect(bus.namespace) as connection:
        management = await connection.management(path)
        return (await management._request(operation, body, None)).body


async def test_rules_are_added_listed_and_removed_over_management(bus: Bus) -> None:
    await bus.subscribe("s")
    await ask(bus, "remove-rule", {"rule-name": "$Default"})
    sql = {"sql-filter": {"expression": "qty > 5"}, "sql-rule-action": {"expression": "SET seen = 1"}}
    await ask(bus, "add-rule", {"rule-name": "first", "rule-description": sql})
    correlation = {"correlation-filter": {"label": "x", "properties": {"n": 1}}}
    await ask(bus, "add-rule", {"rule-name": "second", "rule-description": correlation})
    rules = (await ask(bus, "enumerate-rules", {"skip": 0, "top": 10}))["rules"]
    described = [rule["rule-description"].value for rule in rules]
    assert [(rule[0].descriptor, rule[2]) for rule in described] == [(0x1370000006, "first"), (0x1370000009, "second")]
    assert described[0][0].value[0] == "qty > 5"
    assert described[0][1].value[0] == "SET seen = 1"
    assert (described[1][0].value[4], described[1][0].value[8]) == ("x", {"n": 1})
    await bus.send(message("a", qty=9), message("b", "x", n=1), message("c"))
    assert bodies(await bus.receive("s", 2)) == ["a", "b"]


@pytest.mark.parametrize(
    ("operation", "body", "status"),
    [
        ("add-rule", {"rule-name": "$DEFAULT", "rule-description": {"true-filter": {}}}, 409),
        ("add-rule", {"rule-name": "x", "rule-description": {"sql-filter": {"expression": "qty ="}}}, 400),
        ("add-rule", {"rule-name": "x", "rule-description": {"sql-filter": {}}}, 400),
        ("add-rule", {"rule-name": "x", "rule-description": {}}, 400),
        ("add-rule", {"rule-name": "x", "rule-description": "1=1"}, 400),
        ("add-rule", {"rule-name": "x", "rule-description": {"correlation-filter": {"label": 5}}}, 400),
        ("add-rule", {"rule-name": "x" * 51, "rule-description": {"true-filter": {}}}, 400),
        ("add-rule", {"rule-description": {"true-filter": {}}}, 400),
        ("remove-rule", {"rule-name": "none"}, 404),
        ("enumerate-rules", {"skip": -1, "top": 10}, 400),
    ],
)
async def test_invalid_rule_requests_are_refused(bus: Bus, operation: str, body: dict[str, Any], status: int) -> None:
    await bus.subscribe("s")
    with pytest.raises(RequestFailedError) as caught:
        await ask(bus, operation, body)
    assert caught.value.status == status
    assert [rule.name async for rule in bus.admin.list_rules(TOPIC, "s")] == ["$Default"]


async def test_only_a_subscription_has_rules(bus: Bus) -> None:
    with pytest.raises(RequestFailedError) as caught:
        await ask(bus, "enumerate-rules", {"skip": 0, "top": 1}, TOPIC)
    assert caught.value.condition == "amqp:not-allowed"
