"""The operator's log: one line per state change, with the pairing's name and no traceback."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage
from tests.client.threads import PATIENCE, Seen

from twinbus import (
    BacklogReady,
    BacklogUnavailableError,
    FailedOver,
    Moved,
    Namespace,
    PairedServiceBusClient,
    PingFailed,
    Recovered,
    SendAvailabilityOptions,
    Suspected,
    SuspicionCleared,
    SyphonOptions,
)
from twinbus.emulator import FaultKind
from twinbus.testing import TwinNamespaces, twin_namespaces

PING = 1.0


@pytest.fixture
def twins() -> Iterator[TwinNamespaces]:
    with twin_namespaces() as made:
        made.primary.create_queue("orders")
        yield made


def client(twins: TwinNamespaces, failover_interval: float, *, enable_syphon: bool = False) -> PairedServiceBusClient:
    options = SendAvailabilityOptions(
        backlog_queue_count=1,
        failover_interval=failover_interval,
        ping_primary_interval=PING,
        attempt_timeout=3,
        enable_syphon=enable_syphon,
        syphon=SyphonOptions(retry_min=0.2, retry_max=0.2),
    )
    return PairedServiceBusClient(twins.primary.connection_string, twins.secondary.connection_string, options)


def lines(caplog: pytest.LogCaptureFixture, logger: str = "twinbus") -> list[str]:
    """Return warnings and errors, without parts that vary between runs."""
    records = [record for record in caplog.records if record.name.startswith(logger)]
    assert [record for record in records if record.exc_info] == []
    warnings = [record.getMessage() for record in records if record.levelno >= logging.WARNING]
    return [re.sub(r"127\.0\.0\.1:\d+", "HOST", line) for line in warnings if "broker" not in line]


def test_outage_is_three_lines_of_the_pairing_and_two_of_the_syphon(
    twins: TwinNamespaces, caplog: pytest.LogCaptureFixture
) -> None:
    with client(twins, failover_interval=1, enable_syphon=True) as paired:
        seen, sender = Seen(paired), paired.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("1"))
        with twins.primary.outage():
            for number in range(5):
                sender.send_messages(ServiceBusMessage(str(number)))
            seen.next(FailedOver)
            sender.send_messages(ServiceBusMessage("diverted"))
        seen.next(Recovered)
        seen.next(Moved)
    assert lines(caplog, "twinbus.pairing") == [
        "contoso: orders is suspect: ServiceBusConnectionError",
        "contoso: orders has failed over: its messages go to the backlog",
        "contoso: orders is back: its messages go to the primary",
    ]
    lost, again = lines(caplog, "twinbus.syphon")
    assert lost.startswith("The connection to HOST was lost: ")
    assert again == "Connected to HOST again"


def test_pings_of_a_primary_that_answers_nothing_leave_no_traceback(
    twins: TwinNamespaces, caplog: pytest.LogCaptureFixture
) -> None:
    with client(twins, failover_interval=0) as paired:
        seen, sender = Seen(paired), paired.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("1"))
        with twins.primary.outage(FaultKind.BLACKHOLE):
            sender.send_messages(ServiceBusMessage("2"))
            seen.next(PingFailed)
            seen.next(PingFailed)
        seen.next(Recovered)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_log_has_no_traceback_of_a_credential_that_gives_no_token(
    twins: TwinNamespaces, caplog: pytest.LogCaptureFixture
) -> None:
    class Hanging:
        def __init__(self) -> None:
            self.is_released = threading.Event()

        def get_token(self, *scopes: str, **_: Any) -> AccessToken:
            self.is_released.wait(PATIENCE)
            raise ClientAuthenticationError("no such user")

    credential = Hanging()
    hosts = [one.connection_string.split("//")[1].split(";")[0].strip("/") for one in twins]
    options = SendAvailabilityOptions(backlog_queue_count=1, primary_name="contoso", attempt_timeout=1)
    pair = [Namespace(host, credential, use_tls=False) for host in hosts]
    with PairedServiceBusClient(*pair, options) as paired, pytest.raises(BacklogUnavailableError):
        paired.get_queue_sender("orders").send_messages(ServiceBusMessage("x"), timeout=3)
    credential.is_released.set()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_cleared_suspicion_is_an_event_and_a_log_line(twins: TwinNamespaces, caplog: pytest.LogCaptureFixture) -> None:
    with client(twins, failover_interval=60) as paired:
        seen, sender = Seen(paired), paired.get_queue_sender("orders")
        with twins.primary.outage():
            sender.send_messages(ServiceBusMessage("1"))
        assert seen.next(Suspected).entity == "orders"
        sender.send_messages(ServiceBusMessage("2"))
        assert seen.next(SuspicionCleared).entity == "orders"
        assert paired.status().entities[0].error is None
    assert lines(caplog)[-1] == "contoso: orders is no longer suspect"


def test_pairing_without_a_name_is_logged_by_the_address_of_its_primary(
    twins: TwinNamespaces, caplog: pytest.LogCaptureFixture
) -> None:
    with twins.primary.outage():
        paired = client(twins, failover_interval=60)
        seen = Seen(paired)
        paired.start()
    seen.next(BacklogReady)
    paired.close()
    [line] = lines(caplog)
    assert line.startswith("HOST: the backlog is not ready: ")
