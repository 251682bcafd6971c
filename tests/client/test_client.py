"""The paired client as an application uses it; messages are counted at the namespaces."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from tests.pairing.twins import USER, Twins, down, eventually
from tests.sdk_connection import client_options, reachable

from twinbus import (
    BacklogNotReadyError,
    Condition,
    Diverted,
    EntityState,
    Event,
    FailedOver,
    PairedClientFaultedError,
    PingFailed,
    Recovered,
    Route,
    SendAvailabilityOptions,
    SyphonOptions,
)
from twinbus.aio import PairedServiceBusClient, pair_namespaces
from twinbus.client.pair_check import check_pair
from twinbus.emulator import AZURE, DEFAULT, Fault, FaultKind, NamespaceConfig, QueueDescription
from twinbus.emulator import FaultPoint as At
from twinbus.pairing.namespace import Namespace

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = itertools.count(1)
HOUR = 1800.0


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[DEFAULT, AZURE], ids=["default", "azure"])
async def twins(request: pytest.FixtureRequest) -> AsyncIterator[Twins]:
    async with Twins.running(request.param) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def no_faults(twins: Twins) -> AsyncIterator[None]:
    yield
    twins.primary.faults.clear()
    twins.secondary.faults.clear()


def a_name() -> str:
    return f"orders-{next(NUMBERS)}"


def options(**changed: Any) -> SendAvailabilityOptions:
    return SendAvailabilityOptions(
        **{
            "backlog_queue_count": 2,
            "failover_interval": 0,
            "ping_primary_interval": 1,
            "attempt_timeout": 5,
            **changed,
        }
    )


def client(twins: Twins, policy: str | None = None, **changed: Any) -> PairedServiceBusClient:
    return PairedServiceBusClient(*twins.sides(policy), options(primary_name="contoso", **changed))


class Seen:
    """The events of a client."""

    def __init__(self, client: PairedServiceBusClient) -> None:
        self.events: list[Event] = []
        self.end = client.on_event(self.events.append)

    def __call__(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


# ---- start ----


async def test_everything_is_set_up_when_the_context_is_entered(twins: Twins) -> None:
    async with client(twins) as paired:
        assert {one.path for one in await paired.list_backlog()} >= {"contoso/x-servicebus-transfer/1"}
        assert paired.status().backlog_is_ready


async def test_pair_namespaces_returns_when_everything_is_set_up(twins: Twins) -> None:
    texts = twins.primary.connection_string, twins.secondary.connection_string
    paired = await pair_namespaces(*texts, options(), user_agent="shop", **client_options(twins.primary))
    try:
        status = paired.status()
        assert (status.name, status.backlog_is_ready, status.condition) == ("contoso", True, Condition.OPEN)
    finally:
        await paired.close()


async def test_unentered_client_starts_with_its_first_sender(twins: Twins) -> None:
    paired = client(twins)
    assert not paired.status().backlog_is_ready
    paired.get_queue_sender(a_name())
    await eventually(lambda: paired.status().backlog_is_ready)
    await paired.close()


async def test_with_strict_a_failed_background_start_faults_the_client(twins: Twins) -> None:
    paired = client(twins, USER, strict=True)
    sender = paired.get_queue_sender(a_name())
    await eventually(lambda: paired.status().condition is Condition.FAULTED)
    with pytest.raises(PairedClientFaultedError) as raised:
        await sender.send_messages(ServiceBusMessage("x"))
    assert isinstance(raised.value.cause, BacklogNotReadyError)
    await paired.close()


async def test_backlog_without_a_queue_in_rotation_is_not_ready(twins: Twins) -> None:
    async with client(twins) as paired:
        for index in range(2):
            assert paired.status().backlog_is_ready
            paired._pairing.queue_failed(index, ServiceBusAuthenticationError(message="the key was rotated"))
        status = paired.status()
        assert (status.backlog_is_ready, status.backlog_error) == (False, "ServiceBusAuthenticationError")
        assert "all 2 backlog queues are out of the rotation" in (status.backlog_message or "")
        assert status.condition is Condition.OPEN
        for index in range(2):
            paired._pairing.queue_restored(index)
        assert paired.status().backlog_is_ready


async def test_a_process_can_start_and_send_while_the_primary_is_down(twins: Twins) -> None:
    path = a_name()
    await twins.queue(path)
    twins.primary_down()
    async with client(twins, strict=True) as paired, paired.get_queue_sender(path) as sender:
        receipt = await sender.send_messages(ServiceBusMessage("x"))
        assert receipt.route is Route.BACKLOG


async def test_a_process_can_start_and_send_while_the_secondary_is_down(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    down(twins.secondary)
    async with client(twins) as paired, paired.get_queue_sender(path) as sender:
        assert (await sender.send_messages(ServiceBusMessage("x"))).route is Route.PRIMARY
        assert queue.activity.received == 1
        status = paired.status()
        assert (status.backlog_is_ready, status.backlog_error) == (False, "ServiceRequestError")
        assert "cannot be reached" in (status.backlog_message or "")


async def test_a_strict_start_fails_while_the_secondary_is_down_and_leaves_nothing_behind(twins: Twins) -> None:
    down(twins.secondary)
    before = asyncio.all_tasks()
    with pytest.raises(BacklogNotReadyError):
        await client(twins, strict=True).__aenter__()
    assert asyncio.all_tasks() <= before


async def test_existing_queues_need_no_right_to_manage(twins: Twins) -> None:
    path = a_name()
    async with client(twins):
        pass
    async with client(twins, USER, create_backlog=False) as paired, paired.get_queue_sender(path) as sender:
        paired.fail_over(path)
        assert (await sender.send_messages(ServiceBusMessage("x"))).route is Route.BACKLOG


@pytest.mark.parametrize("primary_name", [None, "fabrikam"])
async def test_the_name_of_the_primary_is_its_own_or_the_options(twins: Twins, primary_name: str | None) -> None:
    paired = PairedServiceBusClient(*twins.sides(), options(primary_name=primary_name))
    async with paired:
        queues = [one.path for one in paired.status().backlog]
    name = primary_name or "contoso"
    assert queues == [f"{name}/x-servicebus-transfer/{index}" for index in range(2)]
    assert all(twins.secondary.find(path) for path in queues)


# ---- sending ----


async def test_while_all_is_well_messages_go_to_the_primary_only(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    async with client(twins) as paired, paired.get_queue_sender(path) as sender:
        before = [twins.backlog(index).activity.received for index in range(2)]
        await sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])
        assert (queue.activity.received, queue.activity.pings) == (2, 0)
        assert [twins.backlog(index).activity.received for index in range(2)] == before


async def test_after_failover_nothing_but_pings_reaches_the_primary_from_any_sender(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    async with client(twins, ping_primary_interval=HOUR) as paired:
        seen = Seen(paired)
        witness, stranger = paired.get_queue_sender(path), paired.get_queue_sender(path)
        await stranger.send_messages(ServiceBusMessage("0"))
        # For the one who sees it, on a fresh link; and for the first ping. After that nothing is wrong any more.
        twins.primary.faults.add(Fault(FaultKind.REJECT, entity=path, on=frozenset({At.SEND}), count=2))
        assert (await witness.send_messages(ServiceBusMessage("1"))).route is Route.BACKLOG
        await eventually(lambda: seen(PingFailed))
        assert (await stranger.send_messages(ServiceBusMessage("2"))).route is Route.BACKLOG
        late = paired.get_queue_sender(path.upper())
        assert (await late.send_messages(ServiceBusMessage("3"))).route is Route.BACKLOG
        assert (queue.activity.received, queue.activity.pings) == (1, 0)
        await eventually(lambda: len(seen(Diverted)) == 3)


async def test_a_failover_of_one_entity_leaves_the_others_alone(twins: Twins) -> None:
    bad, good = a_name(), a_name()
    queue = await twins.queue(good)
    await twins.queue(bad)
    async with client(twins) as paired:
        paired.fail_over(bad)
        sender = paired.get_queue_sender(good)
        assert (await sender.send_messages(ServiceBusMessage("x"))).route is Route.PRIMARY
        assert queue.activity.received == 1


async def test_all_senders_go_back_as_soon_as_a_ping_gets_through(twins: Twins) -> None:
    path = a_name()
    topic, subscription = await twins.topic(path)
    async with client(twins) as paired:
        seen = Seen(paired)
        senders = [paired.get_topic_sender(path) for _ in range(2)]
        await senders[1].send_messages(ServiceBusMessage("0"))
        twins.primary.faults.add(Fault(FaultKind.REJECT, entity=path, on=frozenset({At.SEND}), count=2))
        assert (await senders[0].send_messages(ServiceBusMessage("1"))).route is Route.BACKLOG
        await eventually(lambda: seen(Recovered))
        assert paired.status().entities[0].state is EntityState.PROBATION
        for sender in senders:
            assert (await sender.send_messages(ServiceBusMessage("2"))).route is Route.PRIMARY
        assert topic.activity.pings == 1
        assert subscription.counters.active == 3


# ---- control and insight ----


async def test_failover_and_failback_can_be_forced(twins: Twins) -> None:
    path = a_name()
    queue = await twins.queue(path)
    async with client(twins) as paired, paired.get_queue_sender(path) as sender:
        seen = Seen(paired)
        paired.fail_over(path)
        [entity] = paired.status().entities
        assert (entity.path, entity.state, entity.is_forced) == (path, EntityState.FAILED_OVER, True)
        assert (await sender.send_messages(ServiceBusMessage("x"))).route is Route.BACKLOG
        paired.fail_back(path)
        assert (await sender.send_messages(ServiceBusMessage("y"))).route is Route.PRIMARY
        await eventually(lambda: seen(Recovered))
        assert [event.forced for event in (*seen(FailedOver), *seen(Recovered))] == [True, True]
        assert (queue.activity.received, queue.activity.pings) == (1, 0)


async def test_status_lists_every_entity_queue_and_error(twins: Twins) -> None:
    healthy, suspect = a_name(), a_name()
    await twins.queue(healthy)
    await twins.queue(suspect)
    async with client(twins, failover_interval=3600, order="session") as paired:
        await paired.get_queue_sender(healthy).send_messages(ServiceBusMessage("x"))
        twins.primary.faults.add(Fault(FaultKind.REJECT, entity=suspect, on=frozenset({At.SEND})))
        message = ServiceBusMessage("x", session_id="a")
        assert (await paired.get_queue_sender(suspect).send_messages(message)).route is Route.BACKLOG
        status = paired.status()
        by_path = {one.path: one for one in status.entities}
        assert by_path[healthy].state is EntityState.HEALTHY
        assert by_path[suspect].state is EntityState.SUSPECT
        assert by_path[suspect].error == "ServiceBusError"
        assert (by_path[suspect].seconds or 0) > 0
        assert [one.is_in_rotation for one in status.backlog] == [True, True]
        assert status.diverted_sessions == 1
        assert status.syphon is None
        plain = status.to_json()
        assert plain["condition"] == "open"
        assert plain["entities"][0]["state"] == "healthy"


async def test_callback_that_raises_has_no_effect(twins: Twins, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise ZeroDivisionError

    async with client(twins) as paired:
        end = paired.on_event(broken)
        for _ in range(3):
            paired.fail_over("orders")
            paired.fail_back("orders")
        await eventually(lambda: paired.status().application_errors.callback == 6)
        end()
        paired.fail_over("orders")
        assert paired.status().entities[0].state is EntityState.FAILED_OVER
    assert caplog.text.count("A callback of the application raised ZeroDivisionError") == 1


async def test_unused_backlog_queues_are_listed(twins: Twins) -> None:
    async with client(twins) as paired:
        await twins.secondary.create(QueueDescription("contoso/x-servicebus-transfer/7"))
        assert [(one.index, one.is_used) for one in await paired.list_backlog()] == [(0, True), (1, True), (7, False)]
        await twins.secondary.delete("contoso/x-servicebus-transfer/7")


# ---- the end ----


async def test_closing_leaves_no_task_and_no_connection_behind(twins: Twins) -> None:
    path, dead = a_name(), a_name()
    await twins.queue(path)
    await twins.queue(dead)
    before = asyncio.all_tasks()
    paired = client(twins, enable_syphon=True, order="session", syphon=SyphonOptions(retry_min=0.1))
    async with paired:
        receiver = paired.get_queue_receiver(path)
        await paired.get_queue_sender(path).send_messages(ServiceBusMessage("x"))
        await receiver.receive_messages(1, max_wait_time=5)
        twins.primary.faults.add(Fault(FaultKind.BLACKHOLE, entity=dead, on=frozenset({At.SEND, At.ATTACH})))
        sender = paired.get_queue_sender(dead)
        await sender.send_messages(ServiceBusMessage("x"), timeout=6)
        assert twins.primary.connections
        assert twins.secondary.connections
    twins.primary.faults.clear()
    await eventually(lambda: not twins.primary.connections)
    await eventually(lambda: not twins.secondary.connections)
    assert asyncio.all_tasks() <= before
    assert paired.status().condition is Condition.CLOSED


async def test_closed_client_raises(twins: Twins) -> None:
    path = a_name()
    await twins.queue(path)
    paired = client(twins)
    async with paired:
        sender = paired.get_queue_sender(path)
    for call in (
        lambda: paired.get_queue_sender(path),
        lambda: paired.get_queue_receiver(path),
        lambda: paired.fail_over(path),
        lambda: paired.primary.get_queue_sender(path),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    with pytest.raises(ValueError, match="closed"):
        await sender.send_messages(ServiceBusMessage("x"))
    await paired.close()


# ---- what cannot be paired ----

KEY = ";SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"


class _Token:
    async def get_token(self, *scopes: str, **_: Any) -> Any:
        raise AssertionError("a token was requested")


def side(host: str, **client_options: Any) -> Namespace:
    return Namespace.from_connection_string(f"Endpoint=sb://{host}{KEY}", **client_options)


async def test_first_host_label_is_the_name_without_a_request() -> None:
    pair = side("contoso.servicebus.windows.net"), side("standby.servicebus.windows.net")
    assert check_pair(*pair, SendAvailabilityOptions()) == "contoso"
    assert check_pair(*pair, SendAvailabilityOptions(primary_name="fabrikam")) == "fabrikam"


@pytest.mark.parametrize(
    ("primary", "secondary", "changed", "named"),
    [
        (side("contoso"), side("CONTOSO"), {}, "two namespaces"),
        (side("contoso"), side("standby", entity_name="q"), {}, "EntityPath=q"),
        (side("10.0.0.1"), side("standby"), {"create_backlog": False}, "primary_name"),
        (Namespace("contoso:99999", _Token()), side("standby"), {"enable_syphon": True}, "port"),
    ],
)
async def test_invalid_pairs_are_refused(
    primary: Namespace, secondary: Namespace, changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        PairedServiceBusClient(primary, secondary, SendAvailabilityOptions(**changed))


async def test_connection_string_for_one_entity_is_refused_for_others(twins: Twins) -> None:
    text = f"{twins.primary.connection_string};EntityPath=orders"
    paired = PairedServiceBusClient(
        text, twins.sides()[1], options(primary_name="contoso"), **client_options(twins.primary)
    )
    with pytest.raises(ValueError, match="'orders'"):
        paired.get_queue_sender("invoices")
    await paired.close()


async def test_a_client_can_be_made_before_there_is_an_event_loop() -> None:
    made: list[PairedServiceBusClient] = []

    def make() -> None:
        made.append(PairedServiceBusClient(("contoso.example", _Token()), ("standby.example", _Token())))

    await asyncio.to_thread(make)
    await made[0].close()


async def test_two_namespaces_of_one_process_can_be_paired_with_defaults() -> None:
    """As in the README."""
    async with (
        reachable(NamespaceConfig("contoso", port=0)) as primary,
        reachable(NamespaceConfig("east", port=0)) as secondary,
    ):
        queue = (await primary.create(QueueDescription("orders"))).queue
        texts = primary.connection_string, secondary.connection_string
        async with (
            PairedServiceBusClient.from_connection_strings(*texts, **client_options(primary)) as paired,
            paired.get_queue_sender("orders") as sender,
        ):
            receipt = await sender.send_messages(ServiceBusMessage("order 1"))
            assert receipt.route is Route.PRIMARY
        assert queue.activity.received == 1
        assert len(secondary.queues()) == 10
