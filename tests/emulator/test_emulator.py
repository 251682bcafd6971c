"""Drop-in use for Microsoft's emulator: its configuration file, ports and connection string."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from tests.emulator.contract.bus import SettableClock, let_pass
from tests.emulator.wire import ServeProcess, administration, async_administration
from tests.untouched_logging import untouched_logging as untouched_logging
from typer.testing import CliRunner

from twinbus.cli.main import app
from twinbus.emulator import Namespace
from twinbus.emulator.config.microsoft_config import emulator_config
from twinbus.emulator.config.namespace_file import ConfigError
from twinbus.servicebus.durations import TICKS_PER_MINUTE, TICKS_PER_SECOND

QUEUE = {
    "Name": "queue.1",
    "Properties": {
        "DeadLetteringOnMessageExpiration": False,
        "DefaultMessageTimeToLive": "PT1H",
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
        "ForwardDeadLetteredMessagesTo": "",
        "ForwardTo": "",
        "LockDuration": "PT30S",
        "MaxDeliveryCount": 3,
        "RequiresDuplicateDetection": False,
        "RequiresSession": False,
    },
}
RULES = [
    {
        "Name": "by-label",
        "Properties": {
            "FilterType": "Correlation",
            "CorrelationFilter": {"Label": "red", "ContentType": "application/json", "Properties": {"Size": "Big"}},
        },
    },
    {
        "Name": "by-sql",
        "Properties": {
            "FilterType": "Sql",
            "SqlFilter": {"SqlExpression": "Priority > 5"},
            "Action": {"SqlExpression": "SET seen = 'yes'"},
        },
    },
]
TOPIC = {
    "Name": "topic.1",
    "Properties": {"DefaultMessageTimeToLive": "PT1H", "RequiresDuplicateDetection": False},
    "Subscriptions": [
        {"Name": "all", "Properties": {"MaxDeliveryCount": 2}},
        {"Name": "some", "Properties": {"LockDuration": "PT1M"}, "Rules": RULES},
    ],
}


WINDOW = "DuplicateDetectionHistoryTimeWindow"
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def written(folder: Path, namespace: Any) -> Path:
    file = folder / "Config.json"
    content = {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}
    file.write_text(json.dumps(content), encoding="utf-8-sig")  # with a byte order mark, as some editors write it
    return file


def served(file: Path, clock: SettableClock) -> Namespace:
    """The namespace of the file, on a free port."""
    [config] = emulator_config(file).namespaces
    return Namespace(replace(config, port=0, administration_port=None), clock=clock)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path, {"Name": "sbemulatorns", "Queues": [QUEUE], "Topics": [TOPIC]})


def test_file_is_read_as_the_emulator_reads_it(file: Path) -> None:
    [namespace] = emulator_config(file).namespaces
    assert (namespace.name, namespace.port, namespace.administration_port) == ("sbemulatorns", 5672, 5300)
    queue = namespace.queues[0].description
    assert (queue.path, queue.lock_duration, queue.max_delivery_count) == ("queue.1", 30 * TICKS_PER_SECOND, 3)
    assert (queue.default_message_time_to_live, queue.forward_to) == (60 * TICKS_PER_MINUTE, None)
    everything, some = namespace.topics[0].subscriptions
    assert [rule.name for rule in everything.rules] == ["$Default"]
    assert [rule.name for rule in some.rules] == ["by-label", "by-sql"]


async def test_omitted_properties_get_the_emulator_defaults(tmp_path: Path) -> None:
    bare = {"Name": "t", "Subscriptions": [{"Name": "s"}]}
    unset = {"Name": "unset", "Properties": {"DefaultMessageTimeToLive": "", "MaxDeliveryCount": None}}
    file = written(tmp_path, {"Name": "sbemulatorns", "Queues": [{"Name": "bare"}, unset], "Topics": [bare]})
    async with (
        served(file, SettableClock()) as namespace,
        async_administration(namespace.connection_string) as admin,
    ):
        queues = [await admin.get_queue(name) for name in ("bare", "unset")]
        topic, subscription = await admin.get_topic("t"), await admin.get_subscription("t", "s")
    for receivable in (*queues, subscription):
        assert (receivable.lock_duration, receivable.max_delivery_count) == (MINUTE, 3)
        assert (receivable.requires_session, receivable.dead_lettering_on_message_expiration) == (False, False)
    for sendable in (*queues, topic):
        assert sendable.duplicate_detection_history_time_window == 20 * SECOND
        assert sendable.requires_duplicate_detection is False
    assert {one.default_message_time_to_live for one in (*queues, topic, subscription)} == {HOUR}


async def test_shortest_duplicate_detection_window_of_the_emulator_is_accepted(tmp_path: Path) -> None:
    properties = {"RequiresDuplicateDetection": True, WINDOW: "PT5S"}
    queue, topic = {"Name": "q", "Properties": properties}, {"Name": "t", "Properties": properties}
    file, clock = written(tmp_path, {"Name": "sbemulatorns", "Queues": [queue], "Topics": [topic]}), SettableClock()
    async with served(file, clock) as namespace:
        async with async_administration(namespace.connection_string) as admin:
            for found in (await admin.get_queue("q"), await admin.get_topic("t")):
                assert found.duplicate_detection_history_time_window == 5 * SECOND
        entity = namespace.find("q")
        assert entity is not None
        async with (
            AsyncServiceBusClient.from_connection_string(namespace.connection_string) as client,
            client.get_queue_sender("q") as sender,
        ):
            for _ in range(2):
                await sender.send_messages(ServiceBusMessage("x", message_id="same"))
            assert entity.queue.counters.active == 1
            await let_pass(namespace, clock, 6)
            await sender.send_messages(ServiceBusMessage("x", message_id="same"))
            assert entity.queue.counters.active == 2


def test_comments_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    file.write_text(
        """{ // the namespace
        "UserConfig": {"Namespaces": [{"Name": "sbemulatorns", /* two
            lines, "Queues": [] */ "Queues": [{"Name": "q", "Properties": {
                // "MaxDeliveryCount": 9,
                "UserMetadata": "// no \\" comment /* either */"}}]}]}}"""
    )
    [namespace] = emulator_config(file).namespaces
    description = namespace.queues[0].description
    assert (description.max_delivery_count, description.user_metadata) == (3, '// no " comment /* either */')


def test_no_file_gives_an_empty_namespace() -> None:
    [namespace] = emulator_config().namespaces
    assert (namespace.name, namespace.queues, namespace.topics) == ("sbemulatorns", (), ())


def ruled(*rules: Any) -> Any:
    return {"Name": "n", "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": list(rules)}]}]}


def queue_with(**properties: Any) -> Any:
    return {"Name": "n", "Queues": [{"Name": "q", "Properties": properties}]}


RULE = "Topics.t.Subscriptions.s.Rules.r"


@pytest.mark.parametrize(
    ("namespace", "words"),
    [
        ({"Queues": []}, "UserConfig.Namespaces[0].Name: is missing"),
        ({"Name": "9"}, "UserConfig.Namespaces[0]: must be named with"),
        ({"Name": "n", "Queues": {"q": 1}}, "UserConfig.Namespaces[0].Queues: must be a list of objects"),
        ({"Name": "n", "Queues": [{"Name": "q"}, {}]}, "Queues[1].Name: is missing"),
        ({"Name": "n", "Queues": [{"Name": "q"}, {"Name": "Q"}]}, "Queues.Q: is listed twice"),
        ({"Name": "n", "Queues": [{"Name": "q"}], "Topics": [{"Name": "q"}]}, "Topics: has 'q', which is a queue"),
        (
            {"Name": "n", "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s"}] * 2}]},
            "Topics.t.Subscriptions.s: is listed twice",
        ),
        (
            {"Name": "n", "Queues": [{"Name": "q", "Properties": []}]},
            "Queues.q.Properties: must be an object, not a list",
        ),
        (queue_with(LockDuration="PT9M"), "Queues.q.Properties.LockDuration: The supplied lock time exceeds"),
        (
            {"Name": "n", "Queues": [{"Name": "q.1", "Properties": {"Status": 1}}]},
            'Queues."q.1".Properties.Status: must',
        ),
        (queue_with(**{WINDOW: "PT4S"}), f"Queues.q.Properties.{WINDOW}: must be PT5S to P7D, not PT4S"),
        (
            {"Name": "n", "Topics": [{"Name": "t", "Properties": {WINDOW: "P8D"}}]},
            f"Topics.t.Properties.{WINDOW}: must be PT5S to P7D, not P8D",
        ),
        (queue_with(**{WINDOW: "soon"}), f"Queues.q.Properties.{WINDOW}: must be a duration"),
        (
            {
                "Name": "n",
                "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Properties": {"ForwardTo": "/"}}]}],
            },
            "Topics.t.Subscriptions.s.Properties.ForwardTo: '/' contains character(s)",
        ),
        (ruled({"Name": "r"}), f"{RULE}.Properties.FilterType: is missing"),
        (
            ruled({"Name": "r", "Properties": {"FilterType": "Sequel"}}),
            f"{RULE}.Properties.FilterType: must be one of Correlation, Sql, not 'Sequel'",
        ),
        (
            ruled({"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {}}}),
            f"{RULE}.Properties.SqlFilter.SqlExpression: is missing",
        ),
        (
            ruled({"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a ="}}}),
            f"{RULE}.Properties: The rule 'r' is not valid.",
        ),
        (
            ruled({"Name": "r", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Label": 5}}}),
            f"{RULE}.Properties.CorrelationFilter.Label: must be text, not a whole number",
        ),
        (ruled(RULES[0], RULES[0]), "Topics.t.Subscriptions.s.Rules.by-label: is listed twice"),
    ],
)
def test_invalid_value_is_refused_with_its_location(tmp_path: Path, namespace: Any, words: str) -> None:
    file = written(tmp_path, namespace)
    with pytest.raises(ConfigError) as caught:
        emulator_config(file)
    assert str(caught.value).startswith(f"{file}: {words}")


@pytest.mark.parametrize(
    ("namespace", "words"),
    [
        ({"Name": "n", "Quues": []}, "UserConfig.Namespaces[0].Quues: is not known here; did you mean Queues?"),
        (
            {"Name": "n", "Queues": [{"Name": "q", "Propertes": {}}]},
            "Queues.q.Propertes: is not known here; did you mean Properties?",
        ),
        (
            queue_with(LockDuraton="PT30S"),
            "Queues.q.Properties.LockDuraton: is not known here; did you mean LockDuration?",
        ),
        (queue_with(Foward=""), "Queues.q.Properties.Foward: is not known here; did you mean ForwardTo?"),
        (
            queue_with(lock_duration="PT30S"),
            "Queues.q.Properties.lock_duration: is not known here; did you mean LockDuration?",
        ),
        (
            {"Name": "n", "Topics": [{"Name": "t", "Subscription": []}]},
            "Topics.t.Subscription: is not known here; did you mean Subscriptions?",
        ),
        (
            {"Name": "n", "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rule": []}]}]},
            "Topics.t.Subscriptions.s.Rule: is not known here; did you mean Rules?",
        ),
        (ruled({"Name": "r", "Property": {}}), f"{RULE}.Property: is not known here; did you mean Properties?"),
        (
            ruled({"Name": "r", "Properties": {"FilterType": "Sql", "SqlFiler": {}}}),
            f"{RULE}.Properties.SqlFiler: is not known here; did you mean SqlFilter?",
        ),
        (
            ruled({"Name": "r", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Labell": "x"}}}),
            f"{RULE}.Properties.CorrelationFilter.Labell: is not known here; did you mean Label?",
        ),
    ],
)
def test_misspelt_key_is_refused_with_a_hint(tmp_path: Path, namespace: Any, words: str) -> None:
    file = written(tmp_path, namespace)
    with pytest.raises(ConfigError) as caught:
        emulator_config(file)
    assert str(caught.value) == f"{file}: {words}"


def test_every_key_of_the_schema_is_known(tmp_path: Path) -> None:
    texts = ("ContentType", "CorrelationId", "Label", "MessageId", "ReplyTo", "ReplyToSessionId", "SessionId", "To")
    everything = {
        "FilterType": "Correlation",
        "CorrelationFilter": {**dict.fromkeys(texts, "x"), "Properties": {"Size": "Big"}},
        "SqlFilter": {"SqlExpression": "1=1"},
        "Action": {"SqlExpression": "SET seen = 'yes'"},
    }
    properties = {name: value for name, value in QUEUE["Properties"].items() if "Duplicate" not in name}  # type: ignore[attr-defined]
    topic = {
        "Name": "t",
        "Properties": {"DefaultMessageTimeToLive": "PT1H", WINDOW: "PT20S", "RequiresDuplicateDetection": False},
        "Subscriptions": [
            {"Name": "s", "Properties": properties, "Rules": [{"Name": "r", "Properties": everything}]},
        ],
    }
    namespaces = [{"Name": "sbemulatorns", "Queues": [QUEUE], "Topics": [topic]}]
    content = {"$schema": "Config-schema.json", "UserConfig": {"Namespaces": namespaces, "Logging": {"Type": "File"}}}
    file = tmp_path / "Config.json"
    file.write_text(json.dumps(content))
    [namespace] = emulator_config(file).namespaces
    [subscription] = namespace.topics[0].subscriptions
    assert len(subscription.rules[0].filter.system()) == len(texts)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("/* {}", "not JSON"),
        ('// {}\n{"', "line 2"),
        ("[]", "Config.json: must be an object, not a list"),
        ("{}", "UserConfig.Namespaces: must have 1 entry, not 0"),
        ('{"UserConfg": {}}', "UserConfg: is not known here; did you mean UserConfig?"),
        ('{"UserConfig": {"Namespace": []}}', "UserConfig.Namespace: is not known here; did you mean Namespaces?"),
        ('{"UserConfig": {"Namespaces": [{}, {}]}}', "1 entry, not 2"),
    ],
)
def test_file_that_is_not_a_configuration_is_refused(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "Config.json"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        emulator_config(file)
    assert words in str(caught.value)


def test_change_that_conflicts_with_stored_entities_is_refused_with_its_location(tmp_path: Path) -> None:
    ports = ("--namespace", "sbemulatorns=0", "--administration-port", "0")
    looped = [{"Name": one, "Properties": {"ForwardTo": other}} for one, other in (("a", "b"), ("b", "a"))]
    gone = {"Name": "s", "Properties": {"ForwardDeadLetteredMessagesTo": "gone"}}
    topics = [{"Name": "t", "Subscriptions": [gone]}]
    wrong = {
        "Queues.a.Properties.ForwardTo: 'a' cannot forward messages that would come back to it.": {"Queues": looped},
        "Topics.t.Subscriptions.s.Properties.ForwardDeadLetteredMessagesTo: The auto forwarding destination": {
            "Topics": topics
        },
    }
    for words, entities in wrong.items():
        file = written(tmp_path, {"Name": "sbemulatorns", **entities})
        arguments = ("serve", "--data", str(tmp_path / "data"), "--emulator", str(file), *ports)
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert f"{file}: {words}" in result.stderr
    with ServeProcess(tmp_path / "data", "--emulator", *ports) as server:
        port = server.ready["namespaces"]["sbemulatorns"]["administration_port"]
        rest = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
        with administration(f"Endpoint=sb://127.0.0.1:{port};{rest}") as admin:
            assert [*admin.list_queues(), *admin.list_topics()] == []


def test_its_clients_are_served_with_its_key(file: Path, tmp_path: Path) -> None:
    ports = ("--namespace", "sbemulatorns=0", "--administration-port", "0")
    with ServeProcess(tmp_path / "data", "--durability", "memory", "--emulator", str(file), *ports) as server:
        ready = server.ready["namespaces"]["sbemulatorns"]
        rest = (
            "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )
        with urlopen(f"http://127.0.0.1:{ready['administration_port']}/health") as answer:
            assert answer.status == 200
        with administration(f"Endpoint=sb://127.0.0.1:{ready['administration_port']};{rest}") as admin:
            assert [queue.name for queue in admin.list_queues()] == ["queue.1"]
        with ServiceBusClient.from_connection_string(f"Endpoint=sb://127.0.0.1:{ready['port']};{rest}") as client:
            with client.get_topic_sender("topic.1") as sender:
                sender.send_messages(
                    [
                        ServiceBusMessage("neither"),
                        ServiceBusMessage("sql", application_properties={"Priority": 9}),
                        ServiceBusMessage(
                            "label",
                            subject="red",
                            content_type="application/json",
                            application_properties={"Size": "Big"},
                        ),
                    ]
                )
            with client.get_subscription_receiver("topic.1", "some") as receiver:
                received = receiver.receive_messages(3, max_wait_time=2)
                received += receiver.receive_messages(3, max_wait_time=1)
                assert sorted(str(message) for message in received) == ["label", "sql"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Config.json"], "needs --emulator"),
        (["--emulator", "--config", "namespace.toml"], "leave out --config"),
        (["--emulator", "missing.json"], "missing.json: cannot be read"),
        (["--key", "key.pem"], "--key needs --certificate"),
        (["--administration-port", "5672"], "more than one namespace"),
    ],
)
def test_conflicting_options_are_refused(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert words in result.output
