"""A forged message in the backlog cannot make the syphon deliver it to a forbidden place.

The forger has the Send right on a backlog queue, as every paired client has, and writes any `x-ms-path`. Arrivals are
counted at the primary.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tests.connection_strings import connection_string
from tests.emulator.raw_client import encoded_message
from tests.syphon.bus import PATIENCE, connect
from tests.syphon.pumping import BACKLOG, LOCK_SECONDS, QUICK, Pair, bodies, counting, envelope, numbered

from twinbus.admin_tools.dead_letters import Replay, list_dead_letters
from twinbus.amqp.codec import sections
from twinbus.amqp.codec.encoding import encode
from twinbus.emulator import (
    DEFAULT,
    FaultPoint,
    Namespace,
    NamespaceConfig,
    PolicyConfig,
    QueueConfig,
    QueueDescription,
)
from twinbus.envelope import aliases
from twinbus.pairing.options import SyphonOptions
from twinbus.servicebus.access_rights import Right
from twinbus.servicebus.entity_paths import is_entity_path
from twinbus.syphon.connector import Side
from twinbus.syphon.host import SyphonHost
from twinbus.syphon.terms import Terms

#: Paths that try to reach `payroll`, or a node that needs more than the Send right.
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


def forged_schedule_request(destination: str) -> bytes:
    """A message that would schedule another one if it reached a management node."""
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


async def test_forged_path_is_dead_lettered_and_not_delivered(pair: Pair) -> None:
    requests = counting(pair.primary, "payroll", FaultPoint.MANAGEMENT)
    await pair.put([envelope(path) for path in FORGED])
    await pair.put(
        [
            forged_schedule_request("payroll/$management"),
            forged_schedule_request("orders/$management"),
            *numbered("orders", range(3)),
        ]
    )
    report = await pair.drain()
    assert await pair.arrived("orders") == bodies(range(3))
    payroll = pair.queue("payroll")
    assert (payroll.activity.received, payroll.counters.scheduled, requests.fired) == (0, 0, 0)
    assert report.is_empty
    letters = await pair.dead_letters()
    assert len(letters) == len(FORGED) + 2
    assert {letter["DeadLetterErrorDescription"] for letter in letters} == {
        "The property 'x-ms-path' must be the path of a queue or topic."
    }


async def test_replay_refuses_a_forged_path(pair: Pair) -> None:
    requests = counting(pair.primary, "payroll", FaultPoint.MANAGEMENT)
    await pair.put([forged_schedule_request("payroll/$management")])
    await pair.drain()
    async with connect(pair.primary) as primary, connect(pair.secondary) as secondary:
        letters = await list_dead_letters(secondary, BACKLOG, 10)
        report = await Replay(primary, secondary, pair.recorder).run(letters)
    assert (report.moved, len(report.left), requests.fired) == (0, 1, 0)


async def test_destination_outside_the_allow_list_gets_nothing_in_any_spelling(pair: Pair) -> None:
    paths = ["payroll", "/payroll/", "PayRoll", *FORGED]
    await pair.put([envelope(path) for path in paths])
    await pair.put(numbered("orders", range(3)))
    attached = counting(pair.primary, "payroll", FaultPoint.ATTACH)
    await pair.drain(options={"destinations": ["orders"]})
    assert await pair.arrived("orders") == bodies(range(3))
    assert (pair.queue("payroll").activity.received, attached.fired) == (0, 0)


async def test_syphon_cannot_send_where_its_key_does_not_allow() -> None:
    """A key for one entity gives no access to others, whatever the allow list says."""
    may_send = PolicyConfig("syphon", frozenset({Right.SEND}), "a2V5IG9mIHRoZSBzeXBob24=")
    orders = QueueConfig(QueueDescription("orders"), (may_send,))
    async with Pair(DEFAULT) as pair:
        config = NamespaceConfig("contoso", port=0, queues=(orders, QueueConfig(QueueDescription("payroll"))))
        async with Namespace(config) as primary:
            await pair.put([*numbered("payroll", range(3)), *numbered("orders", range(3))])
            sides = (
                Side.from_connection_string(connection_string(primary, may_send.primary_key or "", may_send.name)),
                Side.from_connection_string(pair.secondary.connection_string),
            )
            terms = Terms(options=SyphonOptions(**QUICK), lock_seconds=LOCK_SECONDS)
            async with asyncio.timeout(PATIENCE):
                report = await SyphonHost(*sides, (BACKLOG,), terms).drain()
            nodes = {path: primary.entities.resolve(path) for path in ("orders", "payroll")}
            assert {path: node.queue.activity.received for path, node in nodes.items() if node} == {
                "orders": 3,
                "payroll": 0,
            }
            assert report.destinations["payroll"].deferred == 3


@pytest.mark.parametrize("path", ["orders", "/orders/", "sales/events", "a.b-c_d/x-y", "Ümläute", "with space", "a$b"])
def test_valid_entity_paths_are_accepted(path: str) -> None:
    assert is_entity_path(path)
