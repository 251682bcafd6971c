"""Rows that are proof: durable when a flush says so, and never said to be durable when they are not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.ledger.rows import a_send, message_ids, sends
from tests.ledger.stores import SECONDS, Obstinate

from twinbus.ledger.durable_rows import Proof, for_syphon
from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.ledger_errors import LedgerClosedError, NotDurableError
from twinbus.ledger.writer import LedgerWriter

QUICK = Rotation(flush_seconds=0.0)


def test_what_was_recorded_before_a_flush_is_in_the_ledger_after_it(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        proof = Proof(writer)
        for number in range(3):
            proof.record(a_send(f"m-{number}"))
            proof.flush()
            assert message_ids(tmp_path) == {f"m-{one}": 1 for one in range(number + 1)}


def test_a_flush_without_rows_is_no_file(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        Proof(writer).flush()
        assert writer.status().written_files == 0


async def test_flushes_that_follow_one_another_share_files(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        proof = Proof(writer)

        async def prove(number: int) -> None:
            proof.record(a_send(f"m-{number}"))
            await proof.flush_async()

        await asyncio.gather(*(prove(number) for number in range(100)))
        assert writer.status().written_files <= 2
        assert len(message_ids(tmp_path)) == 100


async def test_the_flush_of_the_syphon_calls_back_on_the_loop_and_never_at_once(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    with LedgerWriter(tmp_path) as writer:
        recorder, flush = for_syphon(writer, loop)
        assert flush is not None
        called: asyncio.Future[BaseException | None] = loop.create_future()
        recorder.record(a_send())
        flush(called.set_result)
        assert not called.done()
        assert await asyncio.wait_for(called, SECONDS) is None
        assert message_ids(tmp_path) == {"m": 1}


def test_a_syphon_that_does_its_best_waits_for_nothing(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    try:
        with LedgerWriter(tmp_path) as writer:
            assert for_syphon(writer, loop, ledger="best_effort") == (writer, None)
            with pytest.raises(ValueError, match='ledger must be "required" or "best_effort", not \'no\''):
                for_syphon(writer, loop, ledger="no")  # type: ignore[arg-type]
    finally:
        loop.close()


@pytest.mark.parametrize("how", ["thread", "await", "syphon"])
async def test_a_flush_that_does_not_work_in_time_raises(how: str) -> None:
    url = Obstinate.reset()
    with LedgerWriter(url, rotation=QUICK) as writer:
        proof = Proof(writer, deadline=0.5)
        proof.record(a_send())
        Obstinate.error = OSError(28, "No space left on device")
        started = time.monotonic()
        if how == "syphon":
            called: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
            proof.on_loop(asyncio.get_running_loop())(called.set_result)
            error = await called
        else:
            with pytest.raises(NotDurableError) as raised:
                await (asyncio.to_thread(proof.flush) if how == "thread" else proof.flush_async())
            error = raised.value
        assert 0.4 < time.monotonic() - started < 5.0
        assert isinstance(error, NotDurableError)
        assert str(error) == "the ledger is not durable after 0.5 s: No space left on device"
        assert error.__cause__ is Obstinate.error
        Obstinate.error = None
        await proof.flush_async()
    assert message_ids(url) == {"m": 1}


async def test_a_store_that_hangs_is_not_waited_for_longer_than_the_deadline() -> None:
    url = Obstinate.reset()
    with LedgerWriter(url, rotation=QUICK) as writer:
        Obstinate.let_go.clear()
        proof = Proof(writer, deadline=0.3)
        proof.record(a_send())
        with pytest.raises(NotDurableError, match="the store did not answer"):
            await asyncio.to_thread(proof.flush)
        with pytest.raises(NotDurableError, match="the store did not answer"):
            await proof.flush_async()
        Obstinate.let_go.set()


async def test_a_short_failure_within_the_deadline_is_no_failure() -> None:
    url = Obstinate.reset()
    with LedgerWriter(url, rotation=QUICK) as writer:
        Obstinate.error = ConnectionResetError(104, "Connection reset by peer")
        proof = Proof(writer)
        proof.record(a_send())
        flushing = asyncio.create_task(proof.flush_async())
        assert await asyncio.to_thread(Obstinate.tried.wait, SECONDS)
        Obstinate.error = None
        await flushing
    assert message_ids(url) == {"m": 1}


def test_once_a_row_was_dropped_nothing_is_proven_any_more() -> None:
    url = Obstinate.reset()
    with LedgerWriter(url, rotation=QUICK, buffer_rows=5) as writer:
        Obstinate.let_go.clear()
        writer.record(a_send())
        writer.request_flush()
        assert Obstinate.hangs.wait(SECONDS)
        spared, proof = Proof(writer), Proof(writer)
        for one in sends(6):
            proof.record(one)
        Obstinate.let_go.set()
        for _ in range(2):
            with pytest.raises(NotDurableError, match="rows of the ledger were dropped"):
                proof.flush()
        spared.flush()
        Proof(writer).flush()


def test_a_row_that_does_not_fit_is_not_proven(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        proof = Proof(writer)
        proof.record(a_send(bytes=2**63))
        with pytest.raises(NotDurableError, match="rows of the ledger were dropped"):
            proof.flush()


async def test_a_writer_that_is_closed_proves_nothing(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path)
    proof = Proof(writer)
    writer.close()
    for _ in range(2):
        with pytest.raises(NotDurableError, match="writer is closed") as raised:
            proof.flush()
        assert isinstance(raised.value.__cause__, LedgerClosedError)
        with pytest.raises(NotDurableError, match="writer is closed"):
            await proof.flush_async()


def test_those_who_wait_while_the_writer_gives_up_are_told() -> None:
    url = Obstinate.reset()
    writer = LedgerWriter(url, rotation=QUICK)
    Obstinate.error = OSError(28, "No space left on device")
    writer.record(a_send())
    flushed = writer.request_flush()
    writer.close(timeout=0.1)
    with pytest.raises(LedgerClosedError, match="closed before the rows were stored"):
        flushed.result(SECONDS)


async def test_a_loop_that_is_closed_is_not_called(tmp_path: Path) -> None:
    url = Obstinate.reset()
    loop = asyncio.new_event_loop()
    with LedgerWriter(url, rotation=QUICK) as writer:
        Obstinate.let_go.clear()
        proof = Proof(writer)
        proof.record(a_send())
        proof.on_loop(loop)(lambda error: pytest.fail("a closed loop was called"))
        loop.close()
        Obstinate.let_go.set()
        await Proof(writer).flush_async()


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("inf"), float("nan")])
def test_a_deadline_that_never_comes_is_refused(deadline: float, tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer, pytest.raises(ValueError, match="deadline must be more than 0 and finite"):
        Proof(writer, deadline=deadline)
