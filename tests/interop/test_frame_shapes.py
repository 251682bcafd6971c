"""Our client's frames compared with the SDK's, both recorded at the same namespace.

The SDK is known to work with the real service, so ours should have the same fields of the same types. Where they differ
it is on purpose, and written down here: anything else fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Set
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from tests.interop.recording import Recorded, Recorder, shape, shapes
from tests.syphon.bus import PATIENCE, message, receive, send_all, sequence_number

from twinbus.amqp.codec import sections
from twinbus.emulator import AZURE, Namespace, QueueDescription
from twinbus.syphon import ABANDON, ACCEPT, DEFER, Connection, Settlement, dead_letter, from_connection_string

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Both(NamedTuple):
    sdk: list[Recorded]
    ours: list[Recorded]


def through(namespace: Namespace, recorder: Recorder) -> str:
    """The namespace's connection string with the recorder's port."""
    return namespace.connection_string.replace(f":{namespace.port}", f":{recorder.port}")


async def use_the_sdk(connection_string: str) -> None:
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        async with client.get_queue_sender("orders") as sender:
            for _ in range(4):
                await sender.send_messages(ServiceBusMessage(b"x"))
        async with client.get_queue_receiver("orders") as receiver:
            found = []
            while len(found) < 4:
                found += await receiver.receive_messages(4 - len(found), max_wait_time=PATIENCE)
            await receiver.complete_message(found[0])
            await receiver.defer_message(found[1])
            await receiver.dead_letter_message(found[2], "reason", "description")
            await receiver.peek_messages(1)
            await receiver.renew_message_lock(found[3])
            await receiver.abandon_message(found[3])
            (deferred,) = await receiver.receive_deferred_messages([found[1].sequence_number])
            await receiver.dead_letter_message(deferred, "reason", "description")


async def use_ours(connection_string: str) -> None:
    async with Connection.open(*from_connection_string(connection_string), timeout=PATIENCE) as connection:
        sender = await connection.attach_sender("orders")
        await send_all(sender, [message()] * 4)
        receiver, inbox = await receive(connection, "orders", 4)
        found = await inbox.take(4)
        management = await connection.management("orders")
        await receiver.settled(found[0], ACCEPT, PATIENCE)
        await receiver.settled(found[1], DEFER, PATIENCE)
        await receiver.settled(found[2], dead_letter("reason", "description"), PATIENCE)
        await management.peek_messages(1, 1)
        await management.renew_locks([found[3].lock_token])
        await receiver.settled(found[3], ABANDON, PATIENCE)
        (deferred,) = await management.receive_deferred([sequence_number(found[1].payload)])
        await management.settle(
            [deferred.lock_token], Settlement.DEAD_LETTERED, reason="reason", description="description"
        )
        await receiver.close()
        await sender.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both() -> AsyncIterator[Both]:
    async with Namespace("contoso", profile=replace(AZURE, throttle=None)) as namespace:
        recorded = []
        for use in (use_the_sdk, use_ours):
            await namespace.create(QueueDescription("orders"))
            async with Recorder(namespace.port) as recorder:
                await use(through(namespace, recorder))
                recorded.append(recorder.frames())
            await namespace.delete("orders")
        yield Both(*recorded)


def of_kind(frames: list[Recorded], kind: str, **fields: Any) -> list[Recorded]:
    """Frames of a kind whose fields have these values."""
    chosen = [frame for frame in frames if frame.kind == kind]
    return [frame for frame in chosen if all(frame.fields.get(name) == value for name, value in fields.items())]


def compare(
    sdk: Recorded, ours: Recorded, *, only_sdk: Set[str] = frozenset(), only_ours: Set[str] = frozenset()
) -> None:
    """Same fields and types, except for named ones that only one side has."""
    theirs, mine = shapes(sdk.fields), shapes(ours.fields)
    assert theirs.keys() - mine.keys() == only_sdk
    assert mine.keys() - theirs.keys() == only_ours
    for name in theirs.keys() & mine.keys():
        assert mine[name] == theirs[name], name


# ---- the connection ----


async def test_sasl_login_frames_match(both: Both) -> None:
    sdk, ours = of_kind(both.sdk, "SaslInit")[0], of_kind(both.ours, "SaslInit")[0]
    compare(sdk, ours)
    assert ours.fields["mechanism"] == sdk.fields["mechanism"] == "ANONYMOUS"
    assert ours.fields["hostname"] == sdk.fields["hostname"]


async def test_open_frame_matches(both: Both) -> None:
    sdk, ours = of_kind(both.sdk, "Open")[0], of_kind(both.ours, "Open")[0]
    # A peer that falls silent is noticed: the SDK asks for no sign of life.
    compare(sdk, ours, only_ours={"idle_time_out"})
    assert ours.fields["hostname"] == sdk.fields["hostname"] == "127.0.0.1"


async def test_begin_frame_matches(both: Both) -> None:
    compare(of_kind(both.sdk, "Begin")[0], of_kind(both.ours, "Begin")[0])


@pytest.mark.parametrize("kind", ["Close", "Detach"])
async def test_close_and_detach_frames_match(both: Both, kind: str) -> None:
    compare(of_kind(both.sdk, kind)[0], of_kind(both.ours, kind)[0])


# ---- links ----


def attach(frames: list[Recorded], role: bool, node: str) -> Recorded:
    """The attach of a link to a node. The SDK's addresses are URLs, ours are paths."""
    terminus = "source" if role else "target"
    found = of_kind(frames, "Attach", role=role)
    return next(frame for frame in found if str(frame.fields[terminus].value[0]).endswith(node))


@pytest.mark.parametrize("role", [False, True], ids=["sender", "receiver"])
@pytest.mark.parametrize("node", ["$cbs", "orders/$management"])
async def test_attach_to_a_node_matches(both: Both, role: bool, node: str) -> None:
    sdk, ours = attach(both.sdk, role, node), attach(both.ours, role, node)
    compare(sdk, ours)
    for mode in ("snd_settle_mode", "rcv_settle_mode"):
        assert ours.fields[mode] == sdk.fields[mode]


async def test_sender_attach_matches(both: Both) -> None:
    sdk, ours = attach(both.sdk, False, "orders"), attach(both.ours, False, "orders")
    # The SDK says 0 there, which means nothing.
    compare(sdk, ours, only_sdk={"max_message_size"})
    assert ours.fields["snd_settle_mode"] == sdk.fields["snd_settle_mode"] == 0
    # Ours asks the service to settle a message as soon as it has it; the SDK, to wait for the sender's word.
    assert (ours.fields["rcv_settle_mode"], sdk.fields["rcv_settle_mode"]) == (0, 1)


async def test_receiver_attach_matches(both: Both) -> None:
    sdk, ours = attach(both.sdk, True, "orders"), attach(both.ours, True, "orders")
    # The SDK refuses messages above 1 MB, which a Premium namespace may hold; its property is a name for people.
    compare(sdk, ours, only_sdk={"max_message_size", "properties"})
    assert ours.fields["snd_settle_mode"] == sdk.fields["snd_settle_mode"] == 0
    assert ours.fields["rcv_settle_mode"] == sdk.fields["rcv_settle_mode"] == 1


async def test_link_flow_matches(both: Both) -> None:
    def link_flow(frames: list[Recorded]) -> Recorded:
        return next(frame for frame in of_kind(frames, "Flow") if frame.fields["handle"] is not None)

    compare(link_flow(both.sdk), link_flow(both.ours))


# ---- messages ----


async def test_transfer_frames_match(both: Both) -> None:
    def of_a_message(frames: list[Recorded]) -> Recorded:
        return next(frame for frame in of_kind(frames, "Transfer") if body_kind(frame) == "data")

    sdk, ours = of_a_message(both.sdk), of_a_message(both.ours)
    compare(sdk, ours)
    assert ours.fields["settled"] is sdk.fields["settled"] is False
    assert ours.fields["message_format"] == sdk.fields["message_format"] == 0


def body_kind(frame: Recorded) -> str:
    return "data" if sections.split_sections(frame.payload).body[2] == sections.DATA else "value"


@pytest.mark.parametrize("outcome", ["Accepted", "Modified", "Rejected"])
async def test_disposition_frames_match(both: Both, outcome: str) -> None:
    def settling(frames: list[Recorded]) -> list[Recorded]:
        found = of_kind(frames, "Disposition", role=True, settled=False)
        return [frame for frame in found if shape(frame.fields["state"])[0] == outcome]

    sdk, ours = settling(both.sdk), settling(both.ours)
    assert len(sdk) == len(ours) == (2 if outcome == "Modified" else 1)
    for theirs, mine in zip(sdk, ours, strict=True):
        # Ours may be a range.
        compare(theirs, mine, only_ours={"last"})
        assert mine.fields["state"].value[:2] == theirs.fields["state"].value[:2]


# ---- requests ----


class Request(NamedTuple):
    properties: dict[str, Any]
    body: Any


def requests(frames: list[Recorded]) -> dict[str, Request]:
    """The requests to `$cbs` and `$management`, by operation."""
    found = {}
    for frame in of_kind(frames, "Transfer"):
        parts = sections.split_sections(frame.payload)
        entries = sections.map_entries(parts.application_properties)
        properties = {str(key): sections.entry_value(raw) for key, raw in entries}
        if "operation" in properties:
            found[str(properties["operation"])] = Request(properties, sections.section_value(parts.body))
    return found


async def test_put_token_request_matches(both: Both) -> None:
    sdk, ours = requests(both.sdk)["put-token"], requests(both.ours)["put-token"]
    assert {name: shape(value) for name, value in ours.properties.items()} == {
        name: shape(value) for name, value in sdk.properties.items()
    }
    assert shape(ours.body) == shape(sdk.body) == "str"
    assert ours.properties["name"].rpartition("/")[2] == sdk.properties["name"].rpartition("/")[2] == "orders"
    # The service's own name for such a token; the SDK gets by with another.
    assert ours.properties["type"] == "servicebus.windows.net:sastoken"


@pytest.mark.parametrize(
    "operation", ["peek-message", "receive-by-sequence-number", "renew-lock", "update-disposition"]
)
async def test_management_request_body_matches(both: Both, operation: str) -> None:
    name = f"com.microsoft:{operation}"
    sdk, ours = requests(both.sdk)[name], requests(both.ours)[name]
    # Both belong to sessions, or to the SDK's own book-keeping.
    assert set(sdk.properties) - set(ours.properties) <= {"associated-link-name", "type"}
    assert set(ours.properties) <= set(sdk.properties)
    assert {key: described(value) for key, value in ours.body.items()} == {
        key: described(value) for key, value in sdk.body.items()
    }


def described(value: Any) -> Any:
    """A value's type, and that of the items of an array."""
    return (shape(value), value.code) if hasattr(value, "code") else shape(value)
