"""SPEC 8: the secondary must never lower availability. For what is done about it see tests/pairing/test_standby.py."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError
from tests.spec.house import USER, Client, House, backlog_path, down, eventually, text
from tests.spec.test_section_2_backlog import ours

from twinbus import (
    BacklogNotReadyError,
    BacklogQueueRestored,
    BacklogReady,
    BacklogWarning,
    Condition,
    FailedOver,
    Namespace,
    NamespacesLookSwapped,
    NamespacesSwappedError,
    Route,
)
from twinbus.broker.background import NamespaceThread
from twinbus.ledger.recorder import OperationKind
from twinbus.pairing.policy import Cause, cause_of
from twinbus.syphon.restorer import LOCK_SECONDS, LONGEST_LOCK_SECONDS

ROOT = "RootManageSharedAccessKey"
OLD_KEY = "b2xk"


class Keyring:
    """The two sides of a client, and the key of the secondary, which can change while the client runs."""

    def __init__(self, house: House, *, is_right: bool = True) -> None:
        self._key = house.secondary.namespace.policy(ROOT).primary_key
        self._credential = AzureNamedKeyCredential(ROOT, self._key if is_right else OLD_KEY)
        self.sides = house.primary.namespace.connection_string, side_of(house.secondary, self._credential)

    def rotate(self) -> None:
        self._credential.update(ROOT, OLD_KEY)

    def correct(self) -> None:
        self._credential.update(ROOT, self._key)


def side_of(thread: NamespaceThread, credential: Any) -> Namespace:
    namespace = thread.namespace
    return Namespace(f"{namespace.host}:{namespace.port}", credential, use_tls=False)


def swapped(house: House) -> tuple[str, str]:
    return house.secondary.namespace.connection_string, house.primary.namespace.connection_string


def created(house: House, client: Client) -> list[str]:
    """The paths of the client's backlog queues, in either namespace."""
    both = [*house.primary.namespace.queues(), *house.secondary.namespace.queues()]
    return sorted(one.description.path for one in both if one.description.path.startswith(f"{client.name}/"))


def sends_to_the_primary(house: House, client: Client) -> None:
    queue = house.queue(house.a_name())
    assert client.get_queue_sender(queue.path).send_messages(text()).route is Route.PRIMARY
    assert queue.activity.received == 1
    assert client.status().condition is Condition.OPEN


def missing(house: House, client: Client, index: int) -> None:
    """A send has found that a backlog queue does not exist."""
    key = house.secondary.namespace.connection_string
    with pytest.raises(ServiceBusError) as raised, ServiceBusClient.from_connection_string(key, retry_total=0) as sdk:
        sdk.get_queue_sender(backlog_path(client.name, index)).send_messages(text())
    assert cause_of(raised.value) is Cause.NOT_FOUND
    getattr(client.paired, "awaited", client.paired)._pairing.queue_failed(index, raised.value)


# ---- a wrong key, a missing right ----


def test_with_a_wrong_key_of_the_secondary_a_client_starts_and_sends(house: House, kind: str) -> None:
    keyring = Keyring(house, is_right=False)
    client = house.make(kind, sides=keyring.sides)
    with client.paired:
        assert "401" in client.seen.next(BacklogWarning).message
        status = client.status()
        assert (status.backlog_is_ready, status.backlog_error) == (False, "ClientAuthenticationError")
        assert "could not be checked" in status.backlog_message
        assert OLD_KEY not in str(status.to_json())
        sends_to_the_primary(house, client)
        keyring.correct()
        client.seen.next(BacklogReady)
        assert client.status().backlog_is_ready
        assert client.status().backlog_message is None
        client.fail_over("orders")
        assert client.get_queue_sender("orders").send_messages(text()).route is Route.BACKLOG


def test_a_hosted_syphon_is_told_how_long_locks_last_as_soon_as_that_is_known(house: House, kind: str) -> None:
    keyring = Keyring(house, is_right=False)
    client = house.make(kind, sides=keyring.sides, enable_syphon=True)
    runtime = getattr(client.paired, "awaited", client.paired)._runtime

    def longest_locks() -> set[float]:
        return {pump.restorer.longest_lock_seconds for pump in runtime.syphon._pumps}

    with client.paired:
        client.seen.next(BacklogWarning)
        eventually(lambda: runtime.syphon is not None and longest_locks() == {LONGEST_LOCK_SECONDS})
        keyring.correct()
        client.seen.next(BacklogReady)
        eventually(lambda: longest_locks() == {LOCK_SECONDS})


def test_a_client_that_nobody_has_entered_is_not_faulted_by_a_wrong_key_of_the_secondary(
    house: House, kind: str
) -> None:
    client = house.make(kind, sides=Keyring(house, is_right=False).sides)
    try:
        sends_to_the_primary(house, client)
        client.seen.next(BacklogWarning)
        sends_to_the_primary(house, client)
    finally:
        client.close()


def test_a_key_of_the_secondary_that_is_rotated_later_stops_no_send_to_the_primary(house: House, kind: str) -> None:
    keyring = Keyring(house)
    client = house.make(kind, sides=keyring.sides)
    with client.paired:
        keyring.rotate()
        path = house.queue(house.a_name()).path
        client.fail_over(path)
        with pytest.raises(ServiceBusError):
            client.get_queue_sender(path).send_messages(text())
        client.fail_back(path)
        sends_to_the_primary(house, client)
        keyring.correct()
        client.fail_over(path)
        eventually(lambda: diverts(client, path))


def diverts(client: Client, path: str) -> bool:
    try:
        return client.get_queue_sender(path).send_messages(text()).route is Route.BACKLOG
    except ServiceBusError:
        return False


def test_without_the_manage_right_a_client_starts_and_sends(house: House, kind: str) -> None:
    client = house.make(kind, signed_by=USER)
    with client.paired:
        assert "create_backlog=False" in client.seen.next(BacklogWarning).message
        assert not client.status().backlog_is_ready
        sends_to_the_primary(house, client)
    assert created(house, client) == []


def test_a_secondary_that_is_down_at_the_start_is_provisioned_when_it_is_back(house: House, kind: str) -> None:
    down(house.secondary)
    client = house.make(kind)
    with client.paired:
        client.seen.next(BacklogWarning)
        sends_to_the_primary(house, client)
        house.clear()
        client.seen.next(BacklogReady)
        assert len(created(house, client)) == 2


@pytest.mark.parametrize("wrong", ["key", "right", "down"])
def test_with_strict_each_of_these_keeps_the_client_from_starting(house: House, kind: str, wrong: str) -> None:
    if wrong == "down":
        down(house.secondary)
    sides = Keyring(house, is_right=False).sides if wrong == "key" else None
    client = house.make(kind, sides=sides, signed_by=USER if wrong == "right" else None, strict=True)
    with pytest.raises(BacklogNotReadyError), client.paired:
        pass
    assert created(house, client) == []


# ---- queues that are deleted ----


def test_a_backlog_queue_that_was_deleted_is_created_again_and_used(house: House, kind: str) -> None:
    with house.client(kind, backlog_queue_count=1, backlog_cooldown=3600) as client:
        path = backlog_path(client.name, 0)
        house.secondary.run(house.secondary.namespace.delete(path))
        missing(house, client, 0)
        assert client.seen.next(BacklogQueueRestored).queue == path
        client.fail_over("orders")
        assert client.get_queue_sender("orders").send_messages(text()).queue == path
        assert client.rows(OperationKind.CREATE, path) == 2
        eventually(lambda: client.status().backlog_is_ready)


def test_without_create_backlog_a_missing_queue_is_left_missing(house: House, kind: str) -> None:
    with house.client(kind, backlog_queue_count=1, create_backlog=False) as client:
        missing(house, client, 0)
        status = client.status()
        assert (status.backlog_is_ready, status.backlog[0].is_in_rotation) == (False, False)
        sends_to_the_primary(house, client)
        assert created(house, client) == []
        assert client.rows(OperationKind.GET) == client.rows(OperationKind.CREATE) == 0


# ---- namespaces that are swapped ----


def test_swapped_namespaces_are_told_and_nothing_is_created(house: House, kind: str) -> None:
    with house.client(kind) as right:
        before = created(house, right)
    assert len(before) == 2
    client = house.make(kind, sides=swapped(house), primary_name=right.name)
    with client.paired:
        event = client.seen.next(NamespacesLookSwapped)
        assert event.queue == backlog_path(right.name, 0)
        status = client.status()
        assert (status.backlog_is_ready, status.backlog_error) == (False, "NamespacesSwappedError")
        assert status.backlog_message == event.message
        assert "look swapped" in event.message
        assert status.condition is Condition.OPEN
    assert created(house, client) == before
    assert client.rows(OperationKind.CREATE) == 0


def test_with_strict_swapped_namespaces_keep_the_client_from_starting(house: House, kind: str) -> None:
    with house.client(kind) as right:
        before = created(house, right)
    client = house.make(kind, sides=swapped(house), primary_name=right.name, strict=True)
    with pytest.raises(NamespacesSwappedError, match="look swapped"), client.paired:
        pass
    assert created(house, client) == before


def test_namespaces_that_are_each_others_secondary_can_both_be_used(house: House, kind: str) -> None:
    for side in (house.primary, house.secondary):
        for name in ("contoso", "standby"):
            for index in range(2):
                if side.namespace.find(backlog_path(name, index)) is not None:
                    side.run(side.namespace.delete(backlog_path(name, index)))
    with house.client(kind, primary_name=None):
        pass
    with house.client(kind, primary_name=None, sides=swapped(house)) as client:
        client.seen.next(NamespacesLookSwapped)
        house.primary.run(house.primary.namespace.create(ours(backlog_path("standby", 0))))
        client.seen.next(BacklogReady)
    for sides in (None, swapped(house)):
        with house.client(kind, primary_name=None, sides=sides, strict=True) as client:
            assert client.status().backlog_is_ready
            client.fail_over("orders")
            client.seen.next(FailedOver)
            assert client.seen.all(NamespacesLookSwapped) == []
