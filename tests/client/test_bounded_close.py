"""Closing a client takes at most 5 seconds, whatever hangs, and leaves no thread of ours behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage
from tests.client.threads import eventually

from twinbus import Namespace, PairedServiceBusClient, SendAvailabilityOptions
from twinbus.aio import PairedServiceBusClient as AsyncPairedServiceBusClient
from twinbus.emulator import Fault, FaultKind
from twinbus.testing import TwinNamespaces, twin_namespaces

#: 5 seconds, and what a busy machine adds.
BOUND = 8.0
PATIENCE = 60.0


class HangingCredential:
    """Never gives a token, until it is released."""

    def __init__(self) -> None:
        self.asked, self.is_released = threading.Event(), threading.Event()

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked.set()
        self.is_released.wait(PATIENCE)
        return AccessToken("none", 0)


class HangingAsyncCredential:
    """The same for asyncio."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked.set()
        await asyncio.sleep(PATIENCE)
        return AccessToken("none", 0)


@pytest.fixture
def twins() -> Iterator[TwinNamespaces]:
    with twin_namespaces() as made:
        made.primary.create_queue("orders")
        yield made


@pytest.fixture
def credential(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = request.param()
    yield made
    if isinstance(made, HangingCredential):
        made.is_released.set()


def namespaces(twins: TwinNamespaces, credential: Any) -> list[Namespace]:
    return [
        Namespace(one.connection_string.split("//")[1].split(";")[0].strip("/"), credential, use_tls=False)
        for one in twins
    ]


def our_threads(*, but: str = "twinbus-token") -> list[str]:
    others = ("twinbus-namespace", "twinbus-store", but)
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("twinbus-") and not name.startswith(others)]


OPTIONS = SendAvailabilityOptions(backlog_queue_count=2, primary_name="contoso", enable_syphon=True)
CREDENTIALS = pytest.mark.parametrize("credential", [HangingCredential, HangingAsyncCredential], indirect=True)


@CREDENTIALS
def test_synchronous_client_closes_while_a_credential_hangs(twins: TwinNamespaces, credential: Any) -> None:
    client = PairedServiceBusClient(*namespaces(twins, credential), OPTIONS)
    sender = client.get_queue_sender("orders")
    errors: list[BaseException] = []

    def send() -> None:
        try:
            sender.send_messages(ServiceBusMessage("x"))
        except BaseException as error:
            errors.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    assert credential.asked.wait(PATIENCE)
    eventually(lambda: "twinbus-link" in our_threads())
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < BOUND
    eventually(lambda: our_threads() == [])
    sending.join(PATIENCE)
    assert [type(error) for error in errors] == [ValueError]  # the sender was closed


@CREDENTIALS
async def test_asynchronous_client_closes_while_a_credential_hangs(twins: TwinNamespaces, credential: Any) -> None:
    client = AsyncPairedServiceBusClient(*namespaces(twins, credential), OPTIONS)
    sending = asyncio.create_task(client.get_queue_sender("orders").send_messages(ServiceBusMessage("x")))
    while not credential.asked.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    started = time.monotonic()
    await client.close()
    assert time.monotonic() - started < BOUND
    with pytest.raises(ValueError, match="closed"):
        await sending
    assert our_threads() == []
    async with asyncio.timeout(PATIENCE):  # the SDK's keep-alive of an opening that was cancelled ends within a second
        while asyncio.all_tasks() != {asyncio.current_task()}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_synchronous_client_closes_while_both_namespaces_are_silent(twins: TwinNamespaces) -> None:
    strings = twins.primary.connection_string, twins.secondary.connection_string
    client = PairedServiceBusClient(*strings, OPTIONS)
    client.start()
    sender, receivers = client.get_queue_sender("orders"), [client.get_queue_receiver("orders") for _ in range(8)]
    sender.send_messages(ServiceBusMessage("x"))
    for receiver in receivers:
        receiver.peek_messages()
    for one in twins:
        one.add_fault(Fault(FaultKind.BLACKHOLE))
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < BOUND
    eventually(lambda: our_threads() == [])


def test_synchronous_client_closes_where_no_thread_can_be_started(
    twins: TwinNamespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a function of atexit since Python 3.12."""
    client = PairedServiceBusClient(twins.primary.connection_string, twins.secondary.connection_string, OPTIONS)
    client.start()
    client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        client.close()
    eventually(lambda: our_threads() == [])
