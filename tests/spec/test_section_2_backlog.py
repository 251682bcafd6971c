"""SPEC 2: how both kinds of client treat backlog queues. For their properties see tests/pairing/test_backlog.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.spec.namespace_pair import NamespacePair, backlog_path, eventually, new_message

from twinbus import BacklogConfigurationError, BacklogQueueRetired, BacklogWarning, Route
from twinbus.emulator import QueueDescription
from twinbus.ledger.recorder import NamespaceRole, OperationKind
from twinbus.servicebus.durations import TICKS_PER_MINUTE, TICKS_PER_SECOND


def backlog_queue(path: str, **changed: Any) -> QueueDescription:
    """A queue as twinbus creates it, except for some properties."""
    description = QueueDescription(
        path, max_size_in_megabytes=5120, max_delivery_count=2147483647, dead_lettering_on_message_expiration=True
    )
    return replace(description, **changed)


def backlog_entity(namespaces: NamespacePair, path: str) -> Any:
    entity = namespaces.secondary.namespace.find(path)
    assert entity is not None
    return entity


def create(namespaces: NamespacePair, description: QueueDescription) -> None:
    namespaces.secondary.run(namespaces.secondary.namespace.create(description))


def test_only_missing_backlog_queues_are_created(namespaces: NamespacePair, kind: str) -> None:
    name = namespaces.new_name("contoso")
    create(namespaces, backlog_queue(backlog_path(name, 1)))
    before = backlog_entity(namespaces, backlog_path(name, 1)).updated_at
    with namespaces.client(kind, primary_name=name) as client:
        rows = [row for row in client.recorder.operations if row.namespace is NamespaceRole.SECONDARY]
        made = [row.entity for row in rows if row.operation is OperationKind.CREATE]
        read = {row.entity for row in rows if row.operation is OperationKind.GET}
        assert made == [backlog_path(name, 0)]
        assert read >= {backlog_path(name, index) for index in range(2)}
    assert backlog_entity(namespaces, backlog_path(name, 1)).updated_at == before
    with namespaces.client(kind, primary_name=name) as client:
        assert client.rows(OperationKind.CREATE) == 0
    assert namespaces.secondary.namespace.find(backlog_path(name, 2)) is None


def test_extra_queue_is_listed_but_not_used_or_deleted(namespaces: NamespacePair, kind: str) -> None:
    name = namespaces.new_name("contoso")
    extra = backlog_path(name, 7)
    create(namespaces, backlog_queue(extra))
    with namespaces.client(kind, primary_name=name, backlog_queue_count=1, enable_syphon=True) as client:
        client.fail_over("orders")
        for _ in range(4):
            receipt = client.get_queue_sender("orders").send_messages(new_message())
            assert receipt.queue == backlog_path(name, 0)
        eventually(lambda: namespaces.receivers(backlog_path(name, 0)) == 1)
        assert namespaces.receivers(extra) == 0
        assert [(queue.index, queue.is_used) for queue in client.list_backlog()] == [(0, True), (7, False)]
    assert backlog_entity(namespaces, extra).queue.activity.received == 0


def test_queue_with_other_properties_is_used_with_a_warning(namespaces: NamespacePair, kind: str) -> None:
    name = namespaces.new_name("contoso")
    existing = backlog_queue(backlog_path(name, 0), lock_duration=30 * TICKS_PER_SECOND, user_metadata="mine")
    create(namespaces, existing)
    client = namespaces.make(kind, primary_name=name, backlog_queue_count=1)
    with client.paired:
        [warning] = client.seen.first(1, BacklogWarning)
        assert warning.queue == existing.path
        assert "lock_duration" in warning.message
        client.fail_over("orders")
        assert client.get_queue_sender("orders").send_messages(new_message()).queue == existing.path
    entity = backlog_entity(namespaces, existing.path)
    assert replace(entity.description, max_message_size_in_kilobytes=None) == existing
    assert entity.queue.activity.received == 1


REFUSED = {
    "requires_session": True,
    "requires_duplicate_detection": True,
    "default_message_time_to_live": 14 * 24 * 60 * TICKS_PER_MINUTE,
    "auto_delete_on_idle": 60 * TICKS_PER_MINUTE,
    "max_delivery_count": 10,
}


@pytest.mark.parametrize("name", REFUSED)
def test_queue_that_would_lose_messages_is_retired_and_named(namespaces: NamespacePair, kind: str, name: str) -> None:
    path = namespaces.new_name("contoso")
    existing = backlog_queue(backlog_path(path, 1), **{name: REFUSED[name]})
    create(namespaces, existing)
    client = namespaces.make(kind, primary_name=path)
    with client.paired:
        error = client.seen.next(BacklogQueueRetired).error
        assert isinstance(error, BacklogConfigurationError)
        assert (error.queue, error.property_name) == (existing.path, name)
        assert client.seen.next(BacklogWarning).queue == existing.path
        status = client.status()
        assert (status.backlog_is_ready, status.backlog_error) == (False, "BacklogConfigurationError")
        assert name in status.backlog_message
        client.fail_over("orders")
        for _ in range(4):
            assert client.get_queue_sender("orders").send_messages(new_message()).queue == backlog_path(path, 0)
    assert (
        replace(backlog_entity(namespaces, existing.path).description, max_message_size_in_kilobytes=None) == existing
    )


@pytest.mark.parametrize("name", REFUSED)
def test_strict_client_refuses_to_start_with_queue_that_would_lose_messages(
    namespaces: NamespacePair, kind: str, name: str
) -> None:
    path = namespaces.new_name("contoso")
    existing = backlog_queue(backlog_path(path, 1), **{name: REFUSED[name]})
    create(namespaces, existing)
    with pytest.raises(BacklogConfigurationError) as raised, namespaces.client(kind, primary_name=path, strict=True):
        pass
    assert (raised.value.queue, raised.value.property_name) == (existing.path, name)


def test_primary_addressed_by_ip_reports_its_name(namespaces: NamespacePair, kind: str) -> None:
    with namespaces.client(kind, primary_name=None) as client:
        client.fail_over("orders")
        receipt = client.get_queue_sender("orders").send_messages(new_message())
        assert receipt.route is Route.BACKLOG
        assert receipt.queue in {backlog_path("contoso", index) for index in range(2)}
