"""`twinbus serve` refuses data it cannot open with a one-line error and exit code 1."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.emulator.durability.tables import DATABASE
from tests.emulator.raw_client import RawClient, encoded_message
from tests.emulator.wire import START_SECONDS, ServeProcess

from twinbus.emulator.server.namespace import Namespace
from twinbus.emulator.storage.schema import SCHEMA_VERSION
from twinbus.emulator.storage.store import Store, StoreError
from twinbus.servicebus.entity_descriptions import QueueDescription

pytestmark = pytest.mark.slow

NAMESPACE = "contoso"


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A data folder with a namespace that has a queue and messages in it."""
    async with Namespace(NAMESPACE, data=tmp_path / NAMESPACE) as namespace:
        await namespace.create(QueueDescription("orders"))
        async with RawClient(namespace.connection_string) as client:
            await client.put_token("orders")
            sender = await client.sender("orders")
            for number in range(50):
                await sender.send(encoded_message(f"message-{number}", b"x" * 3000))
    return tmp_path


def _serve(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "twinbus", "serve", "--json", "--data", str(folder), "--namespace"]
    return subprocess.run(
        [*command, f"{NAMESPACE}=0"], capture_output=True, text=True, timeout=START_SECONDS, check=False
    )


def _error_line(folder: Path) -> str:
    """The one line that a server prints if it cannot start."""
    ended = _serve(folder)
    assert ended.returncode == 1
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    return lines[0]


def test_garbage_file_is_reported(folder: Path) -> None:
    database = folder / NAMESPACE / DATABASE
    database.write_bytes(os.urandom(database.stat().st_size))
    refusal = _error_line(folder)
    assert str(database) in refusal
    assert "not a database" in refusal


def test_damaged_database_is_reported(folder: Path) -> None:
    database = folder / NAMESPACE / DATABASE
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(database.stat().st_size - 4096))
    refusal = _error_line(folder)
    assert str(database) in refusal
    assert "malformed" in refusal


def test_truncated_database_is_reported(folder: Path) -> None:
    database = folder / NAMESPACE / DATABASE
    os.truncate(database, 3 * 4096)
    refusal = _error_line(folder)
    assert str(database) in refusal
    assert "malformed" in refusal


def test_newer_database_is_refused_and_not_changed(folder: Path) -> None:
    database = folder / NAMESPACE / DATABASE
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = database.read_bytes()
    refusal = _error_line(folder)
    assert "newer twinbus" in refusal
    assert str(database) in refusal
    assert database.read_bytes() == before


def test_folder_in_use_by_another_server_is_refused(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, "--namespace", f"{NAMESPACE}=0") as first:
        refusal = _error_line(tmp_path)
        assert "in use" in refusal
        assert str(tmp_path / NAMESPACE) in refusal
        assert first.process is not None
        assert first.process.poll() is None
    assert _opens(tmp_path)


def test_folder_is_unlocked_after_a_kill(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, "--namespace", f"{NAMESPACE}=0") as first:
        first.kill()
    assert _opens(tmp_path)


def _opens(folder: Path) -> bool:
    with ServeProcess(folder, "--namespace", f"{NAMESPACE}=0") as serve:
        return NAMESPACE in serve.ready["namespaces"]


async def test_store_that_fails_to_open_unlocks_its_folder(folder: Path) -> None:
    data = folder / NAMESPACE
    shutil.copy(data / DATABASE, folder / "good")
    (data / DATABASE).write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=DATABASE):
        Store(data)
    shutil.copy(folder / "good", data / DATABASE)
    store = Store(data)
    await store.close()


async def test_two_stores_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(StoreError, match="in use"):
        Store(tmp_path)
    await store.close()


@pytest.mark.parametrize("name", ["a#b", "50%41", "what?", "with space"])
async def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / name)
    assert await asyncio.wait_for(store.commit([]), START_SECONDS) is None
    assert store.reader.execute("SELECT COUNT(*) FROM messages").fetchone() == (0,)
    await store.close()
