"""A full, read-only, slow or missing ledger affects neither sends nor the drain."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from tests.client.threads import Seen, ThreadedTwins, eventually
from tests.ledger.troubles import TROUBLES, Gone, Slow, Trouble
from tests.namespace_internals import Queue

from twinbus import (
    LedgerAvailable,
    LedgerUnavailable,
    PairedServiceBusClient,
    Recovered,
    Route,
    SendAvailabilityOptions,
    SyphonOptions,
)
from twinbus.emulator import DEFAULT, Fault, FaultKind, QueueDescription
from twinbus.emulator import FaultPoint as At
from twinbus.ledger import writer as writing
from twinbus.ledger.file_rotation import Rotation
from twinbus.ledger.writer import LedgerWriter
from twinbus.servicebus.durations import TICKS_PER_SECOND

pytestmark = pytest.mark.slow

TIMEOUT = 10.0  # of a send
LOCK_SECONDS = 5  # of which the syphon waits a third for its ledger
CLOSING = 5.0
BUSY = 2.5  # seconds more that closing may take on a busy machine
QUICK = Rotation(seconds=0.2, flush_seconds=0.0)

numbers = count()


@pytest.fixture(scope="module")
def twins() -> Iterator[ThreadedTwins]:
    with ThreadedTwins.running(DEFAULT) as running:
        yield running


class Stage:
    """A queue, a backlog queue, a ledger that can fail, and the sent messages."""

    def __init__(self, twins: ThreadedTwins, trouble: Trouble, mode: str | None) -> None:
        number = next(numbers)
        self.twins, self.trouble, self.mode = twins, trouble, mode
        self.path, self.name = f"orders-{number}", f"contoso-{number}"
        self.orders = twins.queue(self.path)
        backlog = QueueDescription(
            f"{self.name}/x-servicebus-transfer/0",
            lock_duration=LOCK_SECONDS * TICKS_PER_SECOND,
            max_delivery_count=2147483647,
        )
        self.backlog: Queue = twins.secondary.run(twins.secondary.namespace.create(backlog)).queue
        self.sent: set[str] = set()

    def client(self, recorder: LedgerWriter | None) -> PairedServiceBusClient:
        mode: dict[str, Any] = {"ledger_mode": self.mode} if self.mode else {}
        options = SendAvailabilityOptions(
            backlog_queue_count=1,
            failover_interval=0,
            ping_primary_interval=1,
            attempt_timeout=5,
            primary_name=self.name,
            enable_syphon=True,
            syphon=SyphonOptions(retry_min=0.05, retry_max=0.2, **mode),
        )
        return PairedServiceBusClient(*self.twins.texts, options, recorder=recorder, **self.twins.client_options)

    def send(self, sender: Any, route: Route, messages: int = 3) -> None:
        for _ in range(messages):
            receipt = sender.send_messages(ServiceBusMessage("x"), timeout=TIMEOUT)
            assert receipt.route is route
            self.sent.update(receipt.message_ids)

    def divert(self, paired: PairedServiceBusClient, sender: Any) -> None:
        """Send a message to the backlog, and keep it there until `fail_back`."""
        paired.fail_over(self.path)
        self.send(sender, Route.BACKLOG)

    @property
    def is_drained(self) -> bool:
        counters = self.backlog.counters
        return self.backlog.activity.completed > 0 and counters.active == counters.deferred == 0

    def arrived(self) -> set[str]:
        """Return the ids of all messages at the primary, without duplicates."""
        with self.client(None) as paired:
            eventually(lambda: self.is_drained)
            receiver = paired.get_queue_receiver(self.path)
            ids: set[str] = set()
            while messages := receiver.receive_messages(max_message_count=100, max_wait_time=1):
                ids |= {str(message.message_id) for message in messages}
                for message in messages:
                    receiver.complete_message(message)
        return ids


def stopping(seen: Seen) -> list[LedgerUnavailable]:
    return [event for event in seen.all(LedgerUnavailable) if event.stops_syphon]


@pytest.mark.parametrize("when", ["outage", "drain"])
@pytest.mark.parametrize("mode", ["required", "best_effort"])
@pytest.mark.parametrize("kind", TROUBLES)
def test_sends_continue_nothing_is_lost_and_closing_is_bounded(
    twins: ThreadedTwins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Any], mode: str, when: str
) -> None:
    monkeypatch.setattr(writing, "SLOW_SECONDS", 0.3)
    trouble = kind(tmp_path)
    stage = Stage(twins, trouble, mode)
    writer = LedgerWriter(trouble.url, rotation=QUICK)
    paired = stage.client(writer)
    seen = Seen(paired)
    try:
        paired.start()
        sender = paired.get_queue_sender(stage.path)
        stage.send(sender, Route.PRIMARY)
        if when == "outage":
            trouble.begin()
            twins.strike(Fault(FaultKind.REJECT, entity=stage.path, on=frozenset({At.SEND})))
            stage.send(sender, Route.BACKLOG)
            seen.next(LedgerUnavailable)
            twins.clear()
            seen.next(Recovered)
        else:
            stage.divert(paired, sender)
            trouble.begin()
            paired.fail_back(stage.path)
            seen.next(LedgerUnavailable)
        assert paired.status().ledger_error is not None
        if mode == "best_effort":
            eventually(lambda: stage.is_drained)
        else:
            eventually(lambda: stopping(seen))
            status = paired.status()
            assert status.syphon is not None
            assert status.syphon.ledger_error is not None
            assert stage.backlog.activity.completed == 0
        stage.send(sender, Route.PRIMARY)
        trouble.end()
        eventually(lambda: seen.all(LedgerAvailable))
        eventually(lambda: stage.is_drained)
        eventually(lambda: paired.status().ledger_error is None)
        # The end in the middle of trouble.
        stage.divert(paired, sender)
        before = len(seen.all(LedgerUnavailable))
        trouble.begin()
        paired.fail_back(stage.path)
        eventually(lambda: len(seen.all(LedgerUnavailable)) > before)
    finally:
        started = time.monotonic()
        paired.close()
        assert time.monotonic() - started < CLOSING + BUSY
        writer.close(timeout=0.1)
        trouble.end()
    assert stage.arrived() >= stage.sent


def test_event_and_status_have_the_ledger_error(twins: ThreadedTwins, tmp_path: Path) -> None:
    trouble = Gone(tmp_path)
    stage = Stage(twins, trouble, None)
    with LedgerWriter(trouble.url, rotation=QUICK) as writer, stage.client(writer) as paired:
        seen = Seen(paired)
        trouble.begin()
        stage.send(paired.get_queue_sender(stage.path), Route.PRIMARY)
        assert seen.next(LedgerUnavailable).message == paired.status().ledger_error == "File exists"
        trouble.end()


def test_a_ledger_is_required_unless_the_options_say_otherwise(twins: ThreadedTwins, tmp_path: Path) -> None:
    trouble = Slow(tmp_path)
    stage = Stage(twins, trouble, None)
    with LedgerWriter(trouble.url) as writer, stage.client(writer) as paired:
        stage.divert(paired, paired.get_queue_sender(stage.path))
        trouble.begin()
        paired.fail_back(stage.path)
        eventually(lambda: stage.orders.activity.received >= 1)
        assert stage.backlog.activity.completed == 0
        trouble.end()
        eventually(lambda: stage.is_drained)
