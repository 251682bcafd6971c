"""Provisioning: backlog queues are created as specified, checked if they exist, never changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusQuotaExceededError
from azure.servicebus.management import QueueProperties
from tests.pairing.twins import Events, Twins, operations

from twinbus.emulator import AZURE, DEFAULT, QueueDescription
from twinbus.ledger.recorder import OperationKind
from twinbus.pairing.backlog.provisioning import list_backlog, provision
from twinbus.pairing.events import BacklogQueueRestored, BacklogWarning
from twinbus.pairing.namespace import Namespace as Side
from twinbus.pairing.pairing_errors import BacklogConfigurationError
from twinbus.servicebus.durations import MAX_TICKS, TICKS_PER_MINUTE, TICKS_PER_SECOND

PATH = "contoso/x-servicebus-transfer/{}"
#: A queue such as we would make.
OURS = QueueDescription(
    PATH.format(0),
    max_size_in_megabytes=5120,
    max_delivery_count=2147483647,
    dead_lettering_on_message_expiration=True,
)


@pytest_asyncio.fixture(params=[DEFAULT, AZURE], ids=["default", "azure"])
async def twins(request: pytest.FixtureRequest) -> AsyncIterator[Twins]:
    async with Twins.running(request.param) as running:
        yield running


async def read(side: Side, path: str) -> QueueProperties:
    async with side.administration() as admin:
        return await admin.get_queue(path)


async def provisioned(twins: Twins, **options: Any) -> Any:
    pairing = twins.pairing(**options)
    async with twins.sides()[1].administration() as admin:
        return await provision(admin, pairing)


async def test_backlog_queue_count_queues_are_created(twins: Twins) -> None:
    made = await provisioned(twins, backlog_queue_count=10)
    paths = [PATH.format(index) for index in range(10)]
    assert [one.path for one in made] == paths
    assert all(one.is_new for one in made)
    assert {one.description.path for one in twins.secondary.queues()} == set(paths)
    assert twins.primary.queues() == []


async def test_each_property_is_as_specified(twins: Twins) -> None:
    await provisioned(twins)
    found = await read(twins.sides()[1], PATH.format(1))
    assert found.max_size_in_megabytes == 5120
    assert found.max_delivery_count == 2147483647
    assert found.lock_duration == timedelta(minutes=1)
    assert found.dead_lettering_on_message_expiration is True
    assert found.enable_batched_operations is True
    # The exact maximum, of which the SDK shows a rounded one.
    stored = twins.secondary.find(PATH.format(1))
    assert stored is not None
    assert stored.description.default_message_time_to_live == MAX_TICKS
    assert stored.description.auto_delete_on_idle == MAX_TICKS


async def test_other_properties_are_service_defaults(twins: Twins) -> None:
    await provisioned(twins)
    found = twins.secondary.find(PATH.format(0))
    assert found is not None
    assert replace(found.description, max_message_size_in_kilobytes=None) == OURS


async def test_existing_queue_is_used_unchanged(twins: Twins) -> None:
    existing = replace(OURS, max_size_in_megabytes=1024, lock_duration=30 * TICKS_PER_SECOND, user_metadata="mine")
    await twins.secondary.create(existing)
    pairing = twins.pairing()
    events = Events(pairing)
    async with twins.sides()[1].administration() as admin:
        made = await provision(admin, pairing)
    assert [one.is_new for one in made] == [False, True]
    found = twins.secondary.find(existing.path)
    assert found is not None
    assert replace(found.description, max_message_size_in_kilobytes=None) == existing
    warnings = events.all(BacklogWarning)
    assert {one.queue for one in warnings} == {existing.path}
    assert [one.message.split()[0] for one in warnings] == ["max_size_in_megabytes", "lock_duration"]


async def test_queues_with_expected_properties_are_used_without_a_warning(twins: Twins) -> None:
    await provisioned(twins)
    pairing = twins.pairing()
    events = Events(pairing)
    async with twins.sides()[1].administration() as admin:
        made = await provision(admin, pairing)
    assert [one.is_new for one in made] == [False, False]
    assert events.seen == []


async def test_an_extra_queue_stays_and_is_listed_as_unused(twins: Twins) -> None:
    extra = replace(OURS, path=PATH.format(7))
    await twins.secondary.create(extra)
    await twins.secondary.create(replace(OURS, path="fabrikam/x-servicebus-transfer/0"))
    await twins.secondary.create(QueueDescription("orders"))
    pairing = twins.pairing()
    async with twins.sides()[1].administration() as admin:
        await provision(admin, pairing)
        listed = await list_backlog(admin, pairing)
    assert [(one.index, one.path, one.is_used) for one in listed] == [
        (0, PATH.format(0), True),
        (1, PATH.format(1), True),
        (7, PATH.format(7), False),
    ]
    assert twins.secondary.find(extra.path) is not None


REFUSED: dict[str, dict[str, Any]] = {
    "requires_session": {"requires_session": True},
    "requires_duplicate_detection": {"requires_duplicate_detection": True},
    "forward_to": {"forward_to": "elsewhere"},
    "default_message_time_to_live": {"default_message_time_to_live": 14 * 24 * 60 * TICKS_PER_MINUTE},
    "auto_delete_on_idle": {"auto_delete_on_idle": 60 * TICKS_PER_MINUTE},
    "max_delivery_count": {"max_delivery_count": 10},
    "status": {"status": "SendDisabled"},
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_queue_that_would_lose_or_refuse_messages_is_an_error_that_names_it(twins: Twins, name: str) -> None:
    await twins.secondary.create(QueueDescription("elsewhere"))
    existing = replace(OURS, path=PATH.format(1), **REFUSED[name])
    await twins.secondary.create(existing)
    with pytest.raises(BacklogConfigurationError) as raised:
        await provisioned(twins)
    assert (raised.value.queue, raised.value.property_name) == (existing.path, name)
    assert existing.path in str(raised.value)
    assert name in str(raised.value)
    found = twins.secondary.find(existing.path)
    assert found is not None
    assert replace(found.description, max_message_size_in_kilobytes=None) == existing


async def test_several_clients_may_start_at_once(twins: Twins) -> None:
    made = await asyncio.gather(*(provisioned(twins, backlog_queue_count=5) for _ in range(8)))
    assert len(twins.secondary.queues()) == 5
    assert all(len(one) == 5 for one in made)
    assert sum(one.is_new for queues in made for one in queues) == 5


async def test_every_management_call_is_recorded(twins: Twins) -> None:
    pairing = twins.pairing()
    async with twins.sides()[1].administration() as admin:
        await provision(admin, pairing)
        await list_backlog(admin, pairing)
    assert len(operations(pairing, OperationKind.GET)) == 2
    assert len(operations(pairing, OperationKind.CREATE)) == 2
    assert len(operations(pairing, OperationKind.LIST)) == 1


# ---- the rotation ----


async def test_a_queue_that_would_lose_messages_leaves_the_rotation_and_the_others_are_created(twins: Twins) -> None:
    await twins.secondary.create(replace(OURS, path=PATH.format(1), max_delivery_count=10))
    pairing = twins.pairing(backlog_queue_count=3)
    async with twins.sides()[1].administration() as admin:
        with pytest.raises(BacklogConfigurationError):
            await provision(admin, pairing)
    assert list(pairing.retired_queues()) == [PATH.format(1)]
    assert len(twins.secondary.queues()) == 3


async def test_a_queue_that_was_retired_because_it_was_missing_is_restored_and_a_full_one_is_not(twins: Twins) -> None:
    pairing = twins.pairing()
    events = Events(pairing)
    pairing.queue_failed(0, MessagingEntityNotFoundError(message="gone"))
    pairing.queue_failed(1, ServiceBusQuotaExceededError(message="full"))
    await twins.secondary.create(replace(OURS, path=PATH.format(1)))
    async with twins.sides()[1].administration() as admin:
        await provision(admin, pairing)
    assert [one.queue for one in events.all(BacklogQueueRestored)] == [PATH.format(0)]
    assert list(pairing.retired_queues()) == [PATH.format(1)]
