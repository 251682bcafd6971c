"""The control port: faults, pings and counts over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError, ServiceBusServerBusyError
from tests.emulator.faults.bench import SHORT, until

from twinbus.emulator import NamespaceConfig, QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.emulator.config.namespace_file import Config
from twinbus.emulator.server.process import Server
from twinbus.emulator.storage.store import Durability

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUEUE = "orders"
PING = "application/vnd.ms-servicebus-ping"


class Api:
    """A client of the control API."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session

    async def request(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, data: bytes | None = None
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self._server.control.token if token is None else token}"}
        url = f"{self._server.control.url}{path}"
        async with self._session.request(method, url, headers=headers, json=body, data=data) as answer:
            return answer.status, await answer.json()

    async def fault(self, **fields: Any) -> int:
        status, added = await self.request("POST", "/namespaces/contoso/faults", fields)
        assert status == 201, added
        return int(added["id"])

    async def fired(self, fault: int) -> int:
        _, answer = await self.request("GET", f"/namespaces/contoso/faults/{fault}")
        return int(answer["fired"])

    async def clear(self) -> None:
        assert (await self.request("DELETE", "/namespaces/contoso/faults"))[0] == 200

    async def counts(self, entity: str) -> dict[str, int]:
        _, answer = await self.request("GET", "/namespaces/contoso/entities")
        counts: dict[str, int] = answer[entity]
        return counts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Server]:
    names = ("contoso", "contoso-standby")
    config = Config(tuple(NamespaceConfig(name, port=0, durability=Durability.MEMORY) for name in names))
    async with Server(config) as running:
        contoso = running.namespaces["contoso"]
        await contoso.create(QueueDescription(QUEUE))
        await contoso.create(TopicDescription("events"))
        await contoso.create_subscription(SubscriptionDescription("events", "all"))
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def api(server: Server) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession() as session:
        client = Api(server, session)
        yield client
        await client.clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sender(server: Server) -> AsyncIterator[ServiceBusSender]:
    text = server.namespaces["contoso"].connection_string
    async with (
        ServiceBusClient.from_connection_string(text, retry_total=0) as client,
        client.get_queue_sender(QUEUE) as opened,
    ):
        yield opened


# ---- access ----


@pytest.mark.parametrize("token", ["", "wrong", "ünïcode"])
async def test_requests_without_the_token_are_refused(api: Api, server: Server, token: str) -> None:
    for method, path in (("GET", "/namespaces"), ("POST", "/namespaces/contoso/faults"), ("GET", "/nothing")):
        status, answer = await api.request(method, path, {"kind": "reset"} if method == "POST" else None, token=token)
        assert (status, list(answer)) == (401, ["error"])
        assert server.control.token not in answer["error"]
    assert list(server.namespaces["contoso"].faults) == []


async def test_health_needs_no_token(api: Api) -> None:
    assert await api.request("GET", "/healthz", token="") == (200, {"status": "ok"})


async def test_control_port_listens_on_loopback_only(server: Server) -> None:
    assert server.control.url.startswith("http://127.0.0.1:")


# ---- counts and errors ----


async def test_the_namespaces_are_listed(api: Api, server: Server) -> None:
    status, listed = await api.request("GET", "/namespaces")
    assert status == 200
    assert list(listed) == ["contoso", "contoso-standby"]
    assert listed["contoso"]["port"] == server.namespaces["contoso"].port


async def test_entity_counts_its_traffic(api: Api, sender: ServiceBusSender) -> None:
    before = await api.counts(QUEUE)
    await sender.send_messages([ServiceBusMessage("x") for _ in range(3)])
    await sender.send_messages(ServiceBusMessage("ping", content_type=PING))
    after = await api.counts(QUEUE)
    assert after["received"] - before["received"] == 3
    assert after["active"] - before["active"] == 3
    assert after["pings"] - before["pings"] == 1
    assert set(await api.counts("events/Subscriptions/all")) == set(after)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/namespaces/unknown/faults", None, 404, "no namespace 'unknown'; there are contoso, contoso-standby"),
        ("GET", "/namespaces/contoso/faults/99999", None, 404, "no fault '99999' is known"),
        ("GET", "/namespaces/contoso/faults/x", None, 404, "no fault 'x' is known"),
        ("DELETE", "/namespaces/contoso/faults/99999", None, 404, "no fault '99999' is in force"),
        ("DELETE", f"/namespaces/contoso/faults/{'9' * 5000}", None, 404, "is in force"),
        ("POST", "/namespaces/contoso/faults", {}, 400, "kind must be one of refuse, reset"),
        ("POST", "/namespaces/contoso/faults", {"kind": "slow"}, 400, "delay must be above 0"),
        ("POST", "/namespaces/contoso/faults", {"kind": "reset", "count": 0}, 400, "count must be 1 or more"),
        ("POST", "/namespaces/contoso/faults", {"kind": "reset", "x": 1}, 400, "x is not a field of a fault"),
        ("POST", "/namespaces/contoso/faults", [1], 400, "a fault is a JSON object"),
        ("PUT", "/namespaces/contoso/pings", {}, 400, "the body must be"),
        ("PUT", "/namespaces/contoso/pings", {"deliver": "yes"}, 400, "the body must be"),
    ],
)
async def test_invalid_request_is_refused_with_a_reason(
    api: Api, method: str, path: str, body: Any, status: int, words: str
) -> None:
    answered, answer = await api.request(method, path, body)
    assert answered == status
    assert words in answer["error"]


@pytest.mark.parametrize("data", [b"{", b"\xff\xfe\xfd", b"[" * 50_000, b""])
async def test_body_that_is_not_json_is_refused(api: Api, data: bytes) -> None:
    status, answer = await api.request("POST", "/namespaces/contoso/faults", data=data)
    assert status == 400
    assert "error" in answer


# ---- faults over HTTP ----


async def test_a_fault_is_added_listed_counted_and_removed(api: Api, sender: ServiceBusSender) -> None:
    fault = await api.fault(kind="throttle", entity=QUEUE)
    with pytest.raises(ServiceBusServerBusyError):
        await sender.send_messages(ServiceBusMessage("x"))
    status, (listed,) = await api.request("GET", "/namespaces/contoso/faults")
    assert status == 200
    assert listed["id"] == fault
    assert (listed["kind"], listed["entity"], listed["on"]) == ("throttle", QUEUE, ["management", "send"])
    assert (listed["fired"], listed["in_force"], listed["count"]) == (1, True, None)
    assert (await api.request("DELETE", f"/namespaces/contoso/faults/{fault}"))[0] == 200
    await sender.send_messages(ServiceBusMessage("x"))
    assert (await api.request("GET", "/namespaces/contoso/faults"))[1] == []


async def test_ended_fault_still_shows_its_firings(api: Api, sender: ServiceBusSender) -> None:
    fault = await api.fault(kind="throttle", count=1)
    with pytest.raises(ServiceBusServerBusyError):
        await sender.send_messages(ServiceBusMessage("x"))
    await sender.send_messages(ServiceBusMessage("x"))
    assert await api.fired(fault) == 1
    _, answer = await api.request("GET", f"/namespaces/contoso/faults/{fault}")
    assert answer["in_force"] is False


async def test_refuse_fault_can_be_removed_over_the_control_port(
    api: Api, server: Server, sender: ServiceBusSender
) -> None:
    refuse, cut = await api.fault(kind="refuse"), await api.fault(kind="reset")
    for _ in range(2):
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("x"))
    assert await api.fired(refuse) == 1
    assert await api.fired(cut) >= 1
    await api.clear()
    await sender.send_messages(ServiceBusMessage("x"))


async def test_black_hole_can_be_removed_over_the_control_port(
    api: Api, server: Server, sender: ServiceBusSender
) -> None:
    await sender.send_messages(ServiceBusMessage("x"))
    received = (await api.counts(QUEUE))["received"]
    fault = await api.fault(kind="blackhole")
    with pytest.raises(OperationTimeoutError):
        await sender.send_messages(ServiceBusMessage("late"), timeout=SHORT)
    assert await api.fired(fault) >= 1
    assert (await api.counts(QUEUE))["received"] == received
    await api.clear()
    queue = server.namespaces["contoso"].entities.resolve(QUEUE)
    assert queue is not None
    await until(lambda: queue.queue.activity.received == received + 1)


async def test_fault_of_one_namespace_does_not_affect_the_other(api: Api, server: Server) -> None:
    await api.fault(kind="refuse")
    assert list(server.namespaces["contoso-standby"].faults) == []
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.namespaces['contoso-standby'].port}/healthz") as answer,
    ):
        assert answer.status == 200


async def test_every_field_of_a_fault_can_be_given_over_http(api: Api, server: Server) -> None:
    fields = {
        "kind": "drop_ack", "entity": QUEUE, "on": ["send"], "count": 5, "seconds": 60, "probability": 0.5, "seed": 7,
        "delay": 0.0, "condition": None, "description": None, "then_reset": True, "after_answer": False,
    }  # fmt: skip
    fault = await api.fault(**fields)
    _, answer = await api.request("GET", f"/namespaces/contoso/faults/{fault}")
    assert answer == {**fields, "id": fault, "fired": 0, "in_force": True}


# ---- pings ----


async def test_pings_are_hidden_until_delivery_is_switched_on(
    api: Api, server: Server, sender: ServiceBusSender
) -> None:
    text = server.namespaces["contoso"].connection_string
    async with (
        ServiceBusClient.from_connection_string(text, retry_total=0) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):

        async def pings() -> int:
            peeked = await receiver.peek_messages(max_message_count=250, sequence_number=1)
            return sum(message.content_type == PING for message in peeked)

        await sender.send_messages(ServiceBusMessage("hidden", content_type=PING))
        assert await pings() == 0
        assert await api.request("PUT", "/namespaces/contoso/pings", {"deliver": True}) == (200, {"deliver": True})
        await sender.send_messages(ServiceBusMessage("shown", content_type=PING))
        assert await pings() == 1
        assert (await api.request("PUT", "/namespaces/contoso/pings", {"deliver": False}))[0] == 200
        await sender.send_messages(ServiceBusMessage("hidden again", content_type=PING))
        assert await pings() == 1
