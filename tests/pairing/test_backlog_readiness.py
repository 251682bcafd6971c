"""The secondary never lowers availability: its problems are reported and retried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import pytest_asyncio
from aiohttp import web
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusError
from tests.pairing.test_backlog import OURS, PATH
from tests.pairing.twins import USER, Events, Twins, down, eventually, operations
from tests.sdk_connection import address_options, needs_plain_text

from twinbus.emulator import AZURE, DEFAULT, Fault, FaultKind, Namespace, QueueDescription
from twinbus.ledger.recorder import NamespaceRole, OperationKind
from twinbus.pairing.background import Background
from twinbus.pairing.backlog.readiness import RETRY_MAX, RETRY_MIN, RetryPace
from twinbus.pairing.events import (
    BacklogQueueRestored,
    BacklogQueueRetired,
    BacklogReady,
    BacklogWarning,
    NamespacesLookSwapped,
)
from twinbus.pairing.failover.error_classification import Cause, cause_of
from twinbus.pairing.namespace import Namespace as Side
from twinbus.pairing.pairing_errors import (
    BacklogConfigurationError,
    BacklogNotReadyError,
    NamespacesSwappedError,
    TwinbusError,
)
from twinbus.pairing.pairing_state import Pairing


@pytest_asyncio.fixture(params=[DEFAULT, AZURE], ids=["default", "azure"])
async def twins(request: pytest.FixtureRequest) -> AsyncIterator[Twins]:
    async with Twins.running(request.param) as running:
        yield running


class Key:
    """A namespace whose key can change while the client runs."""

    def __init__(self, namespace: Namespace, is_right: bool = True) -> None:
        policy = namespace.policy("RootManageSharedAccessKey")
        self._name, self._key = policy.name, policy.primary_key
        self._credential = AzureNamedKeyCredential(self._name, self._key)
        self.side = Side(f"{namespace.host}:{namespace.port}", self._credential, **address_options(namespace))
        if not is_right:
            self.rotate()

    def rotate(self) -> None:
        """Change the namespace's key without telling the client."""
        self._credential.update(self._name, "b2xk")

    def learn(self) -> None:
        """Give the client the right key."""
        self._credential.update(self._name, self._key)


@asynccontextmanager
async def started(pairing: Pairing, primary: Side, secondary: Side) -> AsyncIterator[tuple[Background, Events]]:
    """Start the background of a pairing, whatever is wrong with the secondary."""
    events = Events(pairing)
    background = Background(pairing, primary, secondary)
    await background.start()
    try:
        yield background, events
    finally:
        await background.close()


async def refuses(pairing: Pairing, primary: Side, secondary: Side) -> TwinbusError:
    """Return the error of a start that must fail; nothing is left running."""
    before = asyncio.all_tasks()
    background = Background(pairing, primary, secondary)
    with pytest.raises(TwinbusError) as raised:
        await background.start()
    assert asyncio.all_tasks() <= before
    assert pairing.fault is None
    return raised.value


async def not_found(twins: Twins, index: int) -> ServiceBusError:
    """Return the error of a send to a missing backlog queue, as on the wire."""
    with pytest.raises(ServiceBusError) as raised:
        async with (
            twins.sides()[1].async_client(retry_total=0) as client,
            client.get_queue_sender(PATH.format(index)) as sender,
        ):
            await sender.send_messages(ServiceBusMessage("x"))
    assert cause_of(raised.value) is Cause.NOT_FOUND
    return raised.value


def paths(namespace: Namespace) -> set[str]:
    return {one.description.path for one in namespace.queues()}


# ---- a secondary that refuses ----


async def test_wrong_key_is_an_event_and_the_backlog_is_created_once_the_key_is_fixed(twins: Twins) -> None:
    key, pairing = Key(twins.secondary, is_right=False), twins.pairing()
    async with started(pairing, twins.sides()[0], key.side) as (background, events):
        warning = await events.next(BacklogWarning)
        assert f"the queues of the secondary 127.0.0.1:{twins.secondary.port} could not be checked" in warning.message
        assert "401" in warning.message
        assert "b2xk" not in warning.message
        assert not background.readiness.is_ready
        assert isinstance(background.readiness.error, HttpResponseError)
        assert pairing.fault is None
        key.learn()
        await events.next(BacklogReady)
        assert background.readiness.is_ready
        assert (background.readiness.error, background.readiness.message) == (None, None)
        assert paths(twins.secondary) == {PATH.format(0), PATH.format(1)}
        assert len(events.all(BacklogWarning)) == 1


async def test_without_the_manage_right_the_event_says_what_to_do(twins: Twins) -> None:
    pairing = twins.pairing()
    async with started(pairing, *twins.sides(USER)) as (background, events):
        assert "create_backlog=False" in (await events.next(BacklogWarning)).message
        assert not background.readiness.is_ready
        assert pairing.fault is None


@asynccontextmanager
async def forbidding() -> AsyncIterator[Side]:
    """A namespace behind a network rule that forbids everything."""

    async def forbid(request: web.Request) -> web.Response:
        return web.Response(status=403)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forbid)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        _, port = runner.addresses[0]
        yield Side(f"127.0.0.1:{port}", AzureNamedKeyCredential("root", "a2V5"), use_tls=False)
    finally:
        await runner.cleanup()


@needs_plain_text
async def test_status_403_is_an_event(twins: Twins) -> None:
    pairing = twins.pairing()
    async with forbidding() as side, started(pairing, twins.sides()[0], side) as (background, events):
        assert "403" in (await events.next(BacklogWarning)).message
        assert background.readiness.message is not None
        assert pairing.fault is None


async def test_secondary_down_at_the_start_is_provisioned_when_it_is_back(twins: Twins) -> None:
    down(twins.secondary)
    async with started(twins.pairing(), *twins.sides()) as (background, events):
        assert "cannot be reached" in (await events.next(BacklogWarning)).message
        twins.secondary.faults.clear()
        await events.next(BacklogReady)
        assert len(twins.secondary.queues()) == 2
        assert background.readiness.error is None


async def test_primary_that_does_not_report_its_name_is_an_event_until_it_does(twins: Twins) -> None:
    key, pairing = Key(twins.primary, is_right=False), twins.pairing(name="")
    async with started(pairing, key.side, twins.sides()[1]) as (background, events):
        warning = await events.next(BacklogWarning)
        assert f"the primary 127.0.0.1:{twins.primary.port} did not report its name" in warning.message
        assert "primary_name" in warning.message
        assert not background.readiness.is_named.is_set()
        key.learn()
        await events.next(BacklogReady)
        assert pairing.primary_name == "contoso"


async def test_queues_that_would_lose_messages_stay_out_of_the_rotation_and_the_others_are_used(twins: Twins) -> None:
    bad = replace(OURS, path=PATH.format(1), max_delivery_count=10)
    await twins.secondary.create(bad)
    pairing = twins.pairing(backlog_cooldown=1)
    async with started(pairing, *twins.sides()) as (background, events):
        retired = await events.next(BacklogQueueRetired)
        assert retired.queue == PATH.format(1)
        assert isinstance(retired.error, BacklogConfigurationError)
        warning = await events.next(BacklogWarning)
        assert (warning.queue, "max_delivery_count is 10" in warning.message) == (PATH.format(1), True)
        assert PATH.format(0) in paths(twins.secondary)
        assert {pairing.choose_queue(pairing.new_choice()) for _ in range(20)} == {0}
        await twins.secondary.update(replace(bad, max_delivery_count=OURS.max_delivery_count))
        assert (await events.next(BacklogQueueRestored)).queue == PATH.format(1)
        await events.next(BacklogReady)
        assert background.readiness.is_ready


async def test_misconfigured_queue_found_late_is_retired(twins: Twins) -> None:
    await twins.secondary.create(replace(OURS, path=PATH.format(1), max_delivery_count=10))
    down(twins.secondary)
    pairing = twins.pairing()
    async with started(pairing, *twins.sides()) as (background, events):
        twins.secondary.faults.clear()
        assert (await events.next(BacklogQueueRetired)).queue == PATH.format(1)
        assert list(pairing.retired_queues()) == [PATH.format(1)]
        assert not background.readiness.is_ready


async def test_the_start_does_not_need_the_primary(twins: Twins) -> None:
    down(twins.primary)
    async with started(twins.pairing(strict=True), *twins.sides()) as (background, _):
        assert background.readiness.is_ready
        assert len(twins.secondary.queues()) == 2


async def test_queues_that_exist_need_no_manage_right(twins: Twins) -> None:
    await twins.secondary.create(OURS)
    pairing = twins.pairing(create_backlog=False)
    async with started(pairing, *twins.sides(USER)) as (background, _):
        assert background.readiness.is_ready
        pairing.queue_failed(1, await not_found(twins, 1))
        assert background.readiness.is_ready
    assert operations(pairing, *OperationKind) == []


# ---- strict ----


async def test_strict_a_wrong_key_fails_the_start(twins: Twins) -> None:
    error = await refuses(twins.pairing(strict=True), twins.sides()[0], Key(twins.secondary, is_right=False).side)
    assert isinstance(error, BacklogNotReadyError)
    assert isinstance(error.cause, HttpResponseError)


async def test_strict_a_missing_manage_right_fails_the_start_and_says_what_to_do(twins: Twins) -> None:
    error = await refuses(twins.pairing(strict=True), *twins.sides(USER))
    assert isinstance(error, BacklogNotReadyError)
    assert "create_backlog=False" in str(error)


@needs_plain_text
async def test_strict_a_403_fails_the_start(twins: Twins) -> None:
    async with forbidding() as side:
        error = await refuses(twins.pairing(strict=True), twins.sides()[0], side)
    assert isinstance(error, BacklogNotReadyError)


async def test_strict_a_secondary_that_is_down_fails_the_start(twins: Twins) -> None:
    down(twins.secondary)
    assert isinstance(await refuses(twins.pairing(strict=True), *twins.sides()), BacklogNotReadyError)


async def test_strict_primary_that_does_not_report_its_name_fails_the_start(twins: Twins) -> None:
    primary = Key(twins.primary, is_right=False).side
    error = await refuses(twins.pairing(name="", strict=True), primary, twins.sides()[1])
    assert isinstance(error, BacklogNotReadyError)
    assert "did not report its name" in str(error)


async def test_strict_a_queue_that_would_lose_messages_fails_the_start(twins: Twins) -> None:
    await twins.secondary.create(replace(OURS, path=PATH.format(1), max_delivery_count=10))
    error = await refuses(twins.pairing(strict=True), *twins.sides())
    assert isinstance(error, BacklogConfigurationError)
    assert (error.queue, error.property_name) == (PATH.format(1), "max_delivery_count")


async def test_strict_swapped_namespaces_fail_the_start(twins: Twins) -> None:
    await twins.secondary.create(OURS)
    error = await refuses(twins.pairing(name="", strict=True), *reversed(twins.sides()))
    assert isinstance(error, NamespacesSwappedError)
    assert error.queue == OURS.path
    assert twins.primary.queues() == []


# ---- queues that are deleted later ----


async def test_a_deleted_queue_is_created_again_and_restored_at_once(twins: Twins) -> None:
    pairing = twins.pairing(backlog_cooldown=3600)
    async with started(pairing, *twins.sides()) as (background, events):
        await twins.secondary.delete(PATH.format(1))
        error = await not_found(twins, 1)
        await asyncio.to_thread(pairing.queue_failed, 1, error)
        assert (await events.next(BacklogQueueRetired)).queue == PATH.format(1)
        assert (await events.next(BacklogQueueRestored)).queue == PATH.format(1)
        assert pairing.retired_queues() == {}
        found = twins.secondary.find(PATH.format(1))
        assert found is not None
        assert found.description.max_delivery_count == OURS.max_delivery_count
        await eventually(lambda: background.readiness.is_ready)
        assert events.all(BacklogReady) == []  # no event said that it was not ready


async def test_repeated_reports_of_a_missing_queue_create_it_once(twins: Twins) -> None:
    pairing = twins.pairing()
    async with started(pairing, *twins.sides()) as (_, events):
        await twins.secondary.delete(PATH.format(1))
        error = await not_found(twins, 1)
        before = len(operations(pairing, OperationKind.CREATE))
        await asyncio.gather(*(asyncio.to_thread(pairing.queue_failed, 1, error) for _ in range(50)))
        await events.next(BacklogQueueRestored)
        assert len(operations(pairing, OperationKind.CREATE)) == before + 1


async def test_all_deleted_queues_are_created_again(twins: Twins) -> None:
    pairing = twins.pairing(backlog_queue_count=5, backlog_cooldown=3600)
    async with started(pairing, *twins.sides()) as (background, events):
        for index in range(5):
            await twins.secondary.delete(PATH.format(index))
        error = await not_found(twins, 0)
        for index in range(5):
            pairing.queue_failed(index, error)
        for _ in range(5):
            await events.next(BacklogQueueRestored)
        await eventually(lambda: background.readiness.is_ready)
        assert len(twins.secondary.queues()) == 5


async def test_queue_deleted_while_the_key_is_wrong_is_created_once_it_is_right(twins: Twins) -> None:
    key, pairing = Key(twins.secondary), twins.pairing(backlog_cooldown=3600)
    async with started(pairing, twins.sides()[0], key.side) as (background, events):
        await twins.secondary.delete(PATH.format(0))
        error = await not_found(twins, 0)
        key.rotate()
        pairing.queue_failed(0, error)
        assert "401" in (await events.next(BacklogWarning)).message
        assert not background.readiness.is_ready
        assert pairing.fault is None
        key.learn()
        await events.next(BacklogQueueRestored)
        await events.next(BacklogReady)


def only_when_hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pauses an hour long, except after `hurry`."""

    def tried(self: RetryPace, now: float) -> None:
        self._tried_at, self._pause = now, 3600.0

    monkeypatch.setattr(RetryPace, "tried", tried)


async def test_a_secondary_that_answers_again_is_provisioned_at_once(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_when_hurried(monkeypatch)
    down(twins.secondary)
    pairing = twins.pairing(backlog_cooldown=3600)
    async with started(pairing, *twins.sides()) as (_, events):
        await events.next(BacklogWarning)
        twins.secondary.faults.clear()
        pairing.queue_failed(1, await not_found(twins, 1))
        await events.next(BacklogReady)
        assert pairing.retired_queues() == {}
        assert len(twins.secondary.queues()) == 2


async def test_deleted_queue_is_created_while_another_stays_misconfigured(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_when_hurried(monkeypatch)
    await twins.secondary.create(replace(OURS, path=PATH.format(1), max_delivery_count=10))
    pairing = twins.pairing(backlog_cooldown=3600)
    async with started(pairing, *twins.sides()) as (background, events):
        await events.next(BacklogWarning)
        await twins.secondary.delete(PATH.format(0))
        error = await not_found(twins, 0)
        pairing.queue_failed(0, error)
        assert (await events.next(BacklogQueueRestored)).queue == PATH.format(0)
        assert list(pairing.retired_queues()) == [PATH.format(1)]
        # A queue that vanishes again at once has to wait for its turn.
        await eventually(lambda: background.readiness._pace.next_time > asyncio.get_running_loop().time() + 3000)
        next_time = background.readiness._pace.next_time
        background.readiness.queue_missing(0)
        assert background.readiness._pace.next_time == next_time


async def test_sends_without_a_queue_do_not_retry_a_refusal(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    only_when_hurried(monkeypatch)
    pairing = twins.pairing()
    async with started(pairing, *twins.sides(USER)) as (background, events):
        await events.next(BacklogWarning)
        next_time = background.readiness._pace.next_time
        for _ in range(3):
            background.readiness.queue_missing(1)
        assert background.readiness._pace.next_time == next_time


async def test_reports_after_a_finished_start_change_nothing(twins: Twins) -> None:
    pairing = twins.pairing()
    async with started(pairing, *twins.sides()):
        pass
    pairing.queue_failed(0, MessagingEntityNotFoundError(message="gone"))
    assert list(pairing.retired_queues()) == [PATH.format(0)]


# ---- namespaces that are swapped ----


@pytest.fixture(params=["own names", "given name"])
def pairing_of(request: pytest.FixtureRequest, twins: Twins) -> Callable[..., Pairing]:
    """A pairing whose primary reports its name, or whose application sets it, wrongly if swapped."""
    if request.param == "own names":
        return lambda **options: twins.pairing(name="", **options)
    return lambda **options: twins.pairing(name="contoso", primary_name="contoso", **options)


async def test_swapped_namespaces_are_an_event_and_nothing_is_created(
    twins: Twins, pairing_of: Callable[..., Pairing]
) -> None:
    async with started(pairing_of(), *twins.sides()):
        pass
    before = paths(twins.secondary)
    pairing = pairing_of()
    async with started(pairing, *reversed(twins.sides())) as (background, events):
        event = await events.next(NamespacesLookSwapped)
        assert event.primary == f"127.0.0.1:{twins.secondary.port}"
        assert event.secondary == f"127.0.0.1:{twins.primary.port}"
        assert event.queue == PATH.format(0)
        assert "look swapped" in event.message
        assert "Exchange the two" in event.message
        assert isinstance(background.readiness.error, NamespacesSwappedError)
        assert background.readiness.message == event.message
        assert pairing.fault is None
        assert events.all(BacklogWarning) == []
    assert (paths(twins.secondary), paths(twins.primary)) == (before, set())


async def test_correct_order_is_never_reported_as_swapped(twins: Twins, pairing_of: Callable[..., Pairing]) -> None:
    for _ in range(2):
        async with started(pairing_of(), *twins.sides()) as (background, events):
            assert background.readiness.is_ready
            assert events.seen == []


async def test_primary_is_checked_only_before_the_first_queue_is_created(twins: Twins) -> None:
    def asked(pairing: Pairing) -> int:
        return sum(one.namespace is NamespaceRole.PRIMARY for one in operations(pairing, OperationKind.GET))

    pairings = [twins.pairing(), twins.pairing()]
    for pairing in pairings:
        async with started(pairing, *twins.sides()):
            pass
    assert [asked(pairing) for pairing in pairings] == [10, 0]


async def test_namespaces_that_are_each_others_secondary_are_not_swapped(twins: Twins) -> None:
    await twins.secondary.create(OURS)
    await twins.primary.create(replace(OURS, path="standby/x-servicebus-transfer/0"))
    for sides in (twins.sides(), tuple(reversed(twins.sides()))):
        async with started(twins.pairing(name=""), *sides) as (background, events):
            assert background.readiness.is_ready
            assert events.all(NamespacesLookSwapped) == []


async def test_one_manual_queue_confirms_the_other_direction(twins: Twins) -> None:
    await twins.secondary.create(OURS)
    async with started(twins.pairing(name=""), *reversed(twins.sides())) as (_, events):
        message = (await events.next(NamespacesLookSwapped)).message
        assert "create the queue 'standby/x-servicebus-transfer/0'" in message
        await twins.primary.create(replace(OURS, path="standby/x-servicebus-transfer/0"))
        await events.next(BacklogReady)
        assert len(twins.primary.queues()) == 2


async def test_queue_beyond_the_count_confirms_the_direction(twins: Twins) -> None:
    await twins.secondary.create(OURS)
    await twins.primary.create(replace(OURS, path="standby/x-servicebus-transfer/7"))
    async with started(twins.pairing(name=""), *reversed(twins.sides())) as (background, _):
        assert background.readiness.is_ready


async def test_misconfigured_queue_confirms_the_direction(twins: Twins) -> None:
    await twins.secondary.create(OURS)
    await twins.primary.create(QueueDescription("standby/x-servicebus-transfer/0"))
    async with started(twins.pairing(name=""), *reversed(twins.sides())) as (_, events):
        assert (await events.next(BacklogWarning)).queue == "standby/x-servicebus-transfer/0"
        assert events.all(NamespacesLookSwapped) == []


def frozen(namespace: Namespace) -> None:
    namespace.faults.add(Fault(FaultKind.BLACKHOLE))


@pytest.mark.parametrize("outage", [down, frozen])
async def test_backlog_is_created_without_an_answer_of_the_primary(
    twins: Twins, outage: Callable[[Namespace], None]
) -> None:
    outage(twins.primary)
    async with started(twins.pairing(attempt_timeout=3), *twins.sides()) as (background, _):
        assert background.readiness.is_ready
        assert len(twins.secondary.queues()) == 2


async def test_backlog_is_created_if_the_primary_forbids_the_check(twins: Twins) -> None:
    sides = twins.sides(USER)[0], twins.sides()[1]
    async with started(twins.pairing(), *sides) as (background, _):
        assert background.readiness.is_ready


async def test_swapped_namespaces_are_detected_once_the_secondary_is_up(twins: Twins) -> None:
    await twins.secondary.create(OURS)
    down(twins.primary)
    async with started(twins.pairing(name="standby"), *reversed(twins.sides())) as (_, events):
        await events.next(BacklogWarning)
        twins.primary.faults.clear()
        await events.next(NamespacesLookSwapped)
        assert twins.primary.queues() == []


# ---- the pace of retries ----


class TestRetryPace:
    def test_after_a_quiet_time_there_is_no_pause(self) -> None:
        assert RetryPace().next_time < 0

    def test_pauses_double_up_to_a_bound(self) -> None:
        pace, now, pauses = RetryPace(), 1000.0, []
        for _ in range(9):
            pace.tried(now)
            pauses.append(pace.next_time - now)
            now = pace.next_time + 0.5
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]

    def test_a_quiet_time_makes_the_next_pause_short_again(self) -> None:
        pace = RetryPace()
        for now in (0.0, 1.0, 3.0):
            pace.tried(now)
        pace.tried(3.0 + 2 * RETRY_MAX + 1)
        assert pace.next_time == 3.0 + 2 * RETRY_MAX + 1 + RETRY_MIN

    def test_hurry_shortens_the_pause_to_the_minimum(self) -> None:
        pace = RetryPace()
        for now in (0.0, 1.0, 3.0, 7.0):
            pace.tried(now)
        pace.hurry()
        assert pace.next_time == 7.0 + RETRY_MIN
