"""Outages on either side or here lose nothing, and the syphon recovers."""

from __future__ import annotations

import asyncio

import pytest
from tests.emulator.contract.bus import let_pass
from tests.namespace_internals import ignore_credit
from tests.syphon.bus import MOMENT, eventually
from tests.syphon.pumping import BACKLOG, Pair, bodies, counting, numbered

from twinbus.amqp.codec import sections
from twinbus.emulator import DEFAULT, Fault, FaultKind, FaultPoint
from twinbus.ledger import OperationKind
from twinbus.syphon import AmqpError, ConnectionLostError, LinkDetachedError
from twinbus.syphon.connector import Side
from twinbus.syphon.pacing import FIRST_WINDOW
from twinbus.syphon.settlement.ledger_gate import OnDurable

pytestmark = pytest.mark.slow

MANY = 3000


def all_of(count: int) -> set[bytes]:
    return set(bodies(range(count)))


async def test_outage_of_the_primary_loses_nothing(pair: Pair) -> None:
    await pair.put(numbered("orders", range(MANY)))
    async with pair.running() as host:
        await pair.until("orders", 200)
        faults = [pair.primary.faults.add(Fault(kind)) for kind in (FaultKind.REFUSE, FaultKind.RESET)]
        await eventually(lambda: not host.status().primary_connected)
        await eventually(lambda: pair.backlog.locked == 0)  # unsent messages are abandoned
        delivered = pair.backlog.activity.delivered
        await asyncio.sleep(5 * MOMENT)
        assert pair.backlog.activity.delivered == delivered  # and nothing is received meanwhile
        for fault in faults:
            pair.primary.faults.remove(fault.id)
        await eventually(lambda: pair.is_backlog_empty)
    assert set(await pair.arrived("orders")) == all_of(MANY)
    assert pair.rows(OperationKind.DEFER) == 0  # no destination failed


async def test_primary_that_breaks_every_transfer_is_tried_less_and_less_often(pair: Pair) -> None:
    await pair.put(numbered("orders", range(MANY)))
    broken = pair.primary.faults.add(Fault(FaultKind.RESET, on=frozenset({FaultPoint.SEND})))
    settles = counting(pair.secondary, BACKLOG, FaultPoint.SETTLE)
    began = asyncio.get_running_loop().time()
    async with pair.running(options={"retry_min": 0.1, "retry_max": 1.0}):
        await eventually(lambda: broken.fired == 2)
        assert pair.backlog.activity.delivered <= 2 * FIRST_WINDOW  # abandoned messages do not widen the window
        assert pair.rows(OperationKind.DEFER) == 0
        await eventually(lambda: broken.fired == 5)
        # The pauses were 0.1, 0.2, 0.4 and 0.8 seconds at least.
        assert asyncio.get_running_loop().time() - began > 1.5
        # After three in a row everything for the destination is deferred, once.
        await eventually(lambda: pair.backlog.counters.deferred == MANY)
        settled, tried = settles.fired, broken.fired
        await eventually(lambda: broken.fired >= tried + 2)
        assert settles.fired == settled  # nothing is received and abandoned any more
        pair.primary.faults.remove(broken.id)
        await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("orders") == bodies(range(MANY))


async def test_destination_that_breaks_the_connection_blocks_no_other(pair: Pair) -> None:
    broken = pair.primary.faults.add(Fault(FaultKind.RESET, "bills", frozenset({FaultPoint.SEND})))
    await pair.put(
        [message for number in range(100) for one in ("bills", "orders") for message in numbered(one, [number])]
    )
    async with pair.running():
        await eventually(lambda: pair.backlog.counters.deferred == 100 and pair.backlog.counters.active == 0)
        assert set(await pair.arrived("orders")) == all_of(100)
        pair.primary.faults.remove(broken.id)
        await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("bills") == bodies(range(100))


async def test_until_empty_gives_up_if_the_primary_breaks_every_transfer(pair: Pair) -> None:
    await pair.put(numbered("orders", range(5)))
    pair.primary.faults.add(Fault(FaultKind.RESET, on=frozenset({FaultPoint.SEND})))
    with pytest.raises(ConnectionLostError):
        await pair.drain()


async def test_outage_of_the_secondary_loses_and_duplicates_nothing(pair: Pair) -> None:
    await pair.put(numbered("orders", range(MANY)))
    async with pair.running() as host:
        await pair.until("orders", 200)
        faults = [pair.secondary.faults.add(Fault(kind)) for kind in (FaultKind.REFUSE, FaultKind.RESET)]
        await eventually(lambda: not host.status().secondary_connected)
        for fault in faults:
            pair.secondary.faults.remove(fault.id)
        await eventually(lambda: host.status().queues[0].is_receiving)
        while not pair.is_backlog_empty:
            await let_pass(pair.secondary, pair.clock, 61)  # for the locks of the lost link
            await asyncio.sleep(MOMENT)
    arrived = await pair.arrived("orders")
    assert set(arrived) == all_of(MANY)
    assert len(arrived) == MANY  # accepted messages are remembered, and only completed when they come again


async def test_detached_backlog_link_is_attached_again(pair: Pair) -> None:
    detached = pair.secondary.faults.add(Fault(FaultKind.DETACH, BACKLOG, frozenset({FaultPoint.RECEIVE}), count=1))
    await pair.put(numbered("orders", range(50)))
    async with pair.running():
        await eventually(lambda: detached.fired == 1)
        await pair.until("orders", 50)


async def test_syphon_started_before_the_namespaces_waits_for_them(pair: Pair) -> None:
    await pair.put(numbered("orders", range(5)))
    refused = [one.faults.add(Fault(FaultKind.REFUSE)) for one in (pair.primary, pair.secondary)]
    async with pair.running():
        await asyncio.sleep(3 * MOMENT)
        pair.secondary.faults.remove(refused[1].id)
        await asyncio.sleep(3 * MOMENT)
        pair.primary.faults.remove(refused[0].id)
        await pair.until("orders", 5)
        await eventually(lambda: pair.is_backlog_empty)


async def test_until_empty_gives_up_if_a_namespace_is_unreachable(pair: Pair) -> None:
    pair.primary.faults.add(Fault(FaultKind.REFUSE))
    with pytest.raises(ConnectionLostError):
        await pair.drain()


async def test_until_empty_gives_up_without_the_right_to_listen(pair: Pair) -> None:
    pair.secondary.faults.add(
        Fault(FaultKind.REJECT, BACKLOG, frozenset({FaultPoint.ATTACH}), condition="amqp:unauthorized-access")
    )
    with pytest.raises(LinkDetachedError, match="unauthorized"):
        await pair.drain()


async def test_wrong_key_is_not_shown_in_the_error(pair: Pair) -> None:
    text = pair.secondary.connection_string
    wrong = text.replace("SharedAccessKey=", "SharedAccessKey=wrong")
    host = pair.host()
    host._sides = host._sides[0], Side.from_connection_string(wrong)
    with pytest.raises(AmqpError) as caught:
        await host.drain()
    assert "wrong" not in str(caught.value)


async def test_slow_primary_within_a_third_of_the_lock_gets_no_duplicates() -> None:
    async with Pair(DEFAULT, lock_seconds=30) as pair:
        await pair.create("orders")
        await pair.put(numbered("orders", range(5)))
        pair.primary.faults.add(Fault(FaultKind.SLOW, "orders", frozenset({FaultPoint.SEND}), delay=5.0))
        async with pair.running():
            await eventually(lambda: pair.is_backlog_empty)
        assert pair.queue("orders").activity.received == 5
        assert pair.backlog.activity.delivered == 5


async def test_locks_of_messages_that_wait_for_the_ledger_are_renewed() -> None:
    async with Pair(DEFAULT, lock_seconds=10) as pair:
        await pair.create("orders")
        await pair.put(numbered("orders", range(5)))
        asked: list[OnDurable] = []
        async with pair.running(flush=asked.append):
            # A stalled ledger may still answer while the locks hold.
            await eventually(lambda: pair.rows(OperationKind.RENEW) >= 1)
            for answer in asked:
                answer(None)
            await eventually(lambda: pair.backlog.activity.completed >= 1)
        assert pair.queue("orders").activity.received == 5


async def test_only_locks_of_sent_messages_are_renewed_the_rest_is_abandoned() -> None:
    async with Pair(DEFAULT, lock_seconds=15) as pair:  # it abandons after a third, and renews after a half
        await pair.create("orders")
        await pair.put(numbered("orders", range(8)))
        busy = pair.primary.faults.add(Fault(FaultKind.THROTTLE, "orders", frozenset({FaultPoint.SEND})))
        async with pair.running(options={"retry_min": 1, "retry_max": 30}):
            await eventually(lambda: pair.rows(OperationKind.ABANDON) >= 8)
            assert pair.rows(OperationKind.RENEW) == 0
            pair.primary.faults.remove(busy.id)


async def test_two_syphons_at_once_are_safe(pair: Pair) -> None:
    await pair.put([message for number in range(1000) for message in numbered("orders", [number])])
    await pair.put(numbered("later", range(50)))
    await asyncio.gather(pair.drain(), pair.drain())
    arrived = await pair.arrived("orders")
    assert set(arrived) == all_of(1000)
    assert len(arrived) == 1000
    assert pair.backlog.counters.deferred == 50
    await pair.create("later")
    await asyncio.gather(pair.drain(), pair.drain())
    later = await pair.arrived("later")
    assert sorted(map(int, later)) == list(range(50))
    assert pair.is_backlog_empty


# ---- closing ----


async def test_closing_abandons_unsent_messages_and_leaves_nothing_behind(pair: Pair) -> None:
    await pair.put(numbered("orders", range(200)))
    before = asyncio.all_tasks()
    host = pair.host(options={"rate": 20})
    await host.start()
    await pair.until("orders", 3)
    async with asyncio.timeout(10):  # less than the timeout, because nothing delays it
        await host.close()
    assert asyncio.all_tasks() == before
    await eventually(lambda: not pair.primary.connections and not pair.secondary.connections)
    assert pair.backlog.locked == 0
    received = pair.queue("orders").activity.received
    assert pair.backlog.counters.active == 200 - received
    async with pair.running():
        await eventually(lambda: pair.is_backlog_empty)
    arrived = await pair.arrived("orders")
    assert arrived == bodies(range(200))


async def test_abandoned_messages_do_not_count_as_failed_deliveries(pair: Pair) -> None:
    await pair.put(numbered("orders", range(50)))
    async with pair.running(options={"rate": 5}):
        await pair.until("orders", 1)
    peeked = pair.backlog.peek(0, 1)[0]
    assert sections.list_fields(sections.split_sections(peeked.encoded()).header, 5)[4] == 0


async def test_closing_waits_for_messages_in_flight(pair: Pair) -> None:
    await pair.put(numbered("orders", range(5)))
    slow = pair.primary.faults.add(Fault(FaultKind.SLOW, "orders", frozenset({FaultPoint.SEND}), delay=1.0))
    host = pair.host()
    await host.start()
    await eventually(lambda: slow.fired == 5)
    await host.close()
    assert pair.is_backlog_empty
    assert pair.queue("orders").activity.received == 5


async def test_closing_is_bounded_while_everything_hangs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.syphon.pump.CLOSE_TIMEOUT", 0.5)
    await pair.put(numbered("orders", range(5)))
    silence = pair.primary.faults.add(Fault(FaultKind.BLACKHOLE, "orders", frozenset({FaultPoint.SEND})))
    host = pair.host()
    await host.start()
    await eventually(lambda: silence.fired == 5)
    async with asyncio.timeout(10):
        await host.close()


async def test_syphon_can_be_closed_while_it_cannot_connect(pair: Pair) -> None:
    pair.primary.faults.add(Fault(FaultKind.BLACKHOLE))
    host = pair.host()
    await host.start()
    await asyncio.sleep(MOMENT)
    async with asyncio.timeout(10):
        await host.close()
    await eventually(lambda: not pair.secondary.connections)


# ---- links that say nothing ----


async def test_silent_link_is_probed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.syphon.receiving.intake.IDLE_SECONDS", 0.2)
    async with pair.running() as host:
        await eventually(lambda: host.status().queues[0].is_receiving)
        receiver = host._pumps[0].intake.receiver  # type: ignore[union-attr]
        heard = receiver.last_activity
        await eventually(lambda: receiver.last_activity > heard + 0.5)  # it was probed and answered
        assert host._pumps[0].intake.receiver is receiver  # type: ignore[union-attr]


async def test_link_that_does_not_answer_a_probe_is_replaced(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.syphon.receiving.intake.IDLE_SECONDS", 0.2)
    monkeypatch.setattr("twinbus.syphon.receiving.intake.PROBE_TIMEOUT", 0.2)
    ignore_credit(monkeypatch)
    async with pair.running() as host:
        await eventually(lambda: host.status().queues[0].is_receiving)
        receiver = host._pumps[0].intake.receiver  # type: ignore[union-attr]
        await eventually(lambda: receiver.error is not None)
        monkeypatch.undo()
        await pair.put(numbered("orders", range(3)))
        await pair.until("orders", 3)


async def test_poll_only_renews_the_credit(pair: Pair) -> None:
    requests = counting(pair.secondary, BACKLOG, FaultPoint.MANAGEMENT, FaultPoint.ATTACH)
    async with pair.running(options={"poll": 0.2}):
        await eventually(lambda: pair.rows(OperationKind.POLL) >= 1)
        before = requests.fired
        await eventually(lambda: pair.rows(OperationKind.POLL) >= 5)
        assert requests.fired == before
