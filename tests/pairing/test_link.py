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


def test_call_with_little_time_ends_in_time_whatever_the_sdk_waits_for(link: Link) -> None:
    """After its connection is cut the SDK may wait for a thread of its own; the caller has other queues to try."""
    link.open(PATIENCE)
    may_end = threading.Event()
    try:
        with pytest.raises(AttemptTimeoutError):
            link.call(may_end.wait, PATIENCE, seconds=0.1)
        assert link.is_hung
    finally:
        may_end.set()
        link.close()
    assert not link.is_hung
