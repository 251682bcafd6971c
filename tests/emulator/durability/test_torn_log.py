"""A log torn while its last commit was being written: everything before that commit is intact.

SQLite acknowledges a commit at durability full when its frames are on the disk, so a power cut can only damage what
comes after the last acknowledged commit. These tests damage exactly that, in every way a disk might.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.emulator.durability.tables import FILES, LOG, read_tables
from tests.emulator.raw_client import ConnectionGoneError, RawClient, RefusedError, encoded_message
from tests.emulator.wire import ServeProcess, administration

from twinbus.emulator.entities.message import Arrival
from twinbus.emulator.entities.queue import Queue
from twinbus.emulator.server.namespace import Namespace
from twinbus.emulator.storage.store import Durability, Store
from twinbus.servicebus.entity_descriptions import QueueDescription

pytestmark = pytest.mark.slow

ACKNOWLEDGED = 20
IN_LAST_COMMIT = 5
FRAME_HEADER = 24
SECTOR = 512
BODY = b"x" * 3000


class Torn(NamedTuple):
    """A log whose last commit was not acknowledged, and the offset of that commit."""

    folder: Path
    start: int
    end: int


async def _store(queue: Queue, *message_ids: str) -> None:
    """Store messages in one commit."""
    stored: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    queue.take([Arrival(encoded_message(message_id, BODY)) for message_id in message_ids], stored.set_result)
    assert await stored is None


@pytest.fixture
async def torn(tmp_path: Path) -> Torn:
    """The files at a power cut right after the last commit was written."""
    folder = tmp_path / "torn"
    folder.mkdir()
    running = tmp_path / "running"
    async with Namespace("contoso", data=running) as namespace:
        entity = await namespace.create(QueueDescription("orders"))
        for number in range(ACKNOWLEDGED):
            await _store(entity.queue, f"acknowledged-{number}")
        start = (running / LOG).stat().st_size
        await _store(entity.queue, *(f"last-{number}" for number in range(IN_LAST_COMMIT)))
        end = (running / LOG).stat().st_size
        for file in FILES:
            shutil.copy(running / file, folder / file)
    assert end > start
    return Torn(folder, start, end)


async def _check(folder: Path, *, last: bool) -> None:
    """Check that a namespace opens with all acknowledged messages, and all or none of the last commit."""
    store = Store(folder, Durability.FULL)
    await store.close()
    tables = read_tables(folder)
    expected = {f"acknowledged-{number}" for number in range(ACKNOWLEDGED)}
    if last:
        expected |= {f"last-{number}" for number in range(IN_LAST_COMMIT)}
    assert {message.message_id for message in tables.messages["orders"]} == expected
    assert tables.wrong_counters() == []


async def test_undamaged_log_restores_everything(torn: Torn) -> None:
    await _check(torn.folder, last=True)


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.3, 0.5, 0.77, 0.99])
async def test_a_log_cut_inside_its_last_commit_loses_that_commit_only(torn: Torn, kept: float) -> None:
    os.truncate(torn.folder / LOG, torn.start + int((torn.end - torn.start) * kept))
    await _check(torn.folder, last=False)


async def test_a_log_without_its_last_byte_loses_the_last_commit_only(torn: Torn) -> None:
    os.truncate(torn.folder / LOG, torn.end - 1)
    await _check(torn.folder, last=False)


@pytest.mark.parametrize("offset", [0, FRAME_HEADER, 1000, 5000])
async def test_a_damaged_sector_in_the_last_commit_loses_that_commit_only(torn: Torn, offset: int) -> None:
    with (torn.folder / LOG).open("r+b") as log:
        log.seek(torn.start + offset)
        sector = log.read(SECTOR)
        log.seek(torn.start + offset)
        log.write(bytes(byte ^ 0xFF for byte in sector))
    await _check(torn.folder, last=False)


async def test_partly_written_last_commit_is_lost_alone(torn: Torn) -> None:
    with (torn.folder / LOG).open("r+b") as log:
        log.seek(torn.start)
        log.write(bytes((torn.end - torn.start) // 2))
    await _check(torn.folder, last=False)


@pytest.mark.parametrize("tail", [b"\x00" * 8192, os.urandom(10_000), b"\x01"], ids=["zeros", "noise", "one byte"])
async def test_data_after_the_last_commit_is_ignored(torn: Torn, tail: bytes) -> None:
    with (torn.folder / LOG).open("ab") as log:
        log.write(tail)
    await _check(torn.folder, last=True)


async def test_a_copy_of_an_old_commit_behind_the_last_one_is_ignored(torn: Torn) -> None:
    log = torn.folder / LOG
    content = log.read_bytes()
    log.write_bytes(content + content[torn.start :])
    await _check(torn.folder, last=True)


async def test_a_namespace_killed_under_load_opens_with_garbage_behind_its_log(tmp_path: Path) -> None:
    options = ("--namespace", "contoso=0", "--durability", "full")
    acknowledged: set[str] = set()
    with ServeProcess(tmp_path, *options) as serve:
        connection_string = serve.connection_string("contoso")
        administration(connection_string).create_queue("orders")
        async with RawClient(connection_string) as client:
            await client.put_token("orders")
            sender = await client.sender("orders")
            enough = asyncio.Event()

            def keep(message_id: str, error: RefusedError | ConnectionGoneError | None) -> None:
                if error is None:
                    acknowledged.add(message_id)
                    if len(acknowledged) == 500:
                        enough.set()

            for number in range(2000):
                await sender.room()
                message = encoded_message(f"message-{number}", BODY)
                sender.submit(message, lambda error, message_id=f"message-{number}": keep(message_id, error))
            await enough.wait()
            serve.kill()
        with (tmp_path / "contoso" / LOG).open("ab") as log:
            log.write(os.urandom(5000))
        serve.start()
    recovered = {message.message_id for message in read_tables(tmp_path / "contoso").messages["orders"]}
    assert acknowledged <= recovered
