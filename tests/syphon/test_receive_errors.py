"""Non-retryable receive errors are reported once; others are not reported."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.syphon.bus import eventually
from tests.syphon.pumping import BACKLOG, Pair, numbered

from twinbus.emulator import DEFAULT, Fault, FaultKind, FaultPoint
from twinbus.pairing.events import BacklogWarning, Event, EventBus

REFUSED = 3  # refusals before the events are checked


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair(DEFAULT) as running:
        await running.create("orders")
        yield running


def warnings(seen: list[Event]) -> list[tuple[str | None, str]]:
    return [(one.queue, one.message) for one in seen if isinstance(one, BacklogWarning)]


@pytest.mark.parametrize(
    "condition", ["amqp:unauthorized-access", "com.microsoft:entity-disabled", "amqp:not-found", "amqp:internal-error"]
)
async def test_non_retryable_receive_error_is_reported_once(pair: Pair, condition: str) -> None:
    events = EventBus()
    seen: list[Event] = []
    events.subscribe(seen.append)
    await pair.put(numbered("orders", range(5)))
    fault = pair.secondary.faults.add(
        Fault(FaultKind.REJECT, entity=BACKLOG, condition=condition, on=frozenset({FaultPoint.ATTACH}))
    )
    async with pair.running(events=events):
        await eventually(lambda: fault.fired >= REFUSED)
        told = warnings(seen)
        pair.secondary.faults.clear()
        await eventually(lambda: pair.is_backlog_empty)
    if condition == "amqp:internal-error":
        assert told == warnings(seen) == []
    else:
        [(queue, message)] = warnings(seen)
        assert told == [(queue, message)]
        assert queue == BACKLOG
        assert message.startswith("receiving from it failed: ")


async def test_receive_error_is_reported_again_after_a_recovery(pair: Pair) -> None:
    events = EventBus()
    seen: list[Event] = []
    events.subscribe(seen.append)
    async with pair.running(events=events):
        for number in (1, 2):
            pair.secondary.faults.add(Fault(FaultKind.DISABLE, entity=BACKLOG))
            await eventually(lambda number=number: len(warnings(seen)) == number)  # type: ignore[misc]
            pair.secondary.faults.clear()
            await pair.put(numbered("orders", range(5)))
            await eventually(lambda: pair.is_backlog_empty)
    assert len(warnings(seen)) == 2
