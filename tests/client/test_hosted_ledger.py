"""A client with a ledger hosts a syphon that records every move in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from azure.servicebus import ServiceBusMessage
from tests.ledger.stores import Obstinate
from tests.namespace_internals import Queue
from tests.pairing.twins import Twins, eventually

from twinbus import Event, LedgerAvailable, LedgerUnavailable, Route, SendAvailabilityOptions, SyphonOptions
from twinbus.aio import PairedServiceBusClient
from twinbus.emulator import DEFAULT, QueueDescription
from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.recorder import OperationKind, Outcome, Stage
from twinbus.ledger.schema import to_operations
from twinbus.ledger.writer import LedgerWriter
from twinbus.servicebus.durations import TICKS_PER_MINUTE

BACKLOG = "contoso/x-servicebus-transfer/0"


@pytest.fixture
async def twins() -> AsyncIterator[Twins]:
    async with Twins.running(DEFAULT) as running:
        await running.queue("orders")
        yield running


def client(twins: Twins, writer: LedgerWriter | None = None, **changed: Any) -> PairedServiceBusClient:
    given = {"backlog_queue_count": 1, "primary_name": "contoso", "syphon": SyphonOptions(retry_min=0.1), **changed}
    options = SendAvailabilityOptions(**given)
    return PairedServiceBusClient(*twins.sides(), options, recorder=writer)


def orders(twins: Twins) -> Queue:
    found = twins.primary.find("orders")
    assert found is not None
    return found.queue


async def divert(twins: Twins, count: int, **properties: Any) -> None:
    async with client(twins) as paired, paired.get_queue_sender("orders") as sender:
        paired.fail_over("orders")
        for number in range(count):
            message = ServiceBusMessage("x", message_id=f"m-{number}", **properties)
            assert (await sender.send_messages(message)).route is Route.BACKLOG


async def test_hosted_syphon_completes_messages_that_are_in_the_ledger(twins: Twins, tmp_path: Path) -> None:
    await divert(twins, 20)
    with LedgerWriter(tmp_path) as writer:
        async with client(twins, writer, enable_syphon=True):
            await eventually(lambda: twins.backlog(0).activity.completed == 20)
            # Long before anything but a flush would have made a file of these rows.
            rows = list(to_operations(read_ledger(tmp_path).table))
    moves = [row for row in rows if row.stage is Stage.PRIMARY_SEND and row.outcome is Outcome.DONE]
    assert {row.message_id for row in moves} == {f"m-{number}" for number in range(20)}
    assert {row.operation for row in moves} == {OperationKind.SEND}


async def test_hosted_syphon_completes_nothing_while_the_ledger_is_unavailable(twins: Twins) -> None:
    await divert(twins, 5)
    url = Obstinate.reset()
    Obstinate.let_go.clear()
    with LedgerWriter(url) as writer:
        async with client(twins, writer, enable_syphon=True):
            await eventually(lambda: orders(twins).activity.received == 5)
            await eventually(Obstinate.hangs.is_set)
            assert twins.backlog(0).activity.completed == 0
            Obstinate.let_go.set()
            await eventually(lambda: twins.backlog(0).activity.completed == 5)


@pytest.mark.parametrize("mode", ["required", "best_effort"])
async def test_full_ledger_is_an_event_and_the_syphon_resumes(
    twins: Twins, mode: Literal["required", "best_effort"]
) -> None:
    await divert(twins, 5)
    loop, url = asyncio.get_running_loop(), Obstinate.reset()
    Obstinate.error = OSError(28, "No space left on device")
    seen: list[Event] = []

    def has(kind: type[Event], **fields: Any) -> bool:
        events = [event for event in seen if isinstance(event, kind)]
        return any(all(getattr(event, name) == value for name, value in fields.items()) for event in events)

    with LedgerWriter(url, rotation=Rotation(seconds=0.2, flush_seconds=0.0)) as writer:
        options = SyphonOptions(retry_min=0.1, retry_max=0.1, ledger_mode=mode)
        paired = client(twins, writer, enable_syphon=True, syphon=options)
        paired.on_event(seen.append)
        async with paired:
            await eventually(lambda: has(LedgerUnavailable, message="No space left on device"))
            assert paired.status().ledger_error == "No space left on device"
            if mode == "best_effort":
                await eventually(lambda: twins.backlog(0).activity.completed == 5)
                assert not has(LedgerUnavailable, stops_syphon=True)
            else:
                assert twins.backlog(0).activity.completed == 0
            Obstinate.error = None
            await eventually(lambda: has(LedgerAvailable))
            await eventually(lambda: twins.backlog(0).activity.completed == 5)
            started = loop.time()
        assert loop.time() - started < 7.5


async def test_hosted_syphon_uses_the_provisioned_lock_duration(twins: Twins) -> None:
    locks = {"lock_duration": 3 * TICKS_PER_MINUTE}
    await twins.secondary.create(QueueDescription(BACKLOG, max_delivery_count=2147483647, **locks))
    await divert(twins, 1, time_to_live=timedelta(seconds=1))  # the SDK knows no shorter
    now_ms = twins.backlog(0).env.now_ms
    diverted_at = now_ms()
    await eventually(lambda: now_ms() > diverted_at + 1100)
    async with client(twins, enable_syphon=True):
        dead = twins.secondary.entities.resolve(f"{BACKLOG}/$DeadLetterQueue")
        assert dead is not None
        await eventually(lambda: dead.queue.counters.active == 1)
    assert orders(twins).activity.received == 0
