"""The syphon moves messages to their destinations and dead-letters what it cannot move."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest
from tests.emulator.contract.bus import let_pass
from tests.syphon.bus import MOMENT, eventually
from tests.syphon.pumping import BACKLOG, Pair, bodies, counting, envelope, numbered, take_all

from twinbus.amqp.codec import sections
from twinbus.emulator import AZURE, DEFAULT, Fault, FaultKind, FaultPoint, Namespace, NamespaceConfig, QueueDescription
from twinbus.ledger import OperationKind
from twinbus.pairing.events import EventBus, Moved

pytestmark = pytest.mark.slow

ON_SEND = frozenset({FaultPoint.SEND})
ON_SETTLE = frozenset({FaultPoint.SETTLE})


async def test_all_backlog_messages_arrive_and_none_is_left(pair: Pair) -> None:
    await pair.create_topic("news")
    everything = [
        message
        for number in range(700)
        for message in (*numbered("orders", [number]), *numbered("bills", [number]), *numbered("news", [number]))
    ]
    await pair.put(everything)
    report = await pair.drain()
    assert await pair.arrived("orders") == bodies(range(700))
    assert await pair.arrived("bills") == bodies(range(700))
    assert pair.queue("news").activity.received == 700
    assert pair.is_backlog_empty
    assert {path: tally.moved for path, tally in report.destinations.items()} == {
        "orders": 700,
        "bills": 700,
        "news": 700,
    }
    assert report.is_empty


async def test_an_empty_backlog_is_drained_at_once(pair: Pair) -> None:
    report = await pair.drain()
    assert report.is_empty
    assert report.total.moved == 0


async def test_session_id_is_restored(pair: Pair) -> None:
    await pair.create("sessions", requires_session=True)
    await pair.put(numbered("sessions", range(5), session="s"))
    assert (await pair.drain()).total.moved == 5
    assert pair.queue("sessions").counters.active == 5


async def test_message_of_many_frames_is_moved_among_small_ones(pair: Pair) -> None:
    large = b"y" * 200_000
    await pair.put([*numbered("orders", range(20)), envelope("orders", large), *numbered("orders", range(20, 40))])
    assert (await pair.drain()).total.moved == 41
    arrived = await pair.arrived("orders")
    assert sorted(arrived, key=len)[-1] == large


async def test_two_spellings_of_a_path_are_one_destination(pair: Pair) -> None:
    await pair.put([*numbered("Orders", range(3)), *numbered("orders", range(3, 6))])
    report = await pair.drain()
    assert [tally.moved for tally in report.destinations.values()] == [6]


async def test_a_message_is_completed_only_after_the_primary_has_accepted_it(pair: Pair) -> None:
    await pair.put(numbered("orders", range(20)))
    silence = pair.primary.faults.add(Fault(FaultKind.BLACKHOLE, "orders", ON_SEND))
    settled = counting(pair.secondary, BACKLOG, FaultPoint.SETTLE)
    async with pair.running():
        await eventually(lambda: silence.fired == 10)  # the first window
        await asyncio.sleep(MOMENT)
        assert settled.fired == 0
        assert pair.backlog.counters.active == 20
        pair.primary.faults.remove(silence.id)
        await eventually(lambda: pair.is_backlog_empty)
    assert await pair.arrived("orders") == bodies(range(20))


async def test_accepted_message_is_not_sent_again_if_completing_it_fails(pair: Pair) -> None:
    await pair.put(numbered("orders", range(10)))
    pair.secondary.faults.add(Fault(FaultKind.REJECT, BACKLOG, ON_SETTLE, count=4))
    async with pair.running():
        await pair.until("orders", 10)
        await eventually(lambda: pair.rows(OperationKind.COMPLETE) == 10)
        await let_pass(pair.secondary, pair.clock, 61)  # the locks expire, and the four messages come again
        await eventually(lambda: pair.is_backlog_empty)
    assert pair.queue("orders").activity.received == 10


# ---- what cannot be moved ----


async def test_an_expired_message_is_dead_lettered_with_a_reason(pair: Pair) -> None:
    await pair.put([*numbered("orders", [1], seconds=30), *numbered("orders", [2], seconds=3000)])
    await let_pass(pair.secondary, pair.clock, 31)
    report = await pair.drain()
    assert report.destinations["orders"].expired == 1
    assert await pair.arrived("orders") == [b"2"]
    (dead,) = await pair.dead_letters()
    assert dead["DeadLetterReason"] == "ExpiredInBacklog"
    assert "where it had been since 20" in dead["DeadLetterErrorDescription"]
    assert report.is_empty


async def test_nothing_expires_with_ttl_restart(pair: Pair) -> None:
    await pair.put(numbered("orders", [1], seconds=30))
    await let_pass(pair.secondary, pair.clock, 31)
    report = await pair.drain(ttl="restart")
    assert report.destinations["orders"].moved == 1


@pytest.mark.parametrize(("path", "reason"), [(None, "NoEnvelope"), ("", "MalformedEnvelope")])
async def test_message_without_a_valid_envelope_is_dead_lettered_and_blocks_nothing(
    pair: Pair, path: str | None, reason: str
) -> None:
    await pair.put([*numbered("orders", [1]), envelope(path), *numbered("orders", [2])])
    report = await pair.drain()
    assert (report.malformed, report.total.moved) == (1, 2)
    (dead,) = await pair.dead_letters()
    assert dead["DeadLetterReason"] == reason


async def test_message_for_a_backlog_queue_is_dead_lettered(pair: Pair) -> None:
    await pair.create(BACKLOG)
    await pair.put([*numbered("Contoso/X-ServiceBus-Transfer/3", [1]), *numbered(BACKLOG, [2])])
    report = await pair.drain()
    assert report.total.poison == 2
    assert pair.queue(BACKLOG).activity.received == 0
    assert {dead["DeadLetterReason"] for dead in await pair.dead_letters()} == {"DestinationIsBacklogQueue"}


async def test_refused_message_is_dead_lettered_after_poison_tries(pair: Pair) -> None:
    await pair.create("sessions", requires_session=True)
    # A queue with sessions refuses messages without a session id.
    await pair.put([*numbered("sessions", [1]), *numbered("sessions", [2], session="s"), *numbered("orders", [3])])
    sends = counting(pair.primary, "sessions", FaultPoint.SEND)
    report = await pair.drain(options={"poison_tries": 4})
    assert (report.destinations["sessions"].poison, report.total.moved) == (1, 2)
    assert sends.fired == 5  # one four times, the other once
    (dead,) = await pair.dead_letters()
    assert dead["DeadLetterReason"] == "RefusedByDestination"
    assert dead["DeadLetterErrorDescription"].startswith("sessions refused it 4 times: ")


async def test_one_refused_message_does_not_fail_its_neighbours(pair: Pair) -> None:
    pair.primary.faults.add(Fault(FaultKind.REJECT, "orders", ON_SEND, count=1, condition="x:not-this-one"))
    await pair.put(numbered("orders", range(50)))
    assert (await pair.drain()).total.moved == 50
    assert sorted(map(int, await pair.arrived("orders"))) == list(range(50))


async def test_a_message_too_large_for_its_destination_is_dead_lettered_at_once() -> None:
    async with Pair(DEFAULT) as pair:
        await pair.primary.close()
        pair.primary = Namespace(NamespaceConfig("contoso", port=0, max_message_size=50_000))
        await pair.primary.start()
        await pair.create("orders")
        await pair.put([envelope("orders", b"x" * 60_000), *numbered("orders", [1])])
        report = await pair.drain()
        assert (report.total.poison, report.total.moved) == (1, 1)


# ---- the allow-list ----


async def test_messages_for_excluded_destinations_are_deferred_for_another_syphon(pair: Pair) -> None:
    await pair.put([message for number in range(10) for message in numbered("orders", [number])])
    await pair.put(numbered("bills", range(10)))
    deliveries = pair.backlog.activity
    report = await pair.drain(options={"destinations": ["Orders"]})
    assert await pair.arrived("orders") == bodies(range(10))
    assert pair.queue("bills").activity.received == 0
    assert report.destinations["bills"].deferred == 10
    assert not report.is_empty
    assert deliveries.delivered == 20  # each once: nothing loops
    report = await pair.drain()
    assert await pair.arrived("bills") == bodies(range(10))
    assert report.is_empty


# ---- telling ----


async def test_each_billed_operation_has_a_row(pair: Pair) -> None:
    await pair.put(numbered("orders", range(30)))
    settles = counting(pair.secondary, BACKLOG, FaultPoint.SETTLE)
    requests = counting(pair.secondary, BACKLOG, FaultPoint.MANAGEMENT)
    await pair.drain()
    assert pair.rows(OperationKind.RECEIVE) == pair.backlog.activity.delivered == 30
    assert pair.rows(OperationKind.SEND) == pair.queue("orders").activity.received == 30
    assert pair.rows(OperationKind.COMPLETE) == settles.fired == 30
    assert pair.rows(OperationKind.PEEK) == requests.fired
    assert len(pair.recorder.operations) == 90 + requests.fired
    sent = [row for row in pair.recorder.operations if row.operation is OperationKind.SEND]
    assert [row.message_id for row in sent] == [f"orders-{number}" for number in range(30)]
    assert {(row.entity, row.destination, row.backlog_queue, row.attempt) for row in sent} == {
        ("orders", "orders", BACKLOG, 1)
    }
    assert all(row.sequence_number and row.bytes and row.latency_us is not None for row in sent)


async def test_moved_events_are_grouped(pair: Pair) -> None:
    events, seen = EventBus(), []
    events.subscribe(seen.append)
    await pair.put(numbered("orders", range(300)))
    await pair.drain(events=events)
    assert sum(event.count for event in seen if isinstance(event, Moved)) == 300
    assert {(event.entity, event.queue) for event in seen if isinstance(event, Moved)} == {("orders", BACKLOG)}
    assert len(seen) < 30


async def test_empty_poll_is_one_operation(pair: Pair) -> None:
    async with pair.running(options={"poll": 0.3}):
        await eventually(lambda: pair.rows(OperationKind.POLL) == 3)
        await pair.put(numbered("orders", [1]))
        await pair.until("orders", 1)
        await eventually(lambda: pair.rows(OperationKind.POLL) == 5)
    polls = [row for row in pair.recorder.operations if row.operation is OperationKind.POLL]
    assert {(row.outcome.name, row.stage.name, row.entity) for row in polls} == {("EMPTY", "POLL", BACKLOG)}
    gaps = [(later.ts - earlier.ts) / 1e6 for earlier, later in itertools.pairwise(polls)]
    assert min(gaps) >= 0.29


# ---- how fast ----


async def test_rate_limit_is_kept(pair: Pair) -> None:
    await pair.put(numbered("orders", range(60)))
    report = await pair.drain(options={"rate": 40})
    assert report.total.moved == 60
    payloads = await take_all(pair.primary, "orders")
    times = [_enqueued(payload) for payload in payloads]
    # A burst of a tenth of a second's worth is allowed.
    assert times[-1] - times[0] >= (60 - 5) / 40 * 1000


def _enqueued(payload: bytes) -> int:
    section = sections.split_sections(payload).message_annotations
    return int({name: sections.entry_value(raw) for name, raw in sections.map_entries(section)}["x-opt-enqueued-time"])


async def test_throttled_namespace_gets_a_pause_and_everything_arrives() -> None:
    async with Pair(DEFAULT) as pair:
        await pair.primary.close()
        pair.primary = Namespace("contoso", profile=replace(AZURE, throttle=200))
        await pair.primary.start()
        await pair.create("orders")
        await pair.put(numbered("orders", range(700)))
        sends = counting(pair.primary, "orders", FaultPoint.SEND)
        report = await pair.drain(options={"retry_min": 0.2})
        assert report.total.moved == 700
        assert report.total.deferred == 0
        assert pair.queue("orders").activity.received == 700
        assert sends.fired < 1400  # refusals are billed, too


async def test_a_queue_that_does_not_exist_is_reported_as_missing(pair: Pair) -> None:
    await pair.secondary.create(QueueDescription("contoso/x-servicebus-transfer/1"))
    missing = "contoso/x-servicebus-transfer/2"
    await pair.put(numbered("orders", [1]))
    report = await pair.drain(queues=(BACKLOG, "contoso/x-servicebus-transfer/1", missing))
    assert report.missing == (missing,)
    assert report.total.moved == 1
