"""A destination that is down blocks no other, costs few operations, and gets its messages in order."""

from __future__ import annotations

import asyncio

import pytest
from tests.syphon.bus import MOMENT, connect, eventually, sequence_number
from tests.syphon.pumping import BACKLOG, Pair, bodies, counting, numbered

from twinbus.emulator import DEFAULT, Fault, FaultKind, FaultPoint
from twinbus.ledger import OperationKind
from twinbus.syphon import Settlement

pytestmark = pytest.mark.slow

ON_SEND = frozenset({FaultPoint.SEND})
MANY = 120


def mixed(count: int) -> list[bytes]:
    return [message for number in range(count) for path in ("orders", "bills") for message in numbered(path, [number])]


FAULTS: dict[str, Fault] = {
    "disabled": Fault(FaultKind.DISABLE, "bills"),
    "full": Fault(FaultKind.FILL, "bills"),
    "failing": Fault(FaultKind.REJECT, "bills", ON_SEND, condition="amqp:internal-error"),
    "detaching": Fault(FaultKind.DETACH, "bills", ON_SEND),
    "unattachable": Fault(FaultKind.REJECT, "bills", frozenset({FaultPoint.ATTACH}), condition="amqp:internal-error"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_other_destinations_drain_and_the_recovered_one_follows_in_order(pair: Pair, fault: Fault) -> None:
    await pair.put(mixed(MANY))
    down = pair.primary.faults.add(fault)
    async with pair.running():
        await pair.until("orders", MANY)
        await eventually(lambda: pair.backlog.counters.deferred == MANY and pair.backlog.counters.active == 0)
        assert await pair.arrived("orders") == bodies(range(MANY))
        await pair.put(numbered("bills", range(MANY, MANY + 10)))  # behind the waiting ones
        await eventually(lambda: pair.backlog.counters.deferred == MANY + 10)
        pair.primary.faults.remove(down.id)
        await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("bills") == bodies(range(MANY + 10))


async def test_messages_wait_for_a_destination_that_does_not_exist_yet(pair: Pair) -> None:
    await pair.put(numbered("later", range(50)))
    async with pair.running() as host:
        await eventually(lambda: pair.backlog.counters.deferred == 50)
        assert host.status().down == ("later",)
        await pair.create("later")
        await pair.until("later", 50)
        await eventually(lambda: pair.is_backlog_empty)
        assert host.status().down == ()
    assert await pair.arrived("later") == bodies(range(50))


async def test_destination_that_is_down_costs_a_bounded_number_of_operations(pair: Pair) -> None:
    settles = counting(pair.secondary, BACKLOG, FaultPoint.SETTLE)
    requests = counting(pair.secondary, BACKLOG, FaultPoint.MANAGEMENT)
    await pair.put(mixed(MANY))
    pair.primary.faults.add(FAULTS["failing"])
    sends = counting(pair.primary, "bills", FaultPoint.SEND)
    async with pair.running():
        await eventually(lambda: pair.backlog.counters.deferred == MANY and pair.backlog.counters.active == 0)
        assert pair.backlog.activity.delivered == 2 * MANY  # each message was received once
        assert settles.fired == 2 * MANY  # and completed or deferred once
        sent, asked, at = sends.fired, requests.fired, asyncio.get_running_loop().time()
        await eventually(lambda: sends.fired >= sent + 4)
        seconds = asyncio.get_running_loop().time() - at
    # A probe is a fetch, a send and an abandon; probes are `retry_max` apart, 0.4 s here.
    tries = sends.fired - sent
    assert tries <= seconds / 0.4 + 3
    assert requests.fired - asked <= 2 * tries + 2
    assert settles.fired == 2 * MANY
    assert pair.rows(OperationKind.DEFER) == MANY


async def test_destination_that_refuses_links_costs_no_message_operations(pair: Pair) -> None:
    await pair.put(numbered("nowhere", range(20)))
    attaching = counting(pair.primary, "orders", FaultPoint.ATTACH)
    requests = counting(pair.secondary, BACKLOG, FaultPoint.MANAGEMENT)
    async with pair.running() as host:
        await eventually(lambda: pair.backlog.counters.deferred == 20)
        asked = requests.fired
        await asyncio.sleep(1.0)
        assert requests.fired == asked
        assert host.status().down == ("nowhere",)
    assert attaching.fired == 0
    assert pair.rows(OperationKind.SEND) == 0


async def test_until_empty_ends_and_reports_deferred_messages(pair: Pair) -> None:
    await pair.put(mixed(30))
    down = pair.primary.faults.add(FAULTS["disabled"])
    report = await pair.drain()
    assert report.destinations["orders"].moved == 30
    assert report.destinations["bills"].deferred == 30
    assert not report.is_empty
    pair.primary.faults.remove(down.id)
    report = await pair.drain()
    assert report.is_empty
    assert await pair.arrived("bills") == bodies(range(30))


async def test_restarted_syphon_finds_deferred_messages_and_keeps_their_order(pair: Pair) -> None:
    await pair.put(numbered("bills", range(40)))
    down = pair.primary.faults.add(FAULTS["full"])
    async with pair.running():
        await eventually(lambda: pair.backlog.counters.deferred == 40)
    pair.primary.faults.remove(down.id)
    await pair.put(numbered("bills", range(40, 80)))  # still active, and must not overtake the others
    async with pair.running():
        await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("bills") == bodies(range(80))


async def test_link_ended_by_the_service_does_not_open_the_circuit(pair: Pair) -> None:
    detaches = pair.primary.faults.add(Fault(FaultKind.DETACH, "orders", ON_SEND, count=1))
    await pair.put(numbered("orders", range(30)))
    report = await pair.drain()
    assert detaches.fired == 1
    assert report.total.moved == 30
    assert pair.rows(OperationKind.DEFER) == 0


async def test_deferred_messages_locked_by_another_client_are_waited_for(pair: Pair) -> None:
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
            assert pair.queue("bills").activity.received == 0  # that would break the order
            await management.settle([one.lock_token for one in locked], Settlement.COMPLETED)
            await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("bills") == bodies(range(2, 6))


async def test_many_destinations_share_a_bounded_number_of_links(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.syphon.delivery.destinations.MAX_LINKS", 5)
    paths = [f"queue-{number}" for number in range(30)]
    await pair.create(*paths)
    await pair.put([message for number in range(10) for path in paths for message in numbered(path, [number])])
    async with pair.running():
        await eventually(lambda: pair.is_backlog_empty)
        await eventually(lambda: len(pair.primary.entity_links()) <= 5)
    for path in paths:
        assert sorted(map(int, await pair.arrived(path))) == list(range(10))


async def test_one_of_twenty_destinations_stays_down() -> None:
    async with Pair(DEFAULT) as pair:
        paths = [f"queue-{number}" for number in range(19)]
        await pair.create(*paths)
        everybody = [*paths, "gone"]
        await pair.put([message for number in range(30) for path in everybody for message in numbered(path, [number])])
        report = await pair.drain()
        assert {path: tally.moved for path, tally in report.destinations.items() if path != "gone"} == dict.fromkeys(
            paths, 30
        )
        assert report.destinations["gone"].deferred == 30
        assert pair.backlog.activity.delivered == 20 * 30


# ---- held back by order ----


async def test_held_back_destination_gets_nothing_and_the_others_go_on(pair: Pair) -> None:
    await pair.put(mixed(MANY))
    host = pair.host()
    host.hold_back("Bills")  # in any spelling, and before the start
    sends = counting(pair.primary, "bills", FaultPoint.SEND, FaultPoint.ATTACH)
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


async def test_holding_back_a_destination_midway_keeps_its_order(pair: Pair) -> None:
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
        host.hold_back("bills")  # while messages are being fetched
        await eventually(lambda: pair.backlog.locked == 0)  # messages in flight have arrived or were abandoned
        arrived = pair.queue("bills").activity.received
        await asyncio.sleep(MOMENT)
        assert pair.queue("bills").activity.received == arrived < MANY
        host.let_go("bills")
        await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("bills") == bodies(range(MANY))
