"""What a pump tells about each message to those who ask, and how it behaves beside another."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.broker.contract.bus import let_pass
from tests.syphon.bus import eventually
from tests.syphon.pumping import BACKLOG, Pair, bodies, envelope, numbered

from twinbus.broker import Fault, Kind, Operation
from twinbus.ledger import OperationKind
from twinbus.syphon import facts
from twinbus.syphon.facts import Fact


async def told(pair: Pair, **terms: object) -> list[Fact]:
    found: list[Fact] = []
    await pair.drain(on_settled=found.append, **terms)
    return found


async def test_every_message_has_one_fact_with_its_fate(pair: Pair) -> None:
    await pair.put([*numbered("orders", range(5)), *numbered("nowhere", range(2)), envelope(None)])
    found = await told(pair)
    assert Counter((one.destination, one.outcome) for one in found) == {
        ("orders", facts.MOVED): 5,
        ("nowhere", facts.SET_ASIDE): 2,
        ("", facts.MALFORMED): 1,
    }
    assert {one.queue for one in found} == {BACKLOG}
    assert all(one.size > 50 for one in found)
    assert {one.attempts for one in found if one.outcome == facts.MOVED} == {1}


async def test_age_is_the_time_in_the_backlog_by_its_own_clock(pair: Pair) -> None:
    await pair.put(numbered("orders", [1]))
    await let_pass(pair.secondary, pair.clock, 100)
    [fact] = await told(pair)
    assert fact.age_ms is not None
    assert 100_000 <= fact.age_ms < 130_000


async def test_expired_and_refused_messages_are_told_apart_also_if_they_were_set_aside_before(pair: Pair) -> None:
    await pair.put([*numbered("later", [1], seconds=30), *numbered("later", [2])])
    assert [one.outcome for one in await told(pair)] == 2 * [facts.SET_ASIDE]
    await pair.create("later")
    pair.primary.faults.add(Fault(Kind.REJECT, "later", frozenset({Operation.SEND}), condition="amqp:not-allowed"))
    await let_pass(pair.secondary, pair.clock, 40)
    found = await told(pair, options={"poison_tries": 2})
    fates = {one.outcome: one.attempts for one in found if one.outcome != facts.GIVEN_BACK}
    assert fates == {facts.EXPIRED_THERE: 0, facts.REFUSED: 2}


async def test_a_settlement_that_is_not_confirmed_is_told_as_such(pair: Pair) -> None:
    await pair.put(numbered("orders", [1]))
    settling = frozenset({Operation.SETTLE})
    pair.secondary.faults.add(Fault(Kind.REJECT, BACKLOG, settling, count=1, condition="amqp:internal-error"))
    found: list[Fact] = []
    async with pair.running(on_settled=found.append):
        await eventually(lambda: found)
    assert (found[0].outcome, found[0].attempts) == (facts.UNCONFIRMED, 1)


async def test_an_extra_pump_does_not_look_and_ends_when_nothing_comes(pair: Pair) -> None:
    await pair.put([*numbered("later", range(2)), *numbered("orders", range(10))])
    await told(pair)  # sets aside
    await pair.create("later")
    await pair.put(numbered("orders", range(10, 20)))
    peeks = pair.rows(OperationKind.PEEK)
    async with asyncio.timeout(20):
        found = await told(pair, is_extra=True)
    assert [one.outcome for one in found] == 10 * [facts.MOVED]
    assert pair.rows(OperationKind.PEEK) == peeks
    assert pair.backlog.counters.deferred == 2
    assert sorted(await pair.arrived("orders")) == sorted(bodies(range(20)))
