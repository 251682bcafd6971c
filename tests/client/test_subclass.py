"""Paired clients and senders are the SDK's to programs, and use nothing that they inherit."""

from __future__ import annotations

import inspect
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.core.credentials import AzureNamedKeyCredential

import twinbus
import twinbus.aio
from twinbus.pairing.sdk.subclass import guarded, refused_names

CLASSES = {
    "client": (twinbus.PairedServiceBusClient, azure.servicebus.ServiceBusClient),
    "aio client": (twinbus.aio.PairedServiceBusClient, azure.servicebus.aio.ServiceBusClient),
    "sender": (twinbus.PairedSender, azure.servicebus.ServiceBusSender),
    "aio sender": (twinbus.aio.PairedSender, azure.servicebus.aio.ServiceBusSender),
}
CREDENTIAL = AzureNamedKeyCredential("name", "key")
PAIR = ("contoso.example", CREDENTIAL), ("standby.example", CREDENTIAL)


@pytest.mark.parametrize("which", CLASSES)
def test_client_sender_and_receiver_are_subclasses_of_the_sdks(which: str) -> None:
    assert issubclass(*CLASSES[which])


@pytest.mark.parametrize("which", CLASSES)
def test_every_public_name_of_the_installed_sdk_is_overridden(which: str) -> None:
    ours, theirs = CLASSES[which]
    public = {name for name in dir(theirs) if not name.startswith("_")}
    assert len(public) >= 6
    assert refused_names(ours) == []
    assert public <= set(vars(ours))


@pytest.mark.parametrize("which", CLASSES)
def test_no_private_method_of_the_sdk_is_overridden_by_chance(which: str) -> None:
    ours, theirs = CLASSES[which]
    private = {name for name in vars(ours) if name.startswith("_") and not name.startswith("__")}
    assert private & set(dir(theirs)) == set()


async def test_instances_are_accepted_where_the_sdks_are() -> None:
    client = twinbus.PairedServiceBusClient(*PAIR)
    assert isinstance(client, azure.servicebus.ServiceBusClient)
    assert isinstance(client.get_queue_sender("orders"), azure.servicebus.ServiceBusSender)
    assert isinstance(client.get_queue_receiver("orders"), azure.servicebus.ServiceBusReceiver)
    client.close()
    async with twinbus.aio.PairedServiceBusClient(*PAIR) as aio_client:
        assert isinstance(aio_client, azure.servicebus.aio.ServiceBusClient)
        assert isinstance(aio_client.get_topic_sender("news"), azure.servicebus.aio.ServiceBusSender)


def test_nothing_of_the_sdk_is_set_up_in_a_paired_sender_or_client() -> None:
    """What the SDK keeps for its own connections is not there, so that nothing inherited can open one."""
    client = twinbus.PairedServiceBusClient(*PAIR)
    sender = client.get_queue_sender("orders")
    plain = azure.servicebus.ServiceBusClient(*PAIR[0])
    theirs = set(vars(plain)) | set(vars(plain.get_queue_sender("orders")))
    assert {"_config", "_handlers", "_credential", "_connection"} <= theirs
    assert theirs & (set(vars(client)) | set(vars(sender))) == {"entity_name", "fully_qualified_namespace"}
    client.close()


# ---- an SDK that is newer than this package ----


class NewerSender(azure.servicebus.ServiceBusSender):
    """As a later version of the SDK may have it."""

    finalized: list[object] = []  # noqa: RUF012

    def send_fast(self, message: Any) -> None:
        raise AssertionError("this bypasses the pairing")

    @classmethod
    def from_url(cls, url: str) -> NewerSender:
        raise AssertionError("this bypasses the pairing")

    @property
    def transport(self) -> Any:
        raise AssertionError("this bypasses the pairing")

    def __iter__(self) -> Any:
        raise AssertionError("this bypasses the pairing")

    def __repr__(self) -> str:
        raise AssertionError("this needs attributes that are not there")

    def __del__(self) -> None:
        NewerSender.finalized.append(self)


@guarded(NewerSender)
class Guarded(NewerSender):
    def __init__(self) -> None:
        pass

    def send_messages(self, *args: Any, **options: Any) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_method_that_a_newer_sdk_adds_raises_and_says_what_to_do() -> None:
    sender = Guarded()
    with pytest.raises(NotImplementedError, match=r"NewerSender\.send_fast.*bypass the pairing.*Update twinbus"):
        sender.send_fast("x")
    with pytest.raises(NotImplementedError, match=r"NewerSender\.transport"):
        sender.transport  # noqa: B018
    with pytest.raises(NotImplementedError, match=r"NewerSender\.from_url"):
        sender.from_url("x")
    with pytest.raises(TypeError, match="not callable"):
        Guarded.from_url("x")
    with pytest.raises((NotImplementedError, TypeError)):
        iter(sender)
    assert sender.send_messages() is None  # type: ignore[func-returns-value]


def test_hasattr_is_false_for_a_refused_method() -> None:
    assert not hasattr(Guarded(), "send_fast")
    assert hasattr(Guarded(), "send_messages")


def test_special_methods_are_not_inherited_either() -> None:
    sender = Guarded()
    assert "Guarded object" in repr(sender)
    del sender
    assert NewerSender.finalized == []


def test_the_refused_names_are_listed() -> None:
    assert {"__iter__", "from_url", "schedule_messages", "send_fast", "transport"} <= set(refused_names(Guarded))
    assert inspect.getattr_static(Guarded, "close") is vars(Guarded)["close"]
