"""A destination that is down holds nobody up, costs a bounded number of operations, and gets its messages in order."""

from __future__ import annotations

import asyncio

import pytest
from tests.syphon.bus import MOMENT, connect, eventually, sequence_number
from tests.syphon.pumping import BACKLOG, Pair, bodies, counting, numbered

from twinbus.broker import DEFAULT, Fault, Kind, Operation
from twinbus.ledger import OperationKind
from twinbus.syphon import Settlement

pytestmark = pytest.mark.slow

ON_SEND = frozenset({Operation.SEND})
MANY = 120


def mixed(count: int) -> list[bytes]:
    return [message for number in range(count) for path in ("orders", "bills") for message in numbered(path, [number])]


FAULTS: dict[str, Fault] = {
    "disabled": Fault(Kind.DISABLE, "bills"),
    "full": Fault(Kind.FILL, "bills"),
    "failing": Fault(Kind.REJECT, "bills", ON_SEND, condition="amqp:internal-error"),
    "detaching": Fault(Kind.DETACH, "bills", ON_SEND),
    "unattachable": Fault(Kind.REJECT, "bills", frozenset({Operation.ATTACH}), condition="amqp:internal-error"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_the_others_drain_and_the_one_that_is_down_follows_when_it_is_back_in_order(
    pair: Pair, fault: Fault
) -> None:
    await pair.put(mixed(MANY))
    down = pair.primary.faults.add(fault)
    async with pair.running():
        await pair.until("orders", MANY)
        await eventually(lambda: pair.backlog.counters.deferred == MANY and pair.backlog.counters.active == 0)
        assert await pair.arrived("orders") == bodies(range(MANY))
        await pair.put(numbered("bills", range(MANY, MANY + 10)))  # comes after those that wait
        await eventually(lambda: pair.backlog.counters.deferred == MANY + 10)
        pair.primary.faults.remove(down.id)
        await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("bills") == bodies(range(MANY + 10))


async def test_a_destination_that_does_not_exist_is_waited_for(pair: Pair) -> None:
    await pair.put(numbered("later", range(50)))
    async with pair.running() as host:
        await eventually(lambda: pair.backlog.counters.deferred == 50)
        assert host.status().down == ("later",)
        await pair.create("later")
        await pair.until("later", 50)
        await eventually(lambda: pair.is_backlog_empty)
        assert host.status().down == ()
    assert await pair.arrived("later") == bodies(range(50))


async def test_a_destination_that_is_down_costs_a_bounded_number_of_operations(pair: Pair) -> None:
    settles = counting(pair.secondary, BACKLOG, Operation.SETTLE)
    requests = counting(pair.secondary, BACKLOG, Operation.MANAGEMENT)
    await pair.put(mixed(MANY))
    pair.primary.faults.add(FAULTS["failing"])
    sends = counting(pair.primary, "bills", Operation.SEND)
    async with pair.running():
        await eventually(lambda: pair.backlog.counters.deferred == MANY and pair.backlog.counters.active == 0)
        assert pair.backlog.activity.delivered == 2 * MANY  # each message was received once
        assert settles.fired == 2 * MANY  # and completed or deferred once
        sent, asked, at = sends.fired, requests.fired, asyncio.get_running_loop().time()
        await eventually(lambda: sends.fired >= sent + 4)
        seconds = asyncio.get_running_loop().time() - at
    # A try is a fetch, a send and a giving back; they are `retry_max` apart, 0.4 s here.
    tries = sends.fired - sent
    assert tries <= seconds / 0.4 + 3
    assert requests.fired - asked <= 2 * tries + 2
    assert settles.fired == 2 * MANY
    assert pair.rows(OperationKind.DEFER) == MANY


async def test_a_destination_that_cannot_be_attached_to_costs_no_message_operation_at_all(pair: Pair) -> None:
    await pair.put(numbered("nowhere", range(20)))
    attaching = counting(pair.primary, "orders", Operation.ATTACH)
    requests = counting(pair.secondary, BACKLOG, Operation.MANAGEMENT)
    async with pair.running() as host:
        await eventually(lambda: pair.backlog.counters.deferred == 20)
        asked = requests.fired
        await asyncio.sleep(1.0)
        assert requests.fired == asked
        assert host.status().down == ("nowhere",)
    assert attaching.fired == 0
    assert pair.rows(OperationKind.SEND) == 0


async def test_until_empty_ends_and_says_what_is_parked(pair: Pair) -> None:
    await pair.put(mixed(30))
    down = pair.primary.faults.add(FAULTS["disabled"])
    report = await pair.drain()
    assert report.destinations["orders"].moved == 30
    assert report.destinations["bills"].parked == 30
    assert not report.is_empty
    pair.primary.faults.remove(down.id)
    report = await pair.drain()
    assert report.is_empty
    assert await pair.arrived("bills") == bodies(range(30))


async def test_a_restarted_syphon_finds_what_was_set_aside_and_keeps_its_order(pair: Pair) -> None:
    await pair.put(numbered("bills", range(40)))
    down = pair.primary.faults.add(FAULTS["full"])
    async with pair.running():
        await eventually(lambda: pair.backlog.counters.deferred == 40)
    pair.primary.faults.remove(down.id)
    await pair.put(numbered("bills", range(40, 80)))  # still active: must not overtake the others
    async with pair.running():
        await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("bills") == bodies(range(80))


async def test_a_link_that_the_service_ends_says_nothing_about_the_destination(pair: Pair) -> None:
    detaches = pair.primary.faults.add(Fault(Kind.DETACH, "orders", ON_SEND, count=1))
    await pair.put(numbered("orders", range(30)))
    report = await pair.drain()
    assert detaches.fired == 1
    assert report.total.moved == 30
    assert pair.rows(OperationKind.DEFER) == 0


async def test_messages_that_somebody_else_has_fetched_are_waited_for(pair: Pair) -> None:
    await pair.put(numbered("bills", range(6)))
    down = pair.primary.faults.add(FAULTS["full"])
    async with pair.running():
        await eventually(lambda: pair.backlog.counters.deferred == 6)
    pair.primary.faults.remove(down.id)
    async with connect(pair.secondary) as connection:
        management = await connection.management(BACKLOG)
        numbers = [sequence_number(payload) for payload in await management.peek_messages(0, 10)]
        locked = await management.receive_deferred(numbers[:2])
        async with pair.running():
            await asyncio.sleep(10 * MOMENT)
            assert pair.queue("bills").activity.received == 0  # the order would be lost
            await management.settle([one.lock_token for one in locked], Settlement.COMPLETED)
            await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("bills") == bodies(range(2, 6))


async def test_many_destinations_share_a_bounded_number_of_links(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.syphon.destinations.MAX_LINKS", 5)
    paths = [f"queue-{number}" for number in range(30)]
    await pair.create(*paths)
    await pair.put([message for number in range(10) for path in paths for message in numbered(path, [number])])
    async with pair.running():
        await eventually(lambda: pair.is_backlog_empty)
        await eventually(lambda: len(pair.primary.entity_links()) <= 5)
    for path in paths:
        assert sorted(map(int, await pair.arrived(path))) == list(range(10))


async def test_twenty_destinations_and_one_is_down_for_good() -> None:
    async with Pair(DEFAULT) as pair:
        paths = [f"queue-{number}" for number in range(19)]
        await pair.create(*paths)
        everybody = [*paths, "gone"]
        await pair.put([message for number in range(30) for path in everybody for message in numbered(path, [number])])
        report = await pair.drain()
        assert {path: tally.moved for path, tally in report.destinations.items() if path != "gone"} == dict.fromkeys(
            paths, 30
        )
        assert report.destinations["gone"].parked == 30
        assert pair.backlog.activity.delivered == 20 * 30


# ---- held back by order ----


async def test_a_destination_that_is_held_back_gets_nothing_and_the_others_go_on(pair: Pair) -> None:
    await pair.put(mixed(MANY))
    host = pair.host()
    host.hold_back("Bills")  # however it is spelt, and before anything runs
    sends = counting(pair.primary, "bills", Operation.SEND, Operation.ATTACH)
    await host.start()
    try:
        await pair.until("orders", MANY)
        await eventually(lambda: pair.backlog.counters.deferred == MANY and pair.backlog.counters.active == 0)
        assert (host.status().held_back, host.status().down) == (("bills",), ())
        await asyncio.sleep(MOMENT)
        assert sends.fired == 0
        assert pair.backlog.activity.delivered == 2 * MANY  # each was received once
        host.let_go("bills")
        await eventually(lambda: pair.is_backlog_empty)
        assert host.status().held_back == ()
    finally:
        await host.close()
    assert await pair.arrived("bills") == bodies(range(MANY))


async def test_a_destination_can_be_held_back_in_the_middle_and_its_order_is_kept(pair: Pair) -> None:
    await pair.put(numbered("bills", range(MANY)))
    async with pair.running(options={"rate": 100}) as host:
        await pair.until("bills", 10)
        host.hold_back("bills")
        await eventually(lambda: pair.backlog.counters.active == 0)
        arrived = pair.queue("bills").activity.received
        assert pair.backlog.counters.deferred == MANY - arrived > 0
        await asyncio.sleep(MOMENT)
        assert pair.queue("bills").activity.received == arrived
        host.let_go("bills")
        await pair.until("bills", arrived + 5)
        host.hold_back("bills")  # while they are being fetched, too
        await eventually(lambda: pair.backlog.locked == 0)  # what was under way has arrived or was given back
        arrived = pair.queue("bills").activity.received
        await asyncio.sleep(MOMENT)
        assert pair.queue("bills").activity.received == arrived < MANY
        host.let_go("bills")
        await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("bills") == bodies(range(MANY))
