"""OpenTelemetry metrics match what the namespaces counted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from opentelemetry import metrics as otel
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.pairing.twins import Twins, eventually

from twinbus import SendAvailabilityOptions, SyphonOptions
from twinbus.aio import PairedServiceBusClient
from twinbus.emulator import DEFAULT, Fault, FaultKind, FaultPoint
from twinbus.pairing import metrics
from twinbus.pairing.events import Event
from twinbus.pairing.pairing_state import Pairing

PING = 1.0  # seconds: the shortest there is


@pytest.fixture(scope="module")
def reader() -> InMemoryMetricReader:
    """Set up metrics once per process, as an application does."""
    found = InMemoryMetricReader()
    otel.set_meter_provider(MeterProvider([found]))
    return found


@pytest.fixture
async def twins() -> AsyncIterator[Twins]:
    async with Twins.running(DEFAULT) as running:
        yield running


def client(twins: Twins, name: str, **changed: Any) -> PairedServiceBusClient:
    options = SendAvailabilityOptions(
        **{
            "backlog_queue_count": 2,
            "failover_interval": 0,
            "ping_primary_interval": PING,
            "primary_name": "contoso",
            "syphon": SyphonOptions(retry_min=0.1),
            **changed,
        }
    )
    return PairedServiceBusClient(*twins.sides(), options, name=name)


class Collected:
    """The metrics of one pairing as they are now, and their units."""

    def __init__(self, reader: InMemoryMetricReader, pairing: str) -> None:
        self.units: dict[str, str] = {}
        self._points: list[tuple[str, dict[str, Any], float]] = []
        data = reader.get_metrics_data()
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            self.units[metric.name] = metric.unit
            for point in metric.data.data_points:
                attributes = dict(point.attributes or {})
                if attributes.pop("twinbus.pairing") == pairing:
                    self._points.append((metric.name, attributes, point.value))  # type: ignore[union-attr]

    def __getitem__(self, name: str) -> float:
        """The sum over all entities and queues."""
        return sum(value for found, _, value in self._points if found == name)

    def attributes(self, name: str) -> list[dict[str, Any]]:
        return [attributes for found, attributes, _ in self._points if found == name]


async def test_metrics_follow_an_outage(twins: Twins, reader: InMemoryMetricReader) -> None:
    queue = await twins.queue("orders")
    async with client(twins, "an outage", enable_syphon=True) as paired, paired.get_queue_sender("orders") as sender:
        assert Collected(reader, "an outage")["twinbus.backlog.queues"] == 2
        down = twins.primary.faults.add(Fault(FaultKind.REJECT, entity="orders", on=frozenset({FaultPoint.SEND})))
        await sender.send_messages(ServiceBusMessage("1"))
        await sender.send_messages([ServiceBusMessage("2"), ServiceBusMessage("3")])
        await eventually(lambda: Collected(reader, "an outage")["twinbus.pings.failed"] >= 1)
        during = Collected(reader, "an outage")
        assert during["twinbus.entity.state"] == 3
        twins.primary.faults.remove(down.id)
        await eventually(lambda: Collected(reader, "an outage")["twinbus.messages.moved"] == 3)
        await eventually(lambda: Collected(reader, "an outage")["twinbus.recoveries"] == 1)
        after = Collected(reader, "an outage")
    stored = [twins.backlog(index).activity.received for index in range(2)]
    assert during["twinbus.messages.diverted"] == sum(stored) == 3
    assert queue.activity.received == 3
    assert during["twinbus.failovers"] == 1
    assert during.attributes("twinbus.failovers") == [{"twinbus.entity": "orders", "twinbus.forced": False}]
    (diverted,) = during.attributes("twinbus.messages.diverted")
    assert diverted["twinbus.queue"] == f"contoso/x-servicebus-transfer/{stored.index(3)}"
    assert after["twinbus.pings"] == after["twinbus.pings.failed"] + 1
    assert after["twinbus.entity.state"] == 1
    assert after.units["twinbus.messages.moved"] == "{message}"


async def test_retired_queue_and_diverted_session_are_measured(twins: Twins, reader: InMemoryMetricReader) -> None:
    async with client(twins, "a retirement", order="session") as paired, paired.get_queue_sender("orders") as sender:
        twins.secondary.faults.add(Fault(FaultKind.FILL, entity="contoso/x-servicebus-transfer/0"))
        paired.fail_over("orders")
        for number in range(20):  # until one of the sessions has picked the queue that is full
            await sender.send_messages(ServiceBusMessage("x", session_id=f"s-{number}"))
        collected = Collected(reader, "a retirement")
        assert collected["twinbus.retirements"] == 1
        assert collected["twinbus.backlog.queues"] == 1
        assert collected["twinbus.sessions.diverted"] == 20
        assert collected.attributes("twinbus.failovers") == [{"twinbus.entity": "orders", "twinbus.forced": True}]


async def test_a_client_that_was_closed_is_not_observed_any_more(twins: Twins, reader: InMemoryMetricReader) -> None:
    async with client(twins, "closed") as paired:
        paired.fail_over("orders")
        assert Collected(reader, "closed")["twinbus.entity.state"] == 3
    assert Collected(reader, "closed").attributes("twinbus.entity.state") == []
    assert not paired._pairing.events.has_listeners


def test_worse_state_of_two_clients_is_reported(reader: InMemoryMetricReader) -> None:
    pairings = [Pairing(SendAvailabilityOptions(), "contoso", name="two clients") for _ in range(2)]
    ends = [metrics.watch(pairing) for pairing in pairings]
    for pairing in pairings:
        pairing.entity("orders")
    pairings[0].fail_over("orders")
    assert Collected(reader, "two clients")["twinbus.entity.state"] == 3
    for end in ends:
        end()


def test_every_counted_event_has_its_attribute_fields() -> None:
    for kind, (_, _, _, fields) in metrics._COUNTED.items():
        assert issubclass(kind, Event)
        assert set(fields) <= {*kind.__dataclass_fields__}


def test_without_opentelemetry_nothing_is_measured_and_nothing_listens() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from twinbus.pairing import metrics
from twinbus.pairing.pairing_state import Pairing
from twinbus.pairing.options import SendAvailabilityOptions
pairing = Pairing(SendAvailabilityOptions(), "contoso")
metrics.watch(pairing)()
assert not pairing.events.has_listeners
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_opentelemetry_is_imported_only_when_there_is_a_client() -> None:
    program = "import sys, twinbus, twinbus.pairing.metrics; assert 'opentelemetry' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
