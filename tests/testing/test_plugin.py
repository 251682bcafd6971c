"""The fixture `twinbus_namespaces` in a separate pytest run, and `twin_namespaces`."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.exceptions import ServiceBusError

from twinbus import PairedServiceBusClient, Route, SendAvailabilityOptions
from twinbus.emulator import Fault, FaultKind
from twinbus.testing import EmbeddedNamespace, TwinNamespaces, twin_namespaces

pytest_plugins = ["pytester"]

USER_TEST = """
from azure.servicebus import ServiceBusClient, ServiceBusMessage

def test_a_message_goes_through(twinbus_namespaces):
    primary, secondary = twinbus_namespaces
    primary.create_queue("orders")
    with ServiceBusClient.from_connection_string(primary.connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("order 1"))
    assert primary.message_count("orders") == 1

def test_every_test_has_namespaces_of_its_own(twinbus_namespaces):
    twinbus_namespaces.primary.create_queue("orders")
    assert twinbus_namespaces.primary.message_count("orders") == 0
"""


def test_pytest_discovers_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USER_TEST)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    result.assert_outcomes(passed=2)


def test_plugin_does_not_import_the_emulator_or_the_sdk() -> None:
    modules = "twinbus.emulator.server.namespace", "azure"
    code = f"import sys, twinbus.testing.pytest_plugin; print(*(name in sys.modules for name in {modules}))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["False", "False"]


def test_sends_survive_an_outage_of_the_primary(twinbus_namespaces: TwinNamespaces) -> None:
    primary, secondary = twinbus_namespaces
    primary.create_queue("orders")
    options = SendAvailabilityOptions(failover_interval=0, backlog_queue_count=1, attempt_timeout=5)
    with (
        PairedServiceBusClient.from_connection_strings(
            primary.connection_string, secondary.connection_string, options=options
        ) as client,
        client.get_queue_sender("orders") as sender,
    ):
        assert sender.send_messages(ServiceBusMessage("before")).route is Route.PRIMARY
        with primary.outage():
            assert sender.send_messages(ServiceBusMessage("meanwhile")).route is Route.BACKLOG
    assert primary.message_count("orders") == 1
    assert secondary.message_count("contoso/x-servicebus-transfer/0") == 1
    assert (primary.backlog_count(), secondary.backlog_count()) == (0, 1)


def test_create_queue_and_topic_with_properties() -> None:
    with twin_namespaces("one", "two") as (primary, secondary):
        assert (primary.name, secondary.name) == ("one", "two")
        primary.create_queue("q", requires_session=True, lock_duration=timedelta(seconds=5))
        primary.create_topic("t", "first", "second")
        with ServiceBusClient.from_connection_string(primary.connection_string) as client:
            with client.get_topic_sender("t") as sender:
                sender.send_messages(ServiceBusMessage("x"))
            with client.get_queue_sender("q") as sender, pytest.raises(ServiceBusError):
                sender.send_messages(ServiceBusMessage("without a session"))
        assert primary.message_count("t/subscriptions/first") == 1
        assert primary.message_count("t/subscriptions/second") == 1


def test_fault_counts_how_often_it_fired() -> None:
    with twin_namespaces() as (primary, _):
        primary.create_queue("q")
        fault = primary.add_fault(Fault(FaultKind.THROTTLE, "q", count=1))
        with (
            ServiceBusClient.from_connection_string(primary.connection_string, retry_backoff_factor=0.01) as client,
            client.get_queue_sender("q") as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))
        assert fault.fired == 1
        primary.clear_faults()


def test_administration_client_works(twinbus_namespaces: TwinNamespaces) -> None:
    for namespace in twinbus_namespaces:
        namespace.create_queue("q", lock_duration=timedelta(seconds=30))
        with namespace.administration_client() as admin:
            assert admin.get_queue("q").lock_duration == timedelta(seconds=30)
            assert admin.get_namespace_properties().name == namespace.name


async def test_own_administration_client_can_use_ca_file(twinbus_namespaces: TwinNamespaces) -> None:
    primary, _ = twinbus_namespaces
    async with AsyncAdministrationClient.from_connection_string(
        primary.connection_string, connection_verify=primary.ca_file
    ) as admin:
        await admin.create_queue("q")
    assert primary.message_count("q") == 0


def test_all_namespaces_of_a_process_share_one_certificate() -> None:
    with twin_namespaces() as before, twin_namespaces("other", "names") as meanwhile:
        pass
    with twin_namespaces() as after:
        assert len({namespace.ca_file for twins in (before, meanwhile, after) for namespace in twins}) == 1


def test_certificate_is_deleted_at_exit() -> None:
    code = "from twinbus.testing import twin_namespaces\nwith twin_namespaces() as twins: print(twins.primary.ca_file)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    ca_file = Path(process.stdout.strip())
    assert ca_file.name == "ca.pem"
    assert not ca_file.parent.exists()


def test_create_subscription_with_rules_and_properties(twinbus_namespaces: TwinNamespaces) -> None:
    primary, _ = twinbus_namespaces
    primary.create_topic("events", "all")
    primary.create_subscription(
        "events",
        "some",
        rules={
            "high": "priority > 5",
            "red": {"sql": "color = 'red'", "action": "SET seen = TRUE"},
            "mine": {"correlation": {"label": "order", "properties": {"region": 7}}},
        },
        requires_session=True,
        lock_duration="PT30S",
    )
    primary.create_subscription("events", "none", rules={})
    with (
        ServiceBusClient.from_connection_string(primary.connection_string) as client,
        client.get_topic_sender("events") as sender,
    ):
        for properties, subject in (({"priority": 9}, None), ({"priority": 1}, None), ({"region": 7}, "order")):
            message = ServiceBusMessage("x", session_id="s", subject=subject, application_properties=properties)
            sender.send_messages(message)
    counts = [primary.message_count(f"events/subscriptions/{name}") for name in ("all", "some", "none")]
    assert counts == [3, 2, 0]
    with primary.administration_client() as admin:
        made = admin.get_subscription("events", "some")
        assert (made.requires_session, made.lock_duration) == (True, timedelta(seconds=30))
        rules = {rule.name: rule for rule in admin.list_rules("events", "some")}
        assert sorted(rules) == ["high", "mine", "red"]
        assert rules["red"].action.sql_expression == "SET seen = TRUE"
        (default,) = admin.list_rules("events", "all")
        assert abs(default.created_at_utc.timestamp() - time.time()) < 60


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (["priority > 5"], "rules: must be a mapping of names to rules"),
        ({1: "priority > 5"}, "rules: must be a mapping of names to rules"),
        ({"high": 5}, "rules.high.sql: must be text, not a whole number"),
        ({"high": {"filter": "1=1"}}, "rules.high.filter: is not known here; known are action, correlation, sql"),
        ({"high": {"action": "SET a = 1"}}, "rules.high: must have either sql or correlation"),
        ({"high": {"sql": "1=1", "correlation": {}}}, "rules.high: must have either sql or correlation"),
        ({"high": {"sql": 5}}, "rules.high.sql: must be text, not a whole number"),
        ({"high": {"sql": "1=1", "action": None}}, "rules.high.action: must be text, not nothing"),
        ({"mine": {"correlation": {"colour": "red"}}}, "rules.mine.correlation: 'colour' is not a property"),
        ({"mine": {"correlation": "label"}}, "rules.mine.correlation: 'correlation' must be a map"),
        ({"same": "1=1", "Same": "1=1"}, "rules: has 'Same' twice"),
        ({"high": "priority >"}, "The rule 'high' is not valid"),
    ],
)
def test_invalid_rules_are_refused(twinbus_namespaces: TwinNamespaces, rules: Any, says: str) -> None:
    twinbus_namespaces.primary.create_topic("t")
    with pytest.raises(ValueError, match=says):
        twinbus_namespaces.primary.create_subscription("t", "s", rules=rules)


@pytest.mark.parametrize("duration", [timedelta(seconds=90), "PT90S", "PT1M30S"])
def test_durations_are_timedelta_or_iso_text(twinbus_namespaces: TwinNamespaces, duration: Any) -> None:
    primary, _ = twinbus_namespaces
    primary.create_queue("q", lock_duration=duration, default_message_time_to_live=duration)
    primary.create_topic("t", duplicate_detection_history_time_window=duration)
    with primary.administration_client() as admin:
        queue, topic = admin.get_queue("q"), admin.get_topic("t")
    assert queue.lock_duration == queue.default_message_time_to_live == timedelta(seconds=90)
    assert topic.duplicate_detection_history_time_window == timedelta(seconds=90)


@pytest.mark.parametrize(
    ("properties", "error", "says"),
    [
        ({"lock_duration": timedelta(hours=1)}, ValueError, "lock_duration"),
        ({"lock_duration": "PT1H"}, ValueError, "lock_duration"),
        ({"lock_duration": "30s"}, ValueError, "lock_duration: '30s' is not an ISO 8601 duration"),
        (
            {"lock_duration": 3},
            ValueError,
            "lock_duration: must be a timedelta or ISO 8601 text such as PT30S, not int",
        ),
        ({"auto_delete_on_idle": None}, ValueError, "auto_delete_on_idle: must be a timedelta or ISO 8601 text"),
        ({"max_delivery_count": timedelta(seconds=1)}, ValueError, "max_delivery_count: must be a whole number"),
        ({"requires_session": "no"}, ValueError, "requires_session: must be True or False, not str"),
        ({"locks": 1}, TypeError, "locks"),
    ],
)
def test_invalid_queue_is_refused(
    twinbus_namespaces: TwinNamespaces, properties: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        twinbus_namespaces.primary.create_queue("q", **properties)


@pytest.mark.parametrize(
    "use",
    [
        lambda namespace: namespace.create_queue("q"),
        lambda namespace: namespace.create_topic("t"),
        lambda namespace: namespace.create_subscription("t", "s"),
        lambda namespace: namespace.add_fault(Fault(FaultKind.THROTTLE)),
        lambda namespace: namespace.clear_faults(),
        lambda namespace: namespace.outage().__enter__(),
        lambda namespace: namespace.message_count("q"),
    ],
)
def test_stopped_namespace_raises_runtime_error(use: Callable[[EmbeddedNamespace], object]) -> None:
    with twin_namespaces() as (primary, _):
        pass
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match="is closed"):
            use(primary)
        gc.collect()  # raises "never awaited" warnings now
    assert [str(warning.message) for warning in warned if "never awaited" in str(warning.message)] == []


def test_message_count_of_missing_entity_raises(twinbus_namespaces: TwinNamespaces) -> None:
    with pytest.raises(ValueError, match="has no entity 'nothing'"):
        twinbus_namespaces.primary.message_count("nothing")
