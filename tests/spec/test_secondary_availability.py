"""SPEC 8: the secondary must never lower availability. Recovery is in tests/pairing/test_backlog_readiness.py."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError
from tests.spec.namespace_pair import USER, Client, NamespacePair, backlog_path, down, eventually, new_message
from tests.spec.test_section_2_backlog import backlog_queue

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
from twinbus.emulator import NamespaceThread, QueueDescription
from twinbus.ledger.recorder import OperationKind
from twinbus.pairing.failover.error_classification import Cause, cause_of
from twinbus.syphon.receiving.restorer import LOCK_SECONDS, LONGEST_LOCK_SECONDS

ROOT = "RootManageSharedAccessKey"
OLD_KEY = "b2xk"


class Keyring:
    """The two sides of a client, and the secondary's key, which can be changed."""

    def __init__(self, namespaces: NamespacePair, *, is_right: bool = True) -> None:
        self._key = namespaces.secondary.namespace.policy(ROOT).primary_key
        self._credential = AzureNamedKeyCredential(ROOT, self._key if is_right else OLD_KEY)
        self.sides = namespaces.primary.namespace.connection_string, side_of(namespaces.secondary, self._credential)

    def rotate(self) -> None:
        self._credential.update(ROOT, OLD_KEY)

    def correct(self) -> None:
        self._credential.update(ROOT, self._key)


def side_of(thread: NamespaceThread, credential: Any) -> Namespace:
    namespace = thread.namespace
    return Namespace(f"{namespace.host}:{namespace.port}", credential, use_tls=False)


def swapped(namespaces: NamespacePair) -> tuple[str, str]:
    return namespaces.secondary.namespace.connection_string, namespaces.primary.namespace.connection_string


def created(namespaces: NamespacePair, client: Client) -> list[str]:
    """The paths of the client's backlog queues, in either namespace."""
    both = [*namespaces.primary.namespace.queues(), *namespaces.secondary.namespace.queues()]
    return sorted(entity.description.path for entity in both if entity.description.path.startswith(f"{client.name}/"))


def assert_sends_to_the_primary(namespaces: NamespacePair, client: Client) -> None:
    queue = namespaces.queue(namespaces.new_name())
    assert client.get_queue_sender(queue.path).send_messages(new_message()).route is Route.PRIMARY
    assert queue.activity.received == 1
    assert client.status().condition is Condition.OPEN


def report_missing(namespaces: NamespacePair, client: Client, index: int) -> None:
    """Report to the pairing that a backlog queue does not exist."""
    key = namespaces.secondary.namespace.connection_string
    with pytest.raises(ServiceBusError) as raised, ServiceBusClient.from_connection_string(key, retry_total=0) as sdk:
        sdk.get_queue_sender(backlog_path(client.name, index)).send_messages(new_message())
    assert cause_of(raised.value) is Cause.NOT_FOUND
    getattr(client.paired, "awaited", client.paired)._pairing.queue_failed(index, raised.value)


# ---- a wrong key, a report_missing right ----


def test_client_starts_and_sends_with_wrong_secondary_key(namespaces: NamespacePair, kind: str) -> None:
    keyring = Keyring(namespaces, is_right=False)
    client = namespaces.make(kind, sides=keyring.sides)
    with client.paired:
        assert "401" in client.seen.next(BacklogWarning).message
        status = client.status()
        assert (status.backlog_is_ready, status.backlog_error) == (False, "ClientAuthenticationError")
        assert "could not be checked" in status.backlog_message
        assert OLD_KEY not in str(status.to_json())
        assert_sends_to_the_primary(namespaces, client)
        keyring.correct()
        client.seen.next(BacklogReady)
        assert client.status().backlog_is_ready
        assert client.status().backlog_message is None
        client.fail_over("orders")
        assert client.get_queue_sender("orders").send_messages(new_message()).route is Route.BACKLOG


def test_hosted_syphon_learns_lock_duration_when_backlog_is_ready(namespaces: NamespacePair, kind: str) -> None:
    keyring = Keyring(namespaces, is_right=False)
    client = namespaces.make(kind, sides=keyring.sides, enable_syphon=True)
    runtime = getattr(client.paired, "awaited", client.paired)._runtime

    def longest_locks() -> set[float]:
        return {pump.restorer.longest_lock_seconds for pump in runtime.syphon._pumps}

    with client.paired:
        client.seen.next(BacklogWarning)
        eventually(lambda: runtime.syphon is not None and longest_locks() == {LONGEST_LOCK_SECONDS})
        keyring.correct()
        client.seen.next(BacklogReady)
        eventually(lambda: longest_locks() == {LOCK_SECONDS})


def test_hosted_syphon_learns_lock_duration_of_queues_beside_one_that_cannot_be_used(
    namespaces: NamespacePair, kind: str
) -> None:
    client = namespaces.make(kind, enable_syphon=True)
    unusable = backlog_path(client.name, 1)
    namespaces.secondary.run(namespaces.secondary.namespace.create(QueueDescription(unusable, requires_session=True)))
    runtime = getattr(client.paired, "awaited", client.paired)._runtime

    def longest_locks() -> dict[str, float]:
        return {pump.queue: pump.restorer.longest_lock_seconds for pump in runtime.syphon._pumps}

    expected = {backlog_path(client.name, 0): LOCK_SECONDS, unusable: LONGEST_LOCK_SECONDS}
    with client.paired:
        eventually(lambda: runtime.syphon is not None and longest_locks() == expected)


def test_unstarted_client_is_not_faulted_by_wrong_secondary_key(namespaces: NamespacePair, kind: str) -> None:
    client = namespaces.make(kind, sides=Keyring(namespaces, is_right=False).sides)
    try:
        assert_sends_to_the_primary(namespaces, client)
        client.seen.next(BacklogWarning)
        assert_sends_to_the_primary(namespaces, client)
    finally:
        client.close()


def test_rotated_secondary_key_does_not_stop_sends_to_the_primary(namespaces: NamespacePair, kind: str) -> None:
    keyring = Keyring(namespaces)
    client = namespaces.make(kind, sides=keyring.sides)
    with client.paired:
        keyring.rotate()
        path = namespaces.queue(namespaces.new_name()).path
        client.fail_over(path)
        with pytest.raises(ServiceBusError):
            client.get_queue_sender(path).send_messages(new_message())
        client.fail_back(path)
        assert_sends_to_the_primary(namespaces, client)
        keyring.correct()
        client.fail_over(path)
        eventually(lambda: is_diverted(client, path))


def is_diverted(client: Client, path: str) -> bool:
    try:
        return client.get_queue_sender(path).send_messages(new_message()).route is Route.BACKLOG
    except ServiceBusError:
        return False


def test_client_starts_and_sends_without_manage_right(namespaces: NamespacePair, kind: str) -> None:
    client = namespaces.make(kind, signed_by=USER)
    with client.paired:
        assert "create_backlog=False" in client.seen.next(BacklogWarning).message
        assert not client.status().backlog_is_ready
        assert_sends_to_the_primary(namespaces, client)
    assert created(namespaces, client) == []


def test_secondary_down_at_start_is_provisioned_after_recovery(namespaces: NamespacePair, kind: str) -> None:
    down(namespaces.secondary)
    client = namespaces.make(kind)
    with client.paired:
        client.seen.next(BacklogWarning)
        assert_sends_to_the_primary(namespaces, client)
        namespaces.clear()
        client.seen.next(BacklogReady)
        assert len(created(namespaces, client)) == 2


@pytest.mark.parametrize("wrong", ["key", "right", "down"])
def test_strict_client_refuses_to_start_without_usable_secondary(
    namespaces: NamespacePair, kind: str, wrong: str
) -> None:
    if wrong == "down":
        down(namespaces.secondary)
    sides = Keyring(namespaces, is_right=False).sides if wrong == "key" else None
    client = namespaces.make(kind, sides=sides, signed_by=USER if wrong == "right" else None, strict=True)
    with pytest.raises(BacklogNotReadyError), client.paired:
        pass
    assert created(namespaces, client) == []


# ---- queues that are deleted ----


def test_deleted_backlog_queue_is_recreated_and_used(namespaces: NamespacePair, kind: str) -> None:
    with namespaces.client(kind, backlog_queue_count=1, backlog_cooldown=3600) as client:
        path = backlog_path(client.name, 0)
        namespaces.secondary.run(namespaces.secondary.namespace.delete(path))
        report_missing(namespaces, client, 0)
        assert client.seen.next(BacklogQueueRestored).queue == path
        client.fail_over("orders")
        assert client.get_queue_sender("orders").send_messages(new_message()).queue == path
        assert client.rows(OperationKind.CREATE, path) == 2
        eventually(lambda: client.status().backlog_is_ready)


def test_missing_queue_is_not_created_without_create_backlog(namespaces: NamespacePair, kind: str) -> None:
    with namespaces.client(kind, backlog_queue_count=1, create_backlog=False) as client:
        report_missing(namespaces, client, 0)
        status = client.status()
        assert (status.backlog_is_ready, status.backlog[0].is_in_rotation) == (False, False)
        assert_sends_to_the_primary(namespaces, client)
        assert created(namespaces, client) == []
        assert client.rows(OperationKind.GET) == client.rows(OperationKind.CREATE) == 0


# ---- namespaces that are swapped ----


def test_swapped_namespaces_are_reported_and_nothing_is_created(namespaces: NamespacePair, kind: str) -> None:
    with namespaces.client(kind) as right:
        before = created(namespaces, right)
    assert len(before) == 2
    client = namespaces.make(kind, sides=swapped(namespaces), primary_name=right.name)
    with client.paired:
        event = client.seen.next(NamespacesLookSwapped)
        assert event.queue == backlog_path(right.name, 0)
        status = client.status()
        assert (status.backlog_is_ready, status.backlog_error) == (False, "NamespacesSwappedError")
        assert status.backlog_message == event.message
        assert "look swapped" in event.message
        assert status.condition is Condition.OPEN
    assert created(namespaces, client) == before
    assert client.rows(OperationKind.CREATE) == 0


def test_strict_client_refuses_to_start_with_swapped_namespaces(namespaces: NamespacePair, kind: str) -> None:
    with namespaces.client(kind) as right:
        before = created(namespaces, right)
    client = namespaces.make(kind, sides=swapped(namespaces), primary_name=right.name, strict=True)
    with pytest.raises(NamespacesSwappedError, match="look swapped"), client.paired:
        pass
    assert created(namespaces, client) == before


def test_mutual_secondaries_can_both_be_used(namespaces: NamespacePair, kind: str) -> None:
    for side in (namespaces.primary, namespaces.secondary):
        for name in ("contoso", "standby"):
            for index in range(2):
                if side.namespace.find(backlog_path(name, index)) is not None:
                    side.run(side.namespace.delete(backlog_path(name, index)))
    with namespaces.client(kind, primary_name=None):
        pass
    with namespaces.client(kind, primary_name=None, sides=swapped(namespaces)) as client:
        client.seen.next(NamespacesLookSwapped)
        namespaces.primary.run(namespaces.primary.namespace.create(backlog_queue(backlog_path("standby", 0))))
        client.seen.next(BacklogReady)
    for sides in (None, swapped(namespaces)):
        with namespaces.client(kind, primary_name=None, sides=sides, strict=True) as client:
            assert client.status().backlog_is_ready
            client.fail_over("orders")
            client.seen.next(FailedOver)
            assert client.seen.all(NamespacesLookSwapped) == []
