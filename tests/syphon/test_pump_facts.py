"""The facts that a pump reports, and extra pumps beside it."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.emulator.contract.bus import let_pass
from tests.syphon.bus import eventually
from tests.syphon.pumping import BACKLOG, Pair, bodies, envelope, numbered

from twinbus.emulator import Fault, FaultKind, FaultPoint
from twinbus.ledger import OperationKind
from twinbus.syphon.settlement import facts
from twinbus.syphon.settlement.facts import Fact


async def told(pair: Pair, **terms: object) -> list[Fact]:
    found: list[Fact] = []
    await pair.drain(on_settled=found.append, **terms)
    return found


async def test_every_settled_message_has_one_fact(pair: Pair) -> None:
    await pair.put([*numbered("orders", range(5)), *numbered("nowhere", range(2)), envelope(None)])
    found = await told(pair)
    assert Counter((one.destination, one.outcome) for one in found) == {
        ("orders", facts.MOVED): 5,
        ("nowhere", facts.DEFERRED): 2,
        ("", facts.MALFORMED): 1,
    }
    assert {one.queue for one in found} == {BACKLOG}
    assert all(one.size > 50 for one in found)
    assert {one.attempts for one in found if one.outcome == facts.MOVED} == {1}


async def test_age_is_the_time_in_the_backlog_by_the_brokers_clock(pair: Pair) -> None:
    await pair.put(numbered("orders", [1]))
    await let_pass(pair.secondary, pair.clock, 100)
    [fact] = await told(pair)
    assert fact.age_ms is not None
    assert 100_000 <= fact.age_ms < 130_000


async def test_expired_and_refused_facts_differ_for_deferred_messages_too(pair: Pair) -> None:
    await pair.put([*numbered("later", [1], seconds=30), *numbered("later", [2])])
    assert [one.outcome for one in await told(pair)] == 2 * [facts.DEFERRED]
    await pair.create("later")
    pair.primary.faults.add(
        Fault(FaultKind.REJECT, "later", frozenset({FaultPoint.SEND}), condition="amqp:not-allowed")
    )
    await let_pass(pair.secondary, pair.clock, 40)
    found = await told(pair, options={"poison_tries": 2})
    fates = {one.outcome: one.attempts for one in found if one.outcome != facts.ABANDONED}
    assert fates == {facts.EXPIRED_THERE: 0, facts.REFUSED: 2}


async def test_unconfirmed_settlement_is_reported_as_unconfirmed(pair: Pair) -> None:
    await pair.put(numbered("orders", [1]))
    settling = frozenset({FaultPoint.SETTLE})
    pair.secondary.faults.add(Fault(FaultKind.REJECT, BACKLOG, settling, count=1, condition="amqp:internal-error"))
    found: list[Fact] = []
    async with pair.running(on_settled=found.append):
        await eventually(lambda: found)
    assert (found[0].outcome, found[0].attempts) == (facts.UNCONFIRMED, 1)


async def test_extra_pump_does_not_scan_and_ends_when_nothing_arrives(pair: Pair) -> None:
    await pair.put([*numbered("later", range(2)), *numbered("orders", range(10))])
    await told(pair)  # defers the message
    await pair.create("later")
    await pair.put(numbered("orders", range(10, 20)))
    peeks = pair.rows(OperationKind.PEEK)
    async with asyncio.timeout(20):
        found = await told(pair, is_extra=True)
    assert [one.outcome for one in found] == 10 * [facts.MOVED]
    assert pair.rows(OperationKind.PEEK) == peeks
    assert pair.backlog.counters.deferred == 2
    assert sorted(await pair.arrived("orders")) == sorted(bodies(range(20)))
