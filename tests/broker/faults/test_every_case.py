"""Every kind of fault on every operation it can strike: the SDK's own exception, and the same client afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError
from tests.broker.faults.bench import PATIENCE, SHORT, Bench, Place, until
from tests.broker.faults.cases import CASES, Case

from twinbus.broker import Kind, Operation

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

AT_ONCE = 12  # cases under way at the same time: the SDK mostly sleeps
Runs = dict[str, "asyncio.Task[None]"]


async def prepare(place: Place, operation: Operation) -> Any:
    """Bring the place to where the operation can be struck."""
    if operation is Operation.SEND:
        await place.send("before")
    elif operation is Operation.MANAGEMENT:
        await place.schedule()
    elif operation is Operation.RECEIVE:
        await place.send("struck")
        await place.receiver.peek_messages()
    elif operation is Operation.SETTLE:
        return await place.locked()
    return None


async def perform(place: Place, operation: Operation, prepared: Any, patience: float) -> None:
    if operation is Operation.MANAGEMENT:
        await place.schedule(patience)
    elif operation is Operation.RECEIVE:
        assert await place.receive(patience)
    elif operation is Operation.SETTLE:
        await place.receiver.complete_message(prepared)
    else:
        await place.send("struck", patience)


def done(place: Place, operation: Operation) -> int:
    """How often the namespace has carried out the operation."""
    counts = {
        Operation.MANAGEMENT: place.scheduled,
        Operation.RECEIVE: place.locks,
        Operation.SETTLE: place.completed,
    }
    return counts.get(operation, place.received)


async def strike(bench: Bench, case: Case, entity: bool) -> None:
    place, operation = await bench.place(), case.operation
    prepared = await prepare(place, operation)
    before = done(place, operation)
    active = bench.namespace.faults.add(case.struck(place.path if entity else None))
    patience = SHORT if case.error is OperationTimeoutError else PATIENCE
    if operation in (Operation.TOKEN, Operation.ATTACH) and case.error is OperationTimeoutError:
        patience = 15.0  # it covers the connection, too, which takes a while when many are opened at once
    raised = None
    try:
        await perform(place, operation, prepared, patience)
    except ServiceBusError as failure:
        raised = failure
    assert type(raised) is (case.error or type(None)), repr(raised)
    assert active.fired == 1
    if operation not in (Operation.TOKEN, Operation.ATTACH):
        assert done(place, operation) - before == case.done
    bench.namespace.faults.remove(active.id)
    if case.fault.kind is Kind.BLACKHOLE and operation in (Operation.SEND, Operation.MANAGEMENT):
        await until(lambda: done(place, operation) - before == 1)  # it arrives late
    await works_again(place, operation, case)
    assert active.fired == 1


async def works_again(place: Place, operation: Operation, case: Case) -> None:
    """The same client does the same operation, and this time it is done and answered."""
    if operation is Operation.RECEIVE:
        if case.done:
            await place.send("after the fault")
        else:
            assert (await place.receive_one()).delivery_count == 0
            return
    if operation in (Operation.RECEIVE, Operation.SETTLE):
        await place.send("after the fault")
        await place.complete_one()
    elif operation is Operation.MANAGEMENT:
        await place.schedule()
    else:
        await place.send("after the fault")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runs(running_bench: Bench) -> AsyncIterator[Runs]:
    """Every case on a queue of its own, many at the same time; a test waits for its own."""
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


# One after the other, as a fault of the whole namespace strikes whoever comes next.
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.REFUSE])
async def test_on_the_whole_namespace(bench: Bench, runs: Runs, kind: Kind) -> None:
    await asyncio.gather(*runs.values(), return_exceptions=True)
    case = next(case for case in CASES if case.fault.kind is kind and case.operation is Operation.SEND)
    await strike(bench, case, entity=False)
