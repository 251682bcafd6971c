"""The synchronous twin: the same behaviour, with its background on one private thread."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusServerBusyError
from tests.client.threads import Seen, ThreadedTwins, down, eventually
from tests.sdk_connection import address_options

from twinbus import (
    BacklogNotReadyError,
    Condition,
    Diverted,
    EntityState,
    Namespace,
    PairedClientFaultedError,
    PairedServiceBusClient,
    PingFailed,
    Recovered,
    Route,
    SendAvailabilityOptions,
    SyphonOptions,
    pair_namespaces,
)
from twinbus.emulator import AZURE, DEFAULT, Fault, FaultKind
from twinbus.emulator import FaultPoint as At
from twinbus.pairing.failover.ping import ping_message

pytestmark = pytest.mark.slow

NUMBERS = itertools.count(1)
HOUR = 1800.0
OUR_THREAD = "twinbus-background"
#: Resolve host names for it.
OUR_WORKERS = "twinbus-worker"
THEIR_THREADS = ("twinbus-namespace", "twinbus-store")


@pytest.fixture(scope="module", params=[DEFAULT, AZURE], ids=["default", "azure"])
def twins(request: pytest.FixtureRequest) -> Iterator[ThreadedTwins]:
    with ThreadedTwins.running(request.param) as running:
        yield running


@pytest.fixture(autouse=True)
def no_faults(twins: ThreadedTwins) -> Iterator[None]:
    yield
    twins.clear()
    twins.primary.namespace.deliver_pings = False


def a_name() -> str:
    return f"orders-{next(NUMBERS)}"


def our_threads() -> list[str]:
    """Return the threads of clients, without those of the embedded namespaces."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("twinbus-") and name not in THEIR_THREADS]


def open_sockets() -> int:
    links = (os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum(link.startswith("socket:") for link in links)


def test_everything_is_set_up_when_the_context_is_entered(twins: ThreadedTwins) -> None:
    with twins.client() as paired:
        assert [one.path for one in paired.list_backlog()] == [f"contoso/x-servicebus-transfer/{i}" for i in range(2)]
        assert paired.status().backlog_is_ready
        assert [name for name in our_threads() if not name.startswith(OUR_WORKERS)] == [OUR_THREAD]
    assert our_threads() == []


def test_no_thread_is_started_before_it_is_needed(twins: ThreadedTwins) -> None:
    paired = twins.client()
    assert paired.status().condition is Condition.OPEN
    assert our_threads() == []
    paired.get_queue_sender(a_name())
    assert OUR_THREAD in our_threads()
    eventually(lambda: paired.status().backlog_is_ready)
    paired.close()
    assert our_threads() == []


def test_pair_namespaces_returns_when_everything_is_set_up(twins: ThreadedTwins) -> None:
    options = SendAvailabilityOptions(backlog_queue_count=2)
    with pair_namespaces(*twins.texts, options, **twins.client_options) as paired:
        assert (paired.status().name, paired.status().backlog_is_ready) == ("contoso", True)


def test_after_failover_nothing_but_pings_reaches_the_primary_from_any_sender(twins: ThreadedTwins) -> None:
    path = a_name()
    queue = twins.queue(path)
    with twins.client(ping_primary_interval=HOUR) as paired:
        seen = Seen(paired)
        witness, stranger = paired.get_queue_sender(path), paired.get_queue_sender(path)
        assert stranger.send_messages(ServiceBusMessage("0")).route is Route.PRIMARY
        twins.strike(Fault(FaultKind.REJECT, entity=path, on=frozenset({At.SEND}), count=2))
        assert witness.send_messages(ServiceBusMessage("1")).route is Route.BACKLOG
        seen.next(PingFailed)
        assert stranger.send_messages(ServiceBusMessage("2")).route is Route.BACKLOG
        assert (queue.activity.received, queue.activity.pings) == (1, 0)


def test_a_ping_brings_all_senders_back(twins: ThreadedTwins) -> None:
    path = a_name()
    queue = twins.queue(path)
    with twins.client() as paired:
        seen = Seen(paired)
        sender = paired.get_queue_sender(path)
        twins.strike(Fault(FaultKind.REJECT, entity=path, on=frozenset({At.SEND}), count=1))
        assert sender.send_messages(ServiceBusMessage("1")).route is Route.BACKLOG
        seen.next(Recovered)
        assert sender.send_messages(ServiceBusMessage("2")).route is Route.PRIMARY
        assert (queue.activity.received, queue.activity.pings) == (1, 1)


def test_one_failure_and_then_silence_still_fails_over_and_pings(twins: ThreadedTwins) -> None:
    path = a_name()
    queue = twins.queue(path)
    with twins.client(failover_interval=1.5) as paired:
        seen = Seen(paired)
        twins.strike(Fault(FaultKind.REJECT, entity=path, on=frozenset({At.SEND}), count=1))
        paired.get_queue_sender(path).send_messages(ServiceBusMessage("1"))
        assert paired.status().entities[0].state is EntityState.SUSPECT
        seen.next(Recovered)
        assert queue.activity.pings == 1


def test_syphon_drains_the_backlog(twins: ThreadedTwins) -> None:
    path = a_name()
    queue = twins.queue(path)
    with twins.client(enable_syphon=True, syphon=SyphonOptions(retry_min=0.1)) as paired:
        paired.fail_over(path)
        assert paired.get_queue_sender(path).send_messages(ServiceBusMessage("1")).route is Route.BACKLOG
        paired.fail_back(path)
        eventually(lambda: queue.activity.received == 1)

        def moved() -> int:
            syphon = paired.status().syphon
            assert syphon is not None
            return sum(one.destinations[path].moved for one in syphon.queues if path in one.destinations)

        eventually(lambda: moved() == 1)


def test_a_process_can_start_and_send_while_the_primary_is_down(twins: ThreadedTwins) -> None:
    path = a_name()
    down(twins.primary)
    with twins.client(strict=True) as paired, paired.get_queue_sender(path) as sender:
        assert sender.send_messages(ServiceBusMessage("x")).route is Route.BACKLOG


def test_a_process_can_start_and_send_while_the_secondary_is_down(twins: ThreadedTwins) -> None:
    path = a_name()
    twins.queue(path)
    down(twins.secondary)
    with twins.client() as paired, paired.get_queue_sender(path) as sender:
        assert sender.send_messages(ServiceBusMessage("x")).route is Route.PRIMARY
        assert not paired.status().backlog_is_ready


def test_a_strict_start_fails_while_the_secondary_is_down_and_leaves_nothing_behind(twins: ThreadedTwins) -> None:
    down(twins.secondary)
    with pytest.raises(BacklogNotReadyError), twins.client(strict=True):
        pass
    assert our_threads() == []


def test_a_ping_is_skipped_and_settled(twins: ThreadedTwins) -> None:
    path = a_name()
    queue = twins.queue(path)
    twins.primary.namespace.deliver_pings = True
    with twins.client() as paired, paired.primary.get_queue_sender(path) as sender:
        for message in (ping_message(), ServiceBusMessage("one"), ping_message(), ServiceBusMessage("two")):
            message.time_to_live = None
            sender.send_messages(message)
        with paired.get_queue_receiver(path, max_wait_time=5) as receiver:
            [first] = receiver.receive_messages(1)
            second = next(iter(receiver))
            assert [str(first), str(second)] == ["one", "two"]
            assert receiver.peek_messages(5, sequence_number=1)[0].message_id == first.message_id
            receiver.complete_message(first)
            receiver.complete_message(second)
    assert queue.activity.completed == 4


def test_a_callback_may_ask_for_the_status_in_any_thread(twins: ThreadedTwins) -> None:
    path = a_name()
    twins.queue(path)
    seen: list[Condition] = []
    with twins.client() as paired:
        paired.on_event(lambda event: seen.append(paired.status().condition))
        twins.strike(Fault(FaultKind.REJECT, entity=path, on=frozenset({At.SEND}), count=1))
        paired.get_queue_sender(path).send_messages(ServiceBusMessage("1"))
        eventually(lambda: len(seen) >= 4)
        assert set(seen) == {Condition.OPEN}


def test_a_closed_client_can_be_entered_again_and_its_listeners_stay(twins: ThreadedTwins) -> None:
    path = a_name()
    twins.queue(path)
    paired = twins.client()
    seen = Seen(paired)
    for times in (1, 2):
        with paired:
            paired.fail_over(path)
            paired.get_queue_sender(path).send_messages(ServiceBusMessage("x"))
        with pytest.raises(ValueError, match="The client was closed"):
            paired.get_queue_sender(path)
        assert len(seen.first(times, Diverted)) == times
        assert paired.status().condition is Condition.CLOSED


@pytest.mark.parametrize("retry_total", [0, 2])
def test_retry_options_hold_for_a_busy_namespace_and_for_receivers(twins: ThreadedTwins, retry_total: int) -> None:
    path = a_name()
    twins.queue(path)
    fault = Fault(FaultKind.THROTTLE, entity=path, on=frozenset({At.SEND, At.MANAGEMENT}))
    options = {"retry_total": retry_total, "retry_backoff_factor": 0.01, **twins.client_options}
    with PairedServiceBusClient(*twins.texts, **options) as paired:
        busy = twins.strike(fault)
        with pytest.raises(ServiceBusServerBusyError):
            paired.get_queue_sender(path).send_messages(ServiceBusMessage("x"))
        assert busy.fired == 1 + retry_total
        with pytest.raises(ServiceBusServerBusyError):
            paired.get_queue_receiver(path).peek_messages()
        assert busy.fired == 2 + 2 * retry_total


class _AsyncCredential:
    """An asynchronous credential, awaited on the private loop of a synchronous client."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.threads: set[str] = set()

    async def get_token(self, *scopes: str, **_: object) -> AccessToken:
        self.threads.add(threading.current_thread().name)
        return AccessToken(self._token, 2_000_000_000)


def test_an_asynchronous_credential_serves_the_synchronous_client(twins: ThreadedTwins) -> None:
    credential = _AsyncCredential("not a token")
    primary = twins.primary.namespace
    namespace = Namespace(f"{primary.host}:{primary.port}", credential, **address_options(primary))
    options = SendAvailabilityOptions(backlog_queue_count=1, primary_name="contoso", create_backlog=False)
    with PairedServiceBusClient(namespace, twins.texts[1], options, **twins.client_options) as paired:
        with pytest.raises(ServiceBusAuthenticationError):
            paired.get_queue_sender(a_name()).send_messages(ServiceBusMessage("x"))
        assert credential.threads == {OUR_THREAD}


def test_closing_leaves_no_thread_and_no_socket_behind(twins: ThreadedTwins) -> None:
    path, dead = a_name(), a_name()
    twins.queue(path)
    twins.queue(dead)
    eventually(lambda: twins.connections == 0)
    before = open_sockets()
    paired = twins.client(enable_syphon=True, order="session", syphon=SyphonOptions(retry_min=0.1))
    with paired:
        paired.get_queue_sender(path).send_messages(ServiceBusMessage("x"))
        receiver = paired.get_queue_receiver(path)
        receiver.receive_messages(1, max_wait_time=5)
        twins.strike(Fault(FaultKind.BLACKHOLE, entity=dead, on=frozenset({At.SEND, At.ATTACH})))
        assert paired.get_queue_sender(dead).send_messages(ServiceBusMessage("x"), timeout=6).route is Route.BACKLOG
    twins.clear()
    eventually(lambda: our_threads() == [])
    eventually(lambda: twins.connections == 0)
    eventually(lambda: open_sockets() <= before)


def test_closed_client_raises(twins: ThreadedTwins) -> None:
    path = a_name()
    with twins.client() as paired:
        sender = paired.get_queue_sender(path)
    with pytest.raises(ValueError, match="closed"):
        paired.get_queue_sender(path)
    with pytest.raises(ValueError, match="closed"):
        sender.send_messages(ServiceBusMessage("x"))
    paired.close()
    assert paired.status().condition is Condition.CLOSED


def test_a_faulted_client_raises_at_every_call(twins: ThreadedTwins) -> None:
    path = a_name()
    with twins.client() as paired:
        sender, receiver = paired.get_queue_sender(path), paired.get_queue_receiver(path)
        cause = ZeroDivisionError()
        paired.secondary.fault("faulted by the test", cause)
        for call in (
            lambda: sender.send_messages(ServiceBusMessage("x")),
            receiver.receive_messages,
            receiver.peek_messages,
            lambda: paired.get_queue_sender(path),
            lambda: paired.secondary.get_queue_sender(path),
        ):
            with pytest.raises(PairedClientFaultedError, match="faulted by the test"):
                call()
        assert paired.status().condition is Condition.FAULTED


def test_a_program_that_forgets_to_close_its_client_can_end(twins: ThreadedTwins) -> None:
    program = """
        import json, sys
        from azure.servicebus import ServiceBusMessage
        from twinbus import PairedServiceBusClient, SendAvailabilityOptions
        options = SendAvailabilityOptions(backlog_queue_count=1, primary_name="contoso", enable_syphon=True)
        primary, secondary, client_options = sys.argv[1:]
        client = PairedServiceBusClient(primary, secondary, options, **json.loads(client_options))
        client.start()
        client.fail_over("orders")
        print(client.get_queue_sender("orders").send_messages(ServiceBusMessage("x")).route.value)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), *twins.texts, json.dumps(twins.client_options)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout == "backlog\n"
