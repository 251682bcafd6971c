"""From a real outage to the verdict: what reconciliation says is what the brokers themselves have counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from tests.namespace_internals import Queue
from tests.pairing.twins import Twins, eventually
from tests.pipeline.reconciling import Reconciled, run

from twinbus import EntityState, Route, SendAvailabilityOptions, SyphonOptions
from twinbus.aio import PairedServiceBusClient, RecordedReceiver, record_receives
from twinbus.emulator import AZURE
from twinbus.ledger.writer import LedgerWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

BEFORE, DURING, AFTER = 20, 30, 10
ALL = BEFORE + DURING + AFTER


class Counts:
    """What the brokers have counted: what each place accepted and what was completed there."""

    def __init__(self, twins: Twins, orders: Queue, topic: Queue, subscription: Queue, unread: Queue) -> None:
        self.orders = orders.activity.received, orders.activity.completed
        self.events = topic.activity.received, subscription.activity.completed
        self.unread = unread.activity.received, unread.counters.active
        backlog = [twins.backlog(index) for index in range(2)]
        self.diverted = sum(queue.activity.received for queue in backlog)
        self.moved = sum(queue.activity.completed for queue in backlog)
        self.left = sum(queue.counters.active for queue in backlog)


FAILED_OVER = EntityState.FAILED_OVER


async def send(client: PairedServiceBusClient, names: range, route: Route) -> None:
    """A message of each number to the queue, the topic, and a queue without receivers."""
    for path in ("orders", "events", "unread"):
        async with client.get_queue_sender(path) as sender:
            for number in names:
                receipt = await sender.send_messages(ServiceBusMessage("x" * 100, message_id=f"{path}-{number}"))
                assert receipt.route is route


async def receive(receiver: RecordedReceiver, count: int) -> None:
    async with receiver:
        while count:
            for message in await receiver.receive_messages(count, max_wait_time=10):
                await receiver.complete_message(message)
                count -= 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Path, Counts]]:
    """A ledger of an outage, and what the brokers say."""
    folder = tmp_path_factory.mktemp("outage") / "ledger"
    async with Twins.running(AZURE) as twins:
        orders, unread = await twins.queue("orders"), await twins.queue("unread")
        topic, subscription = await twins.topic("events")
        options = SendAvailabilityOptions(
            backlog_queue_count=2,
            failover_interval=0,
            ping_primary_interval=1,
            primary_name="contoso",
            enable_syphon=True,
            syphon=SyphonOptions(retry_min=0.1),
        )
        with LedgerWriter(folder) as ledger:
            async with PairedServiceBusClient(*twins.sides(), options, recorder=ledger) as client:
                await send(client, range(BEFORE), Route.PRIMARY)
                twins.primary_down()
                await send(client, range(BEFORE, BEFORE + DURING), Route.BACKLOG)
                twins.primary_up()
                await eventually(lambda: sum(twins.backlog(at).activity.completed for at in range(2)) == 3 * DURING)
                # The syphon may be faster than the pings.
                await eventually(lambda: all(one.state is not FAILED_OVER for one in client.status().entities))
                await send(client, range(BEFORE + DURING, ALL), Route.PRIMARY)
            # A consumer that knows nothing of pairing.
            async with ServiceBusClient.from_connection_string(twins.primary.connection_string) as plain:
                await receive(record_receives(plain.get_queue_receiver("orders"), ledger), ALL)
                await receive(record_receives(plain.get_subscription_receiver("events", "all"), ledger), ALL)
        yield folder, Counts(twins, orders, topic, subscription, unread)


@pytest.fixture(scope="module")
def found(spark: SparkSession, outage: tuple[Path, Counts]) -> Reconciled:
    return run(spark, outage[0], drained=True)


def test_nothing_is_lost_and_all_figures_are_those_of_the_brokers(
    outage: tuple[Path, Counts], found: Reconciled
) -> None:
    counts = outage[1]
    assert (counts.diverted, counts.moved, counts.left) == (3 * DURING, 3 * DURING, 0)
    assert counts.orders == counts.events == (ALL, ALL)
    assert counts.unread == (ALL, ALL)
    all_is_well = {"attempted": ALL, "acknowledged": ALL, "ok": ALL}
    assert found.words("orders") == found.words("events") == found.words("unread") == all_is_well
    assert [found.count(word) for word in ("lost", "unexpected", "duplicated", "in_flight")] == [0, 0, 0, 0]
    assert (found.count("attempted"), found.rows) == (3 * ALL, [])


def test_it_is_told_whose_word_was_taken(outage: tuple[Path, Counts], found: Reconciled) -> None:
    evidence = {one["destination"]: one["evidence"] for one in found.verdicts}
    assert evidence == {"orders": "receivers", "events": "receivers", "unread": "namespace"}
    assert found.at_subscriptions("events") == {"events/Subscriptions/all": outage[1].events[1]}
