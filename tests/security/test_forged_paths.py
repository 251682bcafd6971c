"""Whoever can put a message into the backlog cannot make the syphon carry it where it should not go.

The forger has the Send right for a backlog queue, as every paired client has, and writes any `x-ms-path`. What arrived
is counted at the primary.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tests.broker.raw_client import encoded_message
from tests.syphon.bus import PATIENCE, connect
from tests.syphon.pumping import BACKLOG, LOCK_SECONDS, QUICK, Pair, bodies, counting, envelope, numbered

from twinbus.amqp import sections
from twinbus.amqp.encoding import encode
from twinbus.broker import DEFAULT, Namespace, NamespaceConfig, Operation, QueueDescription
from twinbus.broker.config import PolicyConfig, QueueConfig
from twinbus.broker.security import AccessPolicy, Right, connection_string
from twinbus.operations.dead_letters import Replay, list_dead_letters
from twinbus.pairing import aliases
from twinbus.pairing.naming import is_entity_path
from twinbus.pairing.options import SyphonOptions
from twinbus.syphon.connector import Side
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.terms import Terms

#: All of it is meant for `payroll`, or for something that only its owner may ask.
FORGED = (
    "payroll/$management",
    "PAYROLL/$Management",
    "payroll/$DeadLetterQueue",
    "orders/$management",
    "$management",
    "$cbs",
    "amqps://contoso.servicebus.windows.net/payroll",
    "sb://127.0.0.1/payroll/$management",
    "orders/../payroll",
    "./payroll",
    "orders//payroll",
    "%70ayroll",
    "payroll?x=orders",
    "payroll#orders",
    "orders\0/payroll",
    "orders\npayroll",
    "orders\\payroll",
    "user@payroll",
    "/",
    "..",
)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair(DEFAULT) as running:
        await running.create("orders", "payroll")
        yield running


def schedules(destination: str) -> bytes:
    """A message that is a request to schedule another one, if it gets to a management node."""
    body = {"messages": [{"message-id": "forged", "message": encoded_message("forged", due_at=time.time() + 3600)}]}
    entries = [
        sections.entry(aliases.PATH, destination),
        sections.entry("operation", "com.microsoft:schedule-message"),
    ]
    return (
        sections.list_section(sections.PROPERTIES, [encode("request")])
        + sections.map_section(sections.APPLICATION_PROPERTIES, entries)
        + b"\x00\x53\x77"
        + encode(body)
    )


async def test_a_forged_path_is_dead_lettered_and_reaches_nobody(pair: Pair) -> None:
    asked = counting(pair.primary, "payroll", Operation.MANAGEMENT)
    await pair.put([envelope(path) for path in FORGED])
    await pair.put([schedules("payroll/$management"), schedules("orders/$management"), *numbered("orders", range(3))])
    report = await pair.drain()
    assert await pair.arrived("orders") == bodies(range(3))
    payroll = pair.queue("payroll")
    assert (payroll.activity.received, payroll.counters.scheduled, asked.fired) == (0, 0, 0)
    assert report.is_empty
    letters = await pair.dead_letters()
    assert len(letters) == len(FORGED) + 2
    assert {one["DeadLetterErrorDescription"] for one in letters} == {
        "The property 'x-ms-path' must be the path of a queue or topic."
    }


async def test_the_owner_of_the_backlog_cannot_replay_a_forged_path_by_mistake(pair: Pair) -> None:
    asked = counting(pair.primary, "payroll", Operation.MANAGEMENT)
    await pair.put([schedules("payroll/$management")])
    await pair.drain()
    async with connect(pair.primary) as primary, connect(pair.secondary) as secondary:
        letters = await list_dead_letters(secondary, BACKLOG, 10)
        report = await Replay(primary, secondary, pair.recorder).run(letters)
    assert (report.moved, len(report.left), asked.fired) == (0, 1, 0)


async def test_what_is_not_on_the_allow_list_gets_nowhere_however_it_is_spelled(pair: Pair) -> None:
    spelled = ["payroll", "/payroll/", "PayRoll", *FORGED]
    await pair.put([envelope(path) for path in spelled])
    await pair.put(numbered("orders", range(3)))
    attached = counting(pair.primary, "payroll", Operation.ATTACH)
    await pair.drain(options={"destinations": ["orders"]})
    assert await pair.arrived("orders") == bodies(range(3))
    assert (pair.queue("payroll").activity.received, attached.fired) == (0, 0)


async def test_a_syphon_reaches_no_more_than_its_own_key_does() -> None:
    """Whatever the list says: a key that is good for one entity opens no other."""
    may_send = PolicyConfig("syphon", frozenset({Right.SEND}), "a2V5IG9mIHRoZSBzeXBob24=")
    orders = QueueConfig(QueueDescription("orders"), (may_send,))
    async with Pair(DEFAULT) as pair:
        config = NamespaceConfig("contoso", port=0, queues=(orders, QueueConfig(QueueDescription("payroll"))))
        async with Namespace(config) as primary:
            await pair.put([*numbered("payroll", range(3)), *numbered("orders", range(3))])
            policy = AccessPolicy("syphon", may_send.primary_key or "", "", may_send.rights)
            sides = (
                Side.from_connection_string(connection_string("127.0.0.1", primary.port, policy)),
                Side.from_connection_string(pair.secondary.connection_string),
            )
            terms = Terms(options=SyphonOptions(**QUICK), lock_seconds=LOCK_SECONDS)
            async with asyncio.timeout(PATIENCE):
                report = await SyphonHost(*sides, (BACKLOG,), terms).drain()
            found = {path: primary.entities.resolve(path) for path in ("orders", "payroll")}
            assert {path: node.queue.activity.received for path, node in found.items() if node} == {
                "orders": 3,
                "payroll": 0,
            }
            assert report.destinations["payroll"].parked == 3


@pytest.mark.parametrize("path", ["orders", "/orders/", "sales/events", "a.b-c_d/x-y", "Ümläute", "with space", "a$b"])
def test_paths_that_queues_and_topics_have_are_no_forgeries(path: str) -> None:
    assert is_entity_path(path)
