"""Tests that every completed backlog message has a durable row of its move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.ledger.stores import Obstinate
from tests.syphon.bus import eventually
from tests.syphon.pumping import Pair, bodies, numbered

from twinbus.emulator import DEFAULT
from twinbus.ledger.durable_rows import for_syphon
from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.ledger_errors import NotDurableError
from twinbus.ledger.ledger_reader import read_ledger
from twinbus.ledger.recorder import NamespaceRole, Operation, OperationKind, Outcome, Stage
from twinbus.ledger.schema import to_operations
from twinbus.ledger.writer import LedgerWriter
from twinbus.syphon import AmqpError

pytestmark = pytest.mark.slow

MESSAGES = 2000


def a_send(number: int) -> Operation:
    return Operation(
        pairing="contoso",
        client="other",
        namespace=NamespaceRole.PRIMARY,
        entity="orders",
        operation=OperationKind.SEND,
        stage=Stage.DIRECT,
        outcome=Outcome.DONE,
        message_id=f"other-{number}",
    )


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair(DEFAULT) as running:
        await running.create("orders")
        yield running


def moved_in(url: str | Path) -> list[str | None]:
    """Return the ids of the messages that arrived according to the ledger."""
    contents = read_ledger(url)
    assert contents.unreadable == []
    return [
        row.message_id
        for row in to_operations(contents.table)
        if row.operation is OperationKind.SEND and row.stage is Stage.PRIMARY_SEND and row.outcome is Outcome.DONE
    ]


async def test_drain_writes_row_per_message_and_few_files(pair: Pair, tmp_path: Path) -> None:
    await pair.put(numbered("orders", range(MESSAGES)))
    with LedgerWriter(tmp_path) as writer:
        recorder, flush = for_syphon(writer, asyncio.get_running_loop())
        await pair.drain(recorder=recorder, flush=flush)
        assert pair.is_backlog_empty
        assert pair.backlog.activity.delivered == MESSAGES  # no message was abandoned
        # The rows were durable before the messages were completed, so even before the writer is closed.
        assert sorted(map(str, moved_in(tmp_path))) == sorted(f"orders-{number}" for number in range(MESSAGES))
        assert writer.status().written_files < MESSAGES / 20
    assert sorted(await pair.arrived("orders")) == sorted(bodies(range(MESSAGES)))


async def test_failing_store_stops_syphon_before_it_completes_messages(pair: Pair) -> None:
    url = Obstinate.reset()
    Obstinate.error = OSError(28, "No space left on device")
    await pair.put(numbered("orders", range(50)))
    with LedgerWriter(url, rotation=Rotation(flush_seconds=0.0)) as writer:
        recorder, flush = for_syphon(writer, asyncio.get_running_loop(), deadline=0.5)
        with pytest.raises(AmqpError, match="the ledger failed") as raised:
            await pair.drain(recorder=recorder, flush=flush)
        assert isinstance(raised.value.__cause__, NotDurableError)
        assert pair.backlog.counters.active == 50
        Obstinate.error = None
        assert pair.backlog.locked == 0
        recorder, flush = for_syphon(writer, asyncio.get_running_loop())
        await pair.drain(recorder=recorder, flush=flush)
    assert pair.is_backlog_empty
    # Some were moved twice, and the ledger has a row for each move: reconciliation reports these duplicates.
    arrived = await pair.arrived("orders")
    assert set(arrived) == set(bodies(range(50)))
    assert len(moved_in(url)) == len(arrived)


async def test_best_effort_syphon_drains_while_store_fails(pair: Pair) -> None:
    url = Obstinate.reset()
    Obstinate.error = OSError(28, "No space left on device")
    await pair.put(numbered("orders", range(50)))
    with LedgerWriter(url) as writer:
        recorder, flush = for_syphon(writer, asyncio.get_running_loop(), ledger="best_effort")
        await pair.drain(recorder=recorder, flush=flush)
        assert pair.is_backlog_empty
        Obstinate.error = None
    assert len(moved_in(url)) == 50


async def test_syphon_recovers_from_dropped_rows_with_row_per_completed_message(pair: Pair) -> None:
    url = Obstinate.reset()
    Obstinate.let_go.clear()
    await pair.put(numbered("orders", range(200)))
    with LedgerWriter(url, rotation=Rotation(flush_seconds=0.0), buffer_rows=5000) as writer:
        recorder, flush = for_syphon(writer, asyncio.get_running_loop())
        for other in range(20_000):  # rows of a busy sender fill the buffer while the store hangs
            writer.record(a_send(other))
        await eventually(lambda: writer.status().dropped_rows > 0)
        dropped_before = writer.status().dropped_rows
        async with pair.running(recorder=recorder, flush=flush):
            await pair.until("orders", 1)
            await eventually(lambda: writer.status().dropped_rows > dropped_before)
            assert pair.backlog.activity.completed == 0
            Obstinate.let_go.set()
            await eventually(lambda: pair.is_backlog_empty)
        moved = moved_in(url)
    assert {f"orders-{number}" for number in range(200)} == set(moved)
    # Messages that were moved without a row were moved again.
    arrived = await pair.arrived("orders")
    assert set(arrived) == set(bodies(range(200)))
    assert len(arrived) > 200
