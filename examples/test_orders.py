"""Tests of a program of yours, with two live namespaces that can be broken: `pytest examples/test_orders.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusMessage

from twinbus import BacklogUnavailableError, PairedServiceBusClient, Route, SendAvailabilityOptions
from twinbus.emulator import Fault, FaultKind
from twinbus.testing import TwinNamespaces


@pytest.fixture
def client(twinbus_namespaces: TwinNamespaces) -> Iterator[PairedServiceBusClient]:
    """`twinbus_namespaces` comes with twinbus; there is nothing to import or start."""
    primary, secondary = twinbus_namespaces
    primary.create_queue("orders")
    options = SendAvailabilityOptions(failover_interval=0, backlog_queue_count=1)
    with PairedServiceBusClient(primary.connection_string, secondary.connection_string, options) as made:
        yield made


def test_an_order_is_accepted_in_an_outage(client: PairedServiceBusClient, twinbus_namespaces: TwinNamespaces) -> None:
    with client.get_queue_sender("orders") as sender, twinbus_namespaces.primary.outage():
        assert sender.send_messages(ServiceBusMessage("order 1")).route is Route.BACKLOG
    assert twinbus_namespaces.secondary.message_count("contoso/x-servicebus-transfer/0") == 1


def test_a_throttled_order_is_tried_again(client: PairedServiceBusClient, twinbus_namespaces: TwinNamespaces) -> None:
    fault = twinbus_namespaces.primary.add_fault(Fault(FaultKind.THROTTLE, "orders", count=1))
    with client.get_queue_sender("orders") as sender:
        assert sender.send_messages(ServiceBusMessage("order 1")).route is Route.PRIMARY
    assert fault.fired == 1


def test_nobody_is_told_that_all_is_well_if_both_are_down(
    client: PairedServiceBusClient, twinbus_namespaces: TwinNamespaces
) -> None:
    primary, secondary = twinbus_namespaces
    with client.get_queue_sender("orders") as sender, primary.outage(), secondary.outage():
        with pytest.raises(BacklogUnavailableError) as caught:
            sender.send_messages(ServiceBusMessage("order 1"))
        assert caught.value.entity == "orders"
