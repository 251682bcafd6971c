"""An unknown name raises an error that names the entity and the namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from twinbus import EntityNotFoundError, PairedServiceBusClient, SendAvailabilityOptions
from twinbus.aio import PairedServiceBusClient as AsyncPairedServiceBusClient
from twinbus.pairing.sdk.version import INSTALLED, METHOD_SINCE
from twinbus.testing import TwinNamespaces, twin_namespaces

OPTIONS = SendAvailabilityOptions(backlog_queue_count=1)
WAIT = 5.0

SENDS: dict[str, Callable[[Any], Any]] = {
    "send": lambda sender: sender.send_messages(ServiceBusMessage("x")),
    "batch": lambda sender: sender.create_message_batch(),
    "cancel": lambda sender: sender.cancel_scheduled_messages(1),
}
RECEIVES: dict[str, Callable[[Any], Any]] = {
    "receive": lambda receiver: receiver.receive_messages(max_wait_time=WAIT),
    "peek": lambda receiver: receiver.peek_messages(),
    "deferred": lambda receiver: receiver.receive_deferred_messages(1),
}


@pytest.fixture(scope="module")
def twins() -> Iterator[TwinNamespaces]:
    with twin_namespaces() as made:
        yield made


def check(error: BaseException, twins: TwinNamespaces, entity: str) -> None:
    host = twins.primary.connection_string.split("//")[1].split(";")[0].strip("/")
    assert isinstance(error, EntityNotFoundError)
    assert isinstance(error, MessagingEntityNotFoundError)
    assert (error.entity, error.namespace) == (entity, host)
    assert str(error).startswith(f"The namespace '{host}' has no entity '{entity}'.")
    assert error.inner_exception is not None


def test_missing_entity_is_an_error_of_the_synchronous_client(twins: TwinNamespaces) -> None:
    strings = twins.primary.connection_string, twins.secondary.connection_string
    with PairedServiceBusClient(*strings, OPTIONS, retry_total=0) as client:
        for call in SENDS.values():
            with pytest.raises(EntityNotFoundError) as raised:
                call(client.get_queue_sender("no-such-queue"))
            check(raised.value, twins, "no-such-queue")
        for call in RECEIVES.values():
            with pytest.raises(EntityNotFoundError) as raised:
                call(client.get_subscription_receiver("no-such-topic", "all"))
            check(raised.value, twins, "no-such-topic/Subscriptions/all")
        with pytest.raises(EntityNotFoundError), client.get_queue_receiver("no-such-queue"):
            pass
        with pytest.raises(EntityNotFoundError):
            next(iter(client.get_queue_receiver("no-such-queue", max_wait_time=WAIT)))
        if METHOD_SINCE["list_queue_sessions"] <= INSTALLED:
            with pytest.raises(EntityNotFoundError) as raised:
                list(client.list_queue_sessions("no-such-queue"))
            check(raised.value, twins, "no-such-queue")
            with pytest.raises(EntityNotFoundError) as raised:
                list(client.list_subscription_sessions("no-such-topic", "all"))
            check(raised.value, twins, "no-such-topic/Subscriptions/all")
        assert [entity.state.value for entity in client.status().entities] == ["healthy"]


async def test_missing_entity_is_an_error_of_the_asynchronous_client(twins: TwinNamespaces) -> None:
    strings = twins.primary.connection_string, twins.secondary.connection_string
    async with AsyncPairedServiceBusClient(*strings, OPTIONS, retry_total=0) as client:
        for call in SENDS.values():
            with pytest.raises(EntityNotFoundError) as raised:
                await call(client.get_queue_sender("no-such-queue"))
            check(raised.value, twins, "no-such-queue")
        for call in RECEIVES.values():
            with pytest.raises(EntityNotFoundError) as raised:
                await call(client.get_subscription_receiver("no-such-topic", "all"))
            check(raised.value, twins, "no-such-topic/Subscriptions/all")
        with pytest.raises(EntityNotFoundError):
            async with client.get_queue_receiver("no-such-queue"):
                pass
        with pytest.raises(EntityNotFoundError):
            async for _ in client.get_queue_receiver("no-such-queue", max_wait_time=WAIT):
                pass
        if METHOD_SINCE["list_queue_sessions"] <= INSTALLED:
            with pytest.raises(EntityNotFoundError) as raised:
                [session async for session in client.list_queue_sessions("no-such-queue")]
            check(raised.value, twins, "no-such-queue")


def test_failed_calls_cause_no_event_loop_complaints(twins: TwinNamespaces, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(test_missing_entity_is_an_error_of_the_asynchronous_client(twins), debug=True)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
