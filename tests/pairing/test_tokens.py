"""A credential that does not answer holds no synchronous sender up for longer than its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from tests.sdk_connection import address_options, client_options, reachable

from twinbus.broker import NamespaceConfig, QueueDescription
from twinbus.broker.background import NamespaceThread
from twinbus.broker.config import BearerToken
from twinbus.broker.security import ALL_RIGHTS
from twinbus.pairing.core import Pairing
from twinbus.pairing.failover import Route
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.sdk import deadline
from twinbus.pairing.sdk.tokens import BoundedCredential
from twinbus.pairing.sending._sync.sender import PairedSender

TOKEN = "a-token-for-tests"
BACKLOG = "contoso/x-servicebus-transfer/0"
ATTEMPT = 2.0  # less than another one is left for what a busy machine adds
PATIENCE = 60.0


class Credential:
    """Gives tokens, until it is told to let people wait."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0
        self.error: Exception | None = None

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
        ) as standby,
        PairedSender(Pairing(options, "contoso"), "orders", primary, standby) as made,
    ):
        yield made


def test_a_token_that_is_renewed_on_an_open_link_and_does_not_come_outlasts_no_deadline(
    credential: Credential, sender: PairedSender
) -> None:
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


def test_an_opening_that_waits_for_a_token_ends_when_it_is_given_up(
    credential: Credential, sender: PairedSender
) -> None:
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


def test_what_the_credential_raises_is_raised(credential: Credential) -> None:
    credential.error = ClientAuthenticationError("no such user")
    with pytest.raises(ClientAuthenticationError, match="no such user"):
        BoundedCredential(credential, PATIENCE).get_token("scope")


def test_a_token_that_does_not_come_is_given_up_at_the_deadline_of_the_call(credential: Credential) -> None:
    credential.answers.clear()
    deadline.call.ends = time.monotonic() + 0.1
    try:
        for _ in range(3):
            with pytest.raises(ConnectionAbortedError, match="no token within"):
                BoundedCredential(credential, PATIENCE).get_token("scope")
    finally:
        deadline.call.ends = float("inf")
    assert (credential.asked, len(token_threads())) == (1, 1)


def test_a_token_that_does_not_come_is_given_up_after_the_bound(credential: Credential) -> None:
    credential.answers.clear()
    with pytest.raises(ConnectionAbortedError):
        BoundedCredential(credential, 0.05).get_token("scope")
