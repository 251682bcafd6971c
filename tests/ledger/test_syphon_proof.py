"""The syphon and a ledger of files: every completed backlog message has a durable row of its move."""

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
    """The ids of the messages that the ledger says arrived."""
    contents = read_ledger(url)
    assert contents.unreadable == []
    return [
        row.message_id
        for row in to_operations(contents.table)
        if row.operation is OperationKind.SEND and row.stage is Stage.PRIMARY_SEND and row.outcome is Outcome.DONE
    ]


async def test_a_drain_leaves_a_row_for_every_message_and_few_files(pair: Pair, tmp_path: Path) -> None:
    await pair.put(numbered("orders", range(MESSAGES)))
    with LedgerWriter(tmp_path) as writer:
        recorder, flush = for_syphon(writer, asyncio.get_running_loop())
        await pair.drain(recorder=recorder, flush=flush)
        assert pair.is_backlog_empty
        assert pair.backlog.activity.delivered == MESSAGES  # none was given back to come again
        # The proof was durable before the messages were completed, so before anybody closes the writer.
        assert sorted(map(str, moved_in(tmp_path))) == sorted(f"orders-{number}" for number in range(MESSAGES))
        assert writer.status().written_files < MESSAGES / 20
    assert sorted(await pair.arrived("orders")) == sorted(bodies(range(MESSAGES)))


async def test_a_store_that_takes_nothing_stops_the_syphon_and_nothing_is_completed(pair: Pair) -> None:
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
    # Moved twice, which the ledger says as well: that is what reconciliation has to find.
    arrived = await pair.arrived("orders")
    assert set(arrived) == set(bodies(range(50)))
    assert len(moved_in(url)) == len(arrived)


async def test_a_syphon_that_does_its_best_goes_on_without_a_store(pair: Pair) -> None:
    url = Obstinate.reset()
    Obstinate.error = OSError(28, "No space left on device")
    await pair.put(numbered("orders", range(50)))
    with LedgerWriter(url) as writer:
        recorder, flush = for_syphon(writer, asyncio.get_running_loop(), ledger="best_effort")
        await pair.drain(recorder=recorder, flush=flush)
        assert pair.is_backlog_empty
        Obstinate.error = None
    assert len(moved_in(url)) == 50


async def test_a_syphon_whose_rows_were_dropped_recovers_and_every_completed_message_has_its_row(pair: Pair) -> None:
    url = Obstinate.reset()
    Obstinate.let_go.clear()
    await pair.put(numbered("orders", range(200)))
    with LedgerWriter(url, rotation=Rotation(flush_seconds=0.0), buffer_rows=5000) as writer:
        recorder, flush = for_syphon(writer, asyncio.get_running_loop())
        for other in range(20_000):  # rows of another sender, while the store accepts nothing
            writer.record(a_send(other))
        await eventually(lambda: writer.status().dropped_rows > 0)
        others = writer.status().dropped_rows
        async with pair.running(recorder=recorder, flush=flush):
            await pair.until("orders", 1)
            await eventually(lambda: writer.status().dropped_rows > others)
            assert pair.backlog.activity.completed == 0
            Obstinate.let_go.set()
            await eventually(lambda: pair.is_backlog_empty)
        moved = moved_in(url)
    assert {f"orders-{number}" for number in range(200)} == set(moved)
    # What was moved without a row was moved again.
    arrived = await pair.arrived("orders")
    assert set(arrived) == set(bodies(range(200)))
    assert len(arrived) > 200
