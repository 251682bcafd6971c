"""Every fault kind at every fault point: the SDK's exception, and that the same client works afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError
from tests.emulator.faults.bench import PATIENCE, SHORT, Bench, Place, until
from tests.emulator.faults.cases import CASES, Case

from twinbus.emulator import FaultKind, FaultPoint

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

AT_ONCE = 12  # concurrent cases: the SDK mostly sleeps
Runs = dict[str, "asyncio.Task[None]"]


async def prepare(place: Place, operation: FaultPoint) -> Any:
    """Prepare the queue for the operation."""
    if operation is FaultPoint.SEND:
        await place.send("before")
    elif operation is FaultPoint.MANAGEMENT:
        await place.schedule()
    elif operation is FaultPoint.RECEIVE:
        await place.send("struck")
        await place.receiver.peek_messages()
    elif operation is FaultPoint.SETTLE:
        return await place.locked()
    return None


async def perform(place: Place, operation: FaultPoint, prepared: Any, patience: float) -> None:
    if operation is FaultPoint.MANAGEMENT:
        await place.schedule(patience)
    elif operation is FaultPoint.RECEIVE:
        assert await place.receive(patience)
    elif operation is FaultPoint.SETTLE:
        await place.receiver.complete_message(prepared)
    else:
        await place.send("struck", patience)


def done(place: Place, operation: FaultPoint) -> int:
    """How often the namespace has done the operation."""
    counts = {
        FaultPoint.MANAGEMENT: place.scheduled,
        FaultPoint.RECEIVE: place.locks,
        FaultPoint.SETTLE: place.completed,
    }
    return counts.get(operation, place.received)


async def strike(bench: Bench, case: Case, entity: bool) -> None:
    place, operation = await bench.place(), case.operation
    prepared = await prepare(place, operation)
    before = done(place, operation)
    active = bench.namespace.faults.add(case.struck(place.path if entity else None))
    patience = SHORT if case.error is OperationTimeoutError else PATIENCE
    if operation in (FaultPoint.TOKEN, FaultPoint.ATTACH) and case.error is OperationTimeoutError:
        patience = 15.0  # includes connecting, which is slow when many connections open at once
    raised = None
    try:
        await perform(place, operation, prepared, patience)
    except ServiceBusError as failure:
        raised = failure
    assert type(raised) is (case.error or type(None)), repr(raised)
    assert active.fired == 1
    if operation not in (FaultPoint.TOKEN, FaultPoint.ATTACH):
        assert done(place, operation) - before == case.done
    bench.namespace.faults.remove(active.id)
    if case.fault.kind is FaultKind.BLACKHOLE and operation in (FaultPoint.SEND, FaultPoint.MANAGEMENT):
        await until(lambda: done(place, operation) - before == 1)  # it arrives late
    await works_again(place, operation, case)
    assert active.fired == 1


async def works_again(place: Place, operation: FaultPoint, case: Case) -> None:
    """The same client repeats the operation successfully."""
    if operation is FaultPoint.RECEIVE:
        if case.done:
            await place.send("after the fault")
        else:
            assert (await place.receive_one()).delivery_count == 0
            return
    if operation in (FaultPoint.RECEIVE, FaultPoint.SETTLE):
        await place.send("after the fault")
        await place.complete_one()
    elif operation is FaultPoint.MANAGEMENT:
        await place.schedule()
    else:
        await place.send("after the fault")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runs(running_bench: Bench) -> AsyncIterator[Runs]:
    """Runs all cases concurrently, each on its own queue; a test awaits its case."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def run(case: Case) -> None:
        async with limit:
            await strike(running_bench, case, entity=True)

    tasks = {case.name: asyncio.create_task(run(case)) for case in CASES}
    yield tasks
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_on_one_entity(runs: Runs, case: Case) -> None:
    await runs[case.name]


# One after the other, as a fault of the whole namespace strikes any client.
@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not FaultKind.REFUSE])
async def test_on_the_whole_namespace(bench: Bench, runs: Runs, kind: FaultKind) -> None:
    await asyncio.gather(*runs.values(), return_exceptions=True)
    case = next(case for case in CASES if case.fault.kind is kind and case.operation is FaultPoint.SEND)
    await strike(bench, case, entity=False)
