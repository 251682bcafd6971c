"""The fixture `twinbus_namespaces`, in a test run of its own and by hand."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus import PairedServiceBusClient, Route, SendAvailabilityOptions
from twinbus.broker import Fault, Kind
from twinbus.testing import TwinNamespaces, twin_namespaces

pytest_plugins = ["pytester"]

SOMEBODYS_TEST = """
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


def test_pytest_finds_the_fixture_by_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SOMEBODYS_TEST)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    result.assert_outcomes(passed=2)


def test_who_does_not_ask_for_it_does_not_pay_for_it() -> None:
    code = (
        "import sys, twinbus.testing.plugin; print('twinbus.broker.namespace' in sys.modules, 'azure' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


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


def test_topics_sessions_and_times_are_made_as_asked() -> None:
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


def test_faults_say_how_often_they_fired() -> None:
    with twin_namespaces() as (primary, _):
        primary.create_queue("q")
        fault = primary.add_fault(Fault(Kind.THROTTLE, "q", count=1))
        with (
            ServiceBusClient.from_connection_string(primary.connection_string, retry_backoff_factor=0.01) as client,
            client.get_queue_sender("q") as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))
        assert fault.fired == 1
        primary.clear_faults()


@pytest.mark.parametrize(
    ("properties", "error", "says"),
    [
        ({"lock_duration": timedelta(hours=1)}, ValueError, "lock_duration"),
        ({"locks": 1}, TypeError, "locks"),
    ],
)
def test_a_queue_that_cannot_be_is_refused(
    twinbus_namespaces: TwinNamespaces, properties: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        twinbus_namespaces.primary.create_queue("q", **properties)


def test_the_messages_of_nothing_cannot_be_counted(twinbus_namespaces: TwinNamespaces) -> None:
    with pytest.raises(ValueError, match="has no entity 'nothing'"):
        twinbus_namespaces.primary.message_count("nothing")
