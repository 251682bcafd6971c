"""`kill -9` while messages are forwarded or moved in transactions: each is stored exactly once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from tests.emulator.contract.test_transactions import TransactionalClient
from tests.emulator.durability.tables import DATABASE, copied, remove_noted
from tests.emulator.raw_client import ConnectionGoneError, RawClient, RefusedError, encoded_message
from tests.emulator.wire import ServeProcess, administration

from twinbus.amqp.codec import sections

pytestmark = pytest.mark.slow

ROUNDS = 4
PAIR = 2  # messages of a transaction


class Tally:
    """The ids that the namespace has acknowledged."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._goal = 0
        self._reached = asyncio.Event()

    def add(self, name: str) -> None:
        self.ids.append(name)
        if len(self.ids) >= self._goal:
            self._reached.set()

    async def grown(self, count: int) -> None:
        """Wait for `count` more ids."""
        self._goal = len(self.ids) + count
        self._reached.clear()
        await asyncio.wait_for(self._reached.wait(), 60)


def stored_ids(folder: Path) -> Counter[str]:
    """The ids of all messages in the database, in any queue."""
    with copied(folder / "contoso") as copy, closing(sqlite3.connect(copy / DATABASE)) as database:
        remove_noted(database, copy)
        rows = database.execute("SELECT bare FROM messages").fetchall()
    return Counter(str(sections.list_fields(sections.split_sections(bare).properties, 1)[0]) for (bare,) in rows)


async def test_forwarded_message_is_never_lost_or_duplicated(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, "--namespace", "contoso=0", "--durability", "normal") as server:
        with administration(server.connection_string("contoso")) as admin:
            admin.create_queue("last")
            admin.create_queue("middle", forward_to="last")
            admin.create_queue("first", forward_to="middle")
        accepted = Tally()
        for number in range(ROUNDS):
            sending = asyncio.create_task(_send(server.connection_string("contoso"), number, accepted))
            await accepted.grown(200)
            server.kill()
            await sending
            stored = stored_ids(tmp_path)
            assert set(accepted.ids) <= stored.keys(), "lost"
            assert set(stored.values()) == {1}, "there twice"
            server.start()


async def _send(connection_string: str, turn: int, accepted: Tally) -> None:
    async with RawClient(connection_string) as client:
        try:
            await client.put_token("first")
            sender = await client.sender("first")
            for number in range(1_000_000):
                await sender.room()
                name = f"{turn}-{number}"

                def on_outcome(error: RefusedError | ConnectionGoneError | None, name: str = name) -> None:
                    if error is None:
                        accepted.add(name)

                sender.submit(encoded_message(name), on_outcome)
        except ConnectionGoneError:
            return


async def test_transaction_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, "--namespace", "contoso=0", "--durability", "normal") as server:
        with administration(server.connection_string("contoso")) as admin:
            for name in ("one", "two"):
                admin.create_queue(name)
        committed = Tally()
        for number in range(ROUNDS):
            working = asyncio.create_task(_transact(server.connection_string("contoso"), number, committed))
            await committed.grown(50)
            server.kill()
            await working
            stored = stored_ids(tmp_path)
            assert set(committed.ids) <= stored.keys(), "lost"
            assert set(stored.values()) == {PAIR}, "half a transaction"
            server.start()


async def _transact(connection_string: str, turn: int, committed: Tally) -> None:
    async with TransactionalClient(connection_string) as client:
        try:
            await client.put_token("")
            await client.open_coordinator()
            senders = [await client.sender(name) for name in ("one", "two")]
            for number in range(1_000_000):
                transaction, name = await client.declare(), f"{turn}-{number}"
                for sender in senders:
                    await client.send(sender, name, transaction)
                await client.discharge(transaction)
                committed.add(name)
        except ConnectionGoneError:
            return
