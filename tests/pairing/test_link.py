"""A synchronous link that is closed while it opens leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient
from tests.client.threads import PATIENCE, ThreadedTwins, eventually

from twinbus.emulator import DEFAULT
from twinbus.pairing.pairing_errors import AttemptTimeoutError
from twinbus.pairing.sending._sync.link import Link
from twinbus.pairing.sending._sync.watchdog import watchdog


@pytest.fixture(scope="module")
def twins() -> Iterator[ThreadedTwins]:
    with ThreadedTwins.running(DEFAULT) as running:
        running.queue("orders")
        yield running


@pytest.fixture
def link(twins: ThreadedTwins) -> Iterator[Link]:
    with ServiceBusClient.from_connection_string(twins.primary.connection_string, **twins.client_options) as client:
        yield Link(client.get_queue_sender("orders"), "orders")
    eventually(lambda: twins.connections == 0)


def test_closed_link_does_not_open(link: Link, twins: ThreadedTwins) -> None:
    link.close()
    with pytest.raises(AttemptTimeoutError) as raised:
        link.open(PATIENCE)
    assert raised.value.is_unsent
    assert link not in watchdog._watched
    assert twins.connections == 0


def test_link_can_be_closed_at_the_moment_when_its_helper_starts(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, may_start = threading.Event(), threading.Event()
    real_start = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "twinbus-link":
            starts.set()
            assert may_start.wait(PATIENCE)
        real_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    opening = threading.Thread(target=link.open, args=(PATIENCE,))
    opening.start()
    assert starts.wait(PATIENCE)
    closing = threading.Thread(target=link.close)
    closing.start()
    may_start.set()
    for thread in (opening, closing):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    eventually(lambda: "twinbus-close" not in [thread.name for thread in threading.enumerate()])
    assert link not in watchdog._watched
