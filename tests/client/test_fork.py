"""A client in a forked child raises a clear error, closes at once, and leaves the parent alone."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from twinbus import PairedServiceBusClient
from twinbus.testing import TwinNamespaces, twin_namespaces

pytestmark = pytest.mark.slow

SECONDS = 60

PROGRAM = """
import asyncio, multiprocessing, os, sys, threading, time
from azure.servicebus import ServiceBusMessage
from twinbus import ForkedClientError, PairedServiceBusClient, SendAvailabilityOptions
from twinbus.aio import PairedServiceBusClient as AsyncClient

PRIMARY, SECONDARY = sys.argv[1:3]
OPTIONS = SendAvailabilityOptions(backlog_queue_count=1, ping_primary_interval=1)

def refused(what, call):
    started = time.monotonic()
    try:
        call()
    except ForkedClientError as error:
        assert error.made_in == os.getppid() and str(os.getpid()) in str(error) and "post_fork" in str(error), error
        assert time.monotonic() - started < 1, what
    else:
        raise AssertionError(f"{what} was not refused")

def in_child(check):
    process = multiprocessing.get_context("fork").Process(target=check)
    process.start()
    process.join(20)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, process.exitcode

"""

SYNC = """
client = PairedServiceBusClient(PRIMARY, SECONDARY, OPTIONS)
client.start()
sender, receiver = client.get_queue_sender("orders"), client.get_queue_receiver("orders", max_wait_time=5)
sender.send_messages(ServiceBusMessage("before"))

def check():
    refused("send", lambda: sender.send_messages(ServiceBusMessage("in the child")))
    refused("schedule", lambda: sender.schedule_messages(ServiceBusMessage("in the child"), None))
    refused("batch", sender.create_message_batch)
    refused("receive", receiver.receive_messages)
    refused("sender", lambda: client.get_queue_sender("orders"))
    refused("receiver", lambda: client.get_queue_receiver("orders"))
    refused("primary", lambda: client.primary.get_queue_sender("orders"))
    refused("status", client.status)
    refused("event", lambda: client.on_event(print))
    refused("list", client.list_backlog)
    refused("enter", client.__enter__)
    receiver.close()
    sender.close()
    client.secondary.close()
    client.close()
    client.close()

# While threads send, so that locks may be held at the fork.
going = True
def go_on():
    while going:
        sender.send_messages(ServiceBusMessage("meanwhile"))
threads = [threading.Thread(target=go_on, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(5):
    in_child(check)
going = False
for thread in threads:
    thread.join()
with receiver:
    assert str(receiver.receive_messages()[0]) == "before"
receipt = sender.send_messages(ServiceBusMessage("after"))
assert receipt.route.value == "primary" and receipt.attempts == 1, receipt
assert client.status().condition.value == "open"
client.close()
"""

ASYNC = """
async def main():
    async with AsyncClient(PRIMARY, SECONDARY, OPTIONS) as client:
        sender = client.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("before"))

        def check():
            async def child():
                try:
                    await sender.send_messages(ServiceBusMessage("in the child"))
                except ForkedClientError:
                    pass
                else:
                    raise AssertionError("not refused")
                await sender.close()
                await client.close()
            refused("status", client.status)
            # A child of a running loop seems to have one itself.
            asyncio._set_running_loop(None)
            asyncio.run(child())

        in_child(check)
        receipt = await sender.send_messages(ServiceBusMessage("after"))
        assert receipt.route.value == "primary" and receipt.attempts == 1, receipt

asyncio.run(main())
"""

NEW_CLIENT = """
client = PairedServiceBusClient(PRIMARY, SECONDARY, OPTIONS)
client.get_queue_sender("orders").send_messages(ServiceBusMessage("in the parent"))

def check():
    # The credential, the watchdog and the metrics are the process's own again.
    with PairedServiceBusClient(PRIMARY, SECONDARY, OPTIONS) as own:
        receipt = own.get_queue_sender("orders").send_messages(ServiceBusMessage("in the child"), timeout=10)
        assert receipt.route.value == "primary"

in_child(check)
client.close()
"""


@pytest.fixture
def twins() -> Iterator[TwinNamespaces]:
    with twin_namespaces() as made:
        made.primary.create_queue("orders")
        yield made


def run(twins: TwinNamespaces, program: str) -> None:
    """Run a program in its own process."""
    strings = twins.primary.connection_string, twins.secondary.connection_string
    code = PROGRAM + textwrap.dedent(program)
    finished = subprocess.run(
        [sys.executable, "-c", code, *strings], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("program", [SYNC, ASYNC], ids=["sync", "async"])
def test_forked_client_is_refused_and_leaves_its_parent_alone(twins: TwinNamespaces, program: str) -> None:
    run(twins, program)


def test_forked_child_can_make_a_client_of_its_own(twins: TwinNamespaces) -> None:
    run(twins, NEW_CLIENT)


def test_client_and_sender_cannot_be_passed_to_a_spawned_process(twins: TwinNamespaces) -> None:
    with PairedServiceBusClient(twins.primary.connection_string, twins.secondary.connection_string) as client:
        for one in (client, client.get_queue_sender("orders")):
            with pytest.raises(TypeError, match="make a client in each process"):
                pickle.dumps(one)


def test_child_that_ends_without_closing_does_not_hang(twins: TwinNamespaces) -> None:
    run(twins, SYNC.replace("    client.close()\n    client.close()\n", "    sys.exit(0)\n"))
