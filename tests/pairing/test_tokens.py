"""A hanging credential does not block a synchronous sender beyond its deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError
from tests.sdk_connection import address_options, client_options, reachable

from twinbus.emulator import BearerToken, NamespaceConfig, NamespaceThread, QueueDescription
from twinbus.pairing.failover.entity_failover import Route
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.pairing_state import Pairing
from twinbus.pairing.sdk import deadline
from twinbus.pairing.sdk.tokens import AwaitedCredential, BoundedCredential
from twinbus.pairing.sending._sync.sender import PairedSender
from twinbus.servicebus.access_rights import ALL_RIGHTS

TOKEN = "a-token-for-tests"
BACKLOG = "contoso/x-servicebus-transfer/0"
ATTEMPT = 2.0  # less than another one is left for what a busy machine adds
PATIENCE = 60.0


class Credential:
    """Returns tokens, until told to hang."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0
        self.error: BaseException | None = None

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked += 1
        assert self.answers.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return AccessToken(TOKEN, int(time.time()) + 3600)


def token_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "twinbus-token"]


@pytest.fixture(scope="module")
def bus() -> Iterator[NamespaceThread]:
    config = NamespaceConfig("contoso", port=0, bearer_tokens=(BearerToken(TOKEN, ALL_RIGHTS),))
    with NamespaceThread(lambda: reachable(config)) as running:
        for path in ("orders", BACKLOG):
            running.run(running.namespace.create(QueueDescription(path)))
        yield running


@pytest.fixture
def credential() -> Iterator[Credential]:
    made = Credential()
    yield made
    made.answers.set()
    for thread in token_threads():
        thread.join(PATIENCE)


@pytest.fixture
def sender(bus: NamespaceThread, credential: Credential) -> Iterator[PairedSender]:
    options = SendAvailabilityOptions(backlog_queue_count=1, attempt_timeout=ATTEMPT)
    host = f"{bus.namespace.host}:{bus.namespace.port}"
    with (
        ServiceBusClient(
            host, BoundedCredential(credential, PATIENCE), retry_total=0, **address_options(bus.namespace)
        ) as primary,
        ServiceBusClient.from_connection_string(
            bus.connection_string, retry_total=0, **client_options(bus.namespace)
        ) as secondary,
        PairedSender(Pairing(options, "contoso"), "orders", primary, secondary) as made,
    ):
        yield made


def test_missing_token_on_an_open_link_respects_the_deadline(credential: Credential, sender: PairedSender) -> None:
    assert sender.send_messages(ServiceBusMessage("1")).route is Route.PRIMARY
    sender.open_standby()
    (link,) = sender._delivery._primary._idle
    authenticator: Any = link.sender._handler._cbs_authenticator  # type: ignore[union-attr]
    authenticator._refresh_window = 10_000  # seconds before its end, from which a token is to be renewed
    credential.answers.clear()
    asked, started = credential.asked, time.monotonic()
    assert sender.send_messages(ServiceBusMessage("2")).route is Route.BACKLOG
    assert ATTEMPT <= time.monotonic() - started < 2 * ATTEMPT
    # One thread waits for the answer, which is all that is left.
    assert (credential.asked, len(token_threads())) == (asked + 1, 1)


def test_abandoned_opening_stops_waiting_for_its_token(credential: Credential, sender: PairedSender) -> None:
    credential.answers.clear()
    started = time.monotonic()
    for number in range(2):
        assert sender.send_messages(ServiceBusMessage(str(number))).route is Route.BACKLOG
    assert time.monotonic() - started < 3 * ATTEMPT
    sender.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "twinbus-link"]
    assert (credential.asked, len(token_threads())) == (1, 1)


def test_a_credential_that_is_back_serves_at_once(credential: Credential, sender: PairedSender) -> None:
    credential.answers.clear()
    assert sender.send_messages(ServiceBusMessage("1")).route is Route.BACKLOG
    credential.answers.set()
    assert sender.send_messages(ServiceBusMessage("2")).route is Route.PRIMARY


def test_credential_exceptions_are_raised(credential: Credential) -> None:
    credential.error = ClientAuthenticationError("no such user")
    with pytest.raises(ClientAuthenticationError, match="no such user"):
        BoundedCredential(credential, PATIENCE).get_token("scope")


async def test_credential_that_exits_ends_neither_the_thread_nor_the_event_loop(credential: Credential) -> None:
    credential.error = SystemExit(3)
    with pytest.raises(ServiceBusConnectionError, match="The credential raised SystemExit"):
        BoundedCredential(credential, PATIENCE).get_token("scope")
    with pytest.raises(ServiceBusConnectionError, match="The credential raised SystemExit"):
        await AwaitedCredential(credential, PATIENCE).get_token("scope")


def test_missing_token_times_out_at_the_deadline_of_the_call(credential: Credential) -> None:
    credential.answers.clear()
    deadline.call.ends = time.monotonic() + 0.1
    try:
        for _ in range(3):
            with pytest.raises(ServiceBusConnectionError, match="no token within"):
                BoundedCredential(credential, PATIENCE).get_token("scope")
    finally:
        deadline.call.ends = float("inf")
    assert (credential.asked, len(token_threads())) == (1, 1)


def test_missing_token_times_out_after_the_bound(credential: Credential) -> None:
    credential.answers.clear()
    with pytest.raises(ServiceBusConnectionError):
        BoundedCredential(credential, 0.05).get_token("scope")
