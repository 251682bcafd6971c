"""`kill -9` under load: acknowledged messages survive, completed ones stay gone, locks are released.

The moments of the kills come from a seed, which a failure names; TWINBUS_CRASH_SEED runs the same ones again.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from tests.emulator.durability.campaign import (
    SESSIONS,
    Campaign,
    create_entities,
)
from tests.emulator.durability.drain import drain
from tests.emulator.durability.tables import Tables, read_tables
from tests.emulator.durability.workers import WORKER_NAMES, WORKERS, keep_working
from tests.emulator.wire import ServeProcess, administration

NAMESPACE = "contoso"
ROUNDS = 10  # of each durability
LOAD_SECONDS = (0.4, 1.6)
PATIENCE = 60.0  # seconds


def _seed() -> int:
    seed = os.environ.get("TWINBUS_CRASH_SEED")
    return int(seed) if seed else random.SystemRandom().randrange(1 << 32)


def _problems(campaign: Campaign, tables: Tables) -> list[str]:
    """All violations properties after a kill."""
    problems = tables.wrong_sequences()
    for path, ledger in campaign.ledgers.items():
        verdict = ledger.verify(tables.messages[path])
        if verdict:
            problems.append(f"{path}: {verdict}")
    stored = {session: state for (path, session), state in tables.session_states.items() if path == SESSIONS}
    for session in campaign.states.wrong(stored):
        problems.append(f"the state of {session} is {stored.get(session)!r}")
    return problems


def _miscounted(admin: ServiceBusAdministrationClient, campaign: Campaign, tables: Tables) -> list[str]:
    """The entities whose runtime properties do not match the tables."""
    problems = []
    for path in campaign.ledgers:
        topic, _, name = path.partition("/")
        if name:
            properties = admin.get_subscription_runtime_properties(topic, name)
            scheduled = 0
        else:
            properties = admin.get_queue_runtime_properties(path)
            scheduled = properties.scheduled_message_count
        scanned, dead = tables.count(path), tables.count(path, dead_letters=True)
        counted = (properties.active_message_count + scheduled, properties.dead_letter_message_count)
        # Deferred messages count as active. Scheduled ones may be active by now, so compare the sum.
        if counted != (scanned.active + scanned.deferred + scanned.scheduled, dead.active):
            problems.append(f"{path}: the namespace counts {counted}, the tables hold {scanned} and {dead}")
    return problems


class CrashTest:
    """A namespace that is killed in every round."""

    def __init__(self, folder: Path, durability: str, seed: int) -> None:
        self.folder = folder
        self.moments = random.Random(seed)
        options = ("--durability", durability)
        with ServeProcess(folder, "--namespace", f"{NAMESPACE}=0", *options) as first:
            port = first.ready["namespaces"][NAMESPACE]["port"]
            connection_string = first.connection_string(NAMESPACE)
            create_entities(administration(connection_string))
        # The same port each time, so that clients reconnect as to a restarted service.
        self.serve = ServeProcess(folder, "--namespace", f"{NAMESPACE}={port}", *options)
        self.campaign = Campaign(connection_string, seed)
        self.admin = administration(connection_string)
        self.tables = read_tables(folder / NAMESPACE)

    async def run(self, rounds: int) -> None:
        async with self.campaign.client, asyncio.TaskGroup() as group:
            workers = [group.create_task(keep_working(worker, self.campaign)) for worker in WORKERS]
            try:
                for number in range(rounds):
                    await self._round(is_last=number == rounds - 1)
                await self._start()
                await drain(self.campaign, self.tables)
                self._check_empty()
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.to_thread(self.serve.stop)

    async def _round(self, *, is_last: bool) -> None:
        await self._start()
        self.campaign.gate.open()
        await asyncio.sleep(self.moments.uniform(*LOAD_SECONDS))
        # On a busy machine some workers may not have run yet.
        ends = time.monotonic() + PATIENCE
        while is_last and not all(self.campaign.totals().values()) and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.to_thread(self.serve.kill)
        await self.campaign.gate.close(WORKER_NAMES)
        self.tables = read_tables(self.folder / NAMESPACE)
        problems = _problems(self.campaign, self.tables)
        assert not problems, problems

    async def _start(self) -> None:
        await asyncio.to_thread(self.serve.start)
        problems = await asyncio.to_thread(_miscounted, self.admin, self.campaign, self.tables)
        assert not problems, problems

    def _check_empty(self) -> None:
        for path in self.campaign.ledgers:
            topic, _, name = path.partition("/")
            if name:
                left = self.admin.get_subscription_runtime_properties(topic, name).total_message_count
            else:
                left = self.admin.get_queue_runtime_properties(path).total_message_count
            assert left == 0, f"{path} still counts {left} messages after everything was received"


@pytest.mark.slow
@pytest.mark.timeout(300)
# The SDK leaves sockets unclosed when a connection breaks.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("durability", ["normal", "full"])
async def test_killed_namespace_loses_and_resurrects_nothing(tmp_path: Path, durability: str) -> None:
    seed = _seed()
    try:
        test = CrashTest(tmp_path, durability, seed)
        started = time.monotonic()
        await test.run(ROUNDS)
    except BaseException as error:
        error.add_note(f"durability {durability}, TWINBUS_CRASH_SEED={seed}")
        raise
    finally:
        gc.collect()  # raises the SDK's resource warnings here, not in another test
    totals = test.campaign.totals()
    print(f"{durability}: {ROUNDS} kills in {time.monotonic() - started:.0f} s, {totals}")
    assert all(totals.values()), "the load did not do everything that it is there for"
