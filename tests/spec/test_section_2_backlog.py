"""SPEC 2: how clients of both kinds treat backlog queues. For their properties see tests/pairing/test_backlog.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.spec.house import House, backlog_path, eventually, text

from twinbus import BacklogConfigurationError, BacklogQueueRetired, BacklogWarning, Route
from twinbus.broker import QueueDescription
from twinbus.broker.durations import TICKS_PER_MINUTE, TICKS_PER_SECOND
from twinbus.ledger.recorder import NamespaceRole, OperationKind


def ours(path: str, **changed: Any) -> QueueDescription:
    """A queue as we would make it, but for some properties."""
    described = QueueDescription(
        path, max_size_in_megabytes=5120, max_delivery_count=2147483647, dead_lettering_on_message_expiration=True
    )
    return replace(described, **changed)


def found(house: House, path: str) -> Any:
    entity = house.secondary.namespace.find(path)
    assert entity is not None
    return entity


def create(house: House, description: QueueDescription) -> None:
    house.secondary.run(house.secondary.namespace.create(description))


def test_a_queue_is_looked_for_first_and_made_only_if_it_is_not_there(house: House, kind: str) -> None:
    name = house.a_name("contoso")
    create(house, ours(backlog_path(name, 1)))
    before = found(house, backlog_path(name, 1)).updated_at
    with house.client(kind, primary_name=name) as client:
        rows = [row for row in client.recorder.operations if row.namespace is NamespaceRole.SECONDARY]
        made = [row.entity for row in rows if row.operation is OperationKind.CREATE]
        looked = {row.entity for row in rows if row.operation is OperationKind.GET}
        assert made == [backlog_path(name, 0)]
        assert looked >= {backlog_path(name, index) for index in range(2)}
    assert found(house, backlog_path(name, 1)).updated_at == before
    with house.client(kind, primary_name=name) as client:
        assert client.rows(OperationKind.CREATE) == 0
    assert house.secondary.namespace.find(backlog_path(name, 2)) is None


def test_an_extra_queue_stays_is_listed_and_is_not_used(house: House, kind: str) -> None:
    name = house.a_name("contoso")
    extra = backlog_path(name, 7)
    create(house, ours(extra))
    with house.client(kind, primary_name=name, backlog_queue_count=1, enable_syphon=True) as client:
        client.fail_over("orders")
        for _ in range(4):
            receipt = client.get_queue_sender("orders").send_messages(text())
            assert receipt.queue == backlog_path(name, 0)
        eventually(lambda: house.receivers(backlog_path(name, 0)) == 1)
        assert house.receivers(extra) == 0
        assert [(one.index, one.is_used) for one in client.list_backlog()] == [(0, True), (7, False)]
    assert found(house, extra).queue.activity.received == 0


def test_a_queue_with_other_properties_is_used_as_it_is_with_a_warning(house: House, kind: str) -> None:
    name = house.a_name("contoso")
    theirs = ours(backlog_path(name, 0), lock_duration=30 * TICKS_PER_SECOND, user_metadata="mine")
    create(house, theirs)
    client = house.make(kind, primary_name=name, backlog_queue_count=1)
    with client.paired:
        [warning] = client.seen.first(1, BacklogWarning)
        assert warning.queue == theirs.path
        assert "lock_duration" in warning.message
        client.fail_over("orders")
        assert client.get_queue_sender("orders").send_messages(text()).queue == theirs.path
    entity = found(house, theirs.path)
    assert replace(entity.description, max_message_size_in_kilobytes=None) == theirs
    assert entity.queue.activity.received == 1


REFUSED = {
    "requires_session": True,
    "requires_duplicate_detection": True,
    "default_message_time_to_live": 14 * 24 * 60 * TICKS_PER_MINUTE,
    "auto_delete_on_idle": 60 * TICKS_PER_MINUTE,
    "max_delivery_count": 10,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_queue_where_messages_would_be_lost_is_never_used_and_the_event_names_it(
    house: House, kind: str, name: str
) -> None:
    path = house.a_name("contoso")
    theirs = ours(backlog_path(path, 1), **{name: REFUSED[name]})
    create(house, theirs)
    client = house.make(kind, primary_name=path)
    with client.paired:
        error = client.seen.next(BacklogQueueRetired).error
        assert isinstance(error, BacklogConfigurationError)
        assert (error.queue, error.property_name) == (theirs.path, name)
        assert client.seen.next(BacklogWarning).queue == theirs.path
        status = client.status()
        assert (status.backlog_is_ready, status.backlog_error) == (False, "BacklogConfigurationError")
        assert name in status.backlog_message
        client.fail_over("orders")
        for _ in range(4):
            assert client.get_queue_sender("orders").send_messages(text()).queue == backlog_path(path, 0)
    assert replace(found(house, theirs.path).description, max_message_size_in_kilobytes=None) == theirs


@pytest.mark.parametrize("name", REFUSED)
def test_with_strict_a_queue_where_messages_would_be_lost_keeps_the_client_from_starting(
    house: House, kind: str, name: str
) -> None:
    path = house.a_name("contoso")
    theirs = ours(backlog_path(path, 1), **{name: REFUSED[name]})
    create(house, theirs)
    with pytest.raises(BacklogConfigurationError) as raised, house.client(kind, primary_name=path, strict=True):
        pass
    assert (raised.value.queue, raised.value.property_name) == (theirs.path, name)


def test_the_primary_named_by_its_address_tells_its_name(house: House, kind: str) -> None:
    with house.client(kind, primary_name=None) as client:
        client.fail_over("orders")
        receipt = client.get_queue_sender("orders").send_messages(text())
        assert receipt.route is Route.BACKLOG
        assert receipt.queue in {backlog_path("contoso", index) for index in range(2)}
