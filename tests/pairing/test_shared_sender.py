"""One sender shared by many callers: a link for each call, first come, first served, and no false outage."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.servicebus.exceptions import OperationTimeoutError
from tests.pairing.paired import KINDS, PATIENCE, Pair, Stage, text

from twinbus.emulator import Fault, FaultKind, FaultPoint
from twinbus.pairing.failover.entity_failover import Healthy, Route
from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.pairing_errors import BacklogUnavailableError, NoFreeLinkError
from twinbus.pairing.pairing_state import Pairing
from twinbus.pairing.sending.pool_reports import EntityTarget
from twinbus.pairing.sending.receipt import Receipt

LATENCY = 0.03


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage.set_up() as running:
        yield running


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(stage: Stage, kind: str) -> Iterator[Pair]:
    with stage.pair(kind, failover_interval=60) as made:
        yield made
        stage.clear()


def slow_down(pair: Pair, delay: float = LATENCY) -> None:
    """Make sends to the primary as slow as with the real service."""
    pair.strike(FaultKind.SLOW, delay=delay, on=frozenset({FaultPoint.SEND}))


def routes(results: list[Any]) -> Counter[Any]:
    return Counter(one.route if isinstance(one, Receipt) else repr(one) for one in results)


def call_in_background(pair: Pair, sender: Any, **options: Any) -> Any:
    """Start a send in the background; `result()` waits for it."""
    if pair.kind == "sync":
        threads = ThreadPoolExecutor(1)
        future = threads.submit(sender.send_messages, text("slow"), **options)
        threads.shutdown(wait=False)
        return future
    return asyncio.run_coroutine_threadsafe(sender.sender.send_messages(text("slow"), **options), pair.stage.loop._loop)


def test_burst_goes_to_a_healthy_primary(pair: Pair) -> None:
    slow_down(pair)
    sender = pair.sender()
    assert routes(pair.at_once(sender, 100)) == {Route.PRIMARY: 100}
    assert (pair.received, pair.events) == (100, [])
    assert pair.links <= pair.pairing.options.max_links


def test_one_caller_after_the_other_needs_one_link(pair: Pair) -> None:
    sender = pair.sender()
    for _ in range(5):
        sender.send_messages(text())
    assert pair.links == 1


def test_there_are_never_more_links_than_allowed(stage: Stage, kind: str) -> None:
    with stage.pair(kind, max_links=3) as pair:
        slow_down(pair)
        sender = pair.sender()
        assert routes(pair.at_once(sender, 40)) == {Route.PRIMARY: 40}
        assert pair.links == 3
        stage.clear()


def test_at_most_four_links_of_a_sender_open_at_the_same_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(pair)
    sender = pair.sender()
    pool = sender._delivery._primary
    opening: list[int] = []
    open_one = pool._open_one

    def counted() -> bool:
        is_opened = open_one()
        opening.append(len(pool._opening))
        return bool(is_opened)

    monkeypatch.setattr(pool, "_open_one", counted)
    pair.at_once(sender, 40)
    assert max(opening) == 4


def test_a_suspect_entity_gets_one_link_at_a_time_and_a_recovered_one_twice_as_many_each_time() -> None:
    pairing = Pairing(SendAvailabilityOptions(failover_interval=60), "contoso")
    entity = pairing.entity("orders")
    target = EntityTarget(pairing, entity)
    assert [target.openings_at_once(live) for live in (0, 1, 8)] == [4, 4, 4]
    pairing.sent_failed(entity, pairing.begin(entity), OSError("refused"))
    assert [target.openings_at_once(live) for live in (0, 1, 8)] == [1, 1, 1]
    pairing.fail_over("orders")
    pairing.fail_back("orders")
    assert [target.openings_at_once(live) for live in (0, 1, 2, 4, 8)] == [1, 1, 2, 4, 4]


def test_the_link_that_was_used_last_is_taken_first(pair: Pair) -> None:
    slow_down(pair)
    sender = pair.sender()
    pool = sender._delivery._primary
    pair.at_once(sender, 16)
    pair.stage.wait_until(lambda: not pool._opening)
    idle = list(pool._idle)
    assert len(idle) > 1
    for _ in range(3):
        sender.send_messages(text())
        assert pool._idle == idle


def test_callers_are_served_first_come_first_served(stage: Stage, kind: str) -> None:
    """64 callers on 16 links: one that gives its link back cannot take it again before the others."""
    with stage.pair(kind, max_links=16) as pair:
        slow_down(pair)
        sender = pair.sender()
        pair.at_once(sender, 64)  # all links are open
        ends = time.monotonic() + 3.0
        counts: Counter[int] = Counter()
        if kind == "sync":

            def calls(caller: int) -> None:
                while time.monotonic() < ends:
                    sender.send_messages(text())
                    counts[caller] += 1

            threads = [threading.Thread(target=calls, args=(caller,)) for caller in range(64)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
        else:

            async def calls_async(caller: int) -> None:
                while time.monotonic() < ends:
                    await sender.sender.send_messages(text())
                    counts[caller] += 1

            async def all_callers() -> None:
                await asyncio.gather(*map(calls_async, range(64)))

            stage.loop.run(all_callers())
        assert len(counts) == 64
        assert min(counts.values()) >= max(counts.values()) / 2
        stage.clear()


def test_call_that_times_out_waiting_reports_that_nothing_was_tried(stage: Stage, kind: str) -> None:
    with stage.pair(kind, max_links=1) as pair:
        sender = pair.sender()
        sender.send_messages(text())
        slow_down(pair, 0.4)
        others = [call_in_background(pair, sender) for _ in range(6)]
        stage.wait_until(lambda: len(sender._delivery._primary._waiting) == 5)
        with pytest.raises(NoFreeLinkError, match="Nothing was tried") as raised:
            sender.send_messages(text("impatient"), timeout=1.0)
        assert isinstance(raised.value, OperationTimeoutError)
        assert [other.result(PATIENCE).route for other in others] == [Route.PRIMARY] * 6
        assert (pair.received, sum(pair.stored), pair.events) == (7, 0, [])
        stage.clear()


def test_call_that_times_out_before_an_answer_blames_no_other_call(stage: Stage, kind: str) -> None:
    with stage.pair(kind, attempt_timeout=30) as pair:
        sender = pair.sender()
        pair.pairing.fail_over(pair.path)
        pair.freeze(pair.secondary)
        with pytest.raises(BacklogUnavailableError) as raised:
            sender.send_messages(text("alone"), timeout=1.0)
        (cause,) = raised.value.backlog_errors.values()
        assert isinstance(cause, NoFreeLinkError)
        assert "has not answered yet" in str(cause)
        assert "other calls" not in str(cause)
        stage.clear()


def test_impatient_callers_cause_no_outage(pair: Pair) -> None:
    """With a millisecond each, nearly all give up; no one takes that for an outage."""
    slow_down(pair)
    sender = pair.sender()
    for seconds in (0.001, 0.002, 0.01, 0.03):
        for result in pair.at_once(sender, 16, timeout=seconds):
            assert isinstance(result, (Receipt, NoFreeLinkError, BacklogUnavailableError))
    assert sender.send_messages(text()).route is Route.PRIMARY
    assert isinstance(pair.pairing.entity(pair.path).machine.state, Healthy)
    assert pair.pairing.entity(pair.path).machine.evidence.silent_since is None
    assert pair.pairing.retired_queues() == {}


def test_a_slow_answer_on_an_open_link_gets_the_whole_attempt(stage: Stage, kind: str) -> None:
    with stage.pair(kind, attempt_timeout=3.0, failover_interval=60) as pair:
        sender = pair.sender()
        sender.send_messages(text())
        slow_down(pair, 2.0)
        receipt = sender.send_messages(text("slow"))
        assert (receipt.route, receipt.attempts) == (Route.PRIMARY, 1)
        assert (pair.received, pair.events) == (2, [])
        stage.clear()


def test_a_timeout_on_an_open_link_is_not_sent_to_the_primary_again(stage: Stage, kind: str) -> None:
    with stage.pair(kind, attempt_timeout=1.0, failover_interval=60) as pair:
        sender = pair.sender()
        sender.send_messages(text())
        pair.strike(FaultKind.DROP_ACK, on=frozenset({FaultPoint.SEND}))
        receipt = sender.send_messages(text("unanswered"))
        assert (receipt.route, receipt.attempts) == (Route.BACKLOG, 2)
        assert (pair.received, sum(pair.stored)) == (2, 1)
        assert isinstance(pair.pairing.entity(pair.path).machine.state, Healthy)
        stage.clear()


# ---- cancellation ----


def test_callers_cancelled_while_waiting_cost_nothing(stage: Stage) -> None:
    with stage.pair("aio", max_links=2, failover_interval=60) as pair:
        slow_down(pair)
        sender = pair.sender()
        pair.at_once(sender, 4)

        async def with_hang_ups() -> list[Any]:
            sends = [asyncio.create_task(sender.sender.send_messages(text(str(number)))) for number in range(40)]
            await asyncio.sleep(0)
            for send in sends[10:16]:
                send.cancel()
            return await asyncio.gather(*sends, return_exceptions=True)

        results = stage.loop.run(with_hang_ups())
        assert sum(isinstance(one, asyncio.CancelledError) for one in results) == 6
        assert routes([one for one in results if isinstance(one, Receipt)]) == {Route.PRIMARY: 34}
        assert (pair.received, pair.links, sum(pair.stored), pair.events) == (4 + 34, 2, 0, [])
        stage.clear()


def test_a_call_that_is_cancelled_on_the_wire_costs_its_own_link_only(stage: Stage) -> None:
    with stage.pair("aio", failover_interval=60) as pair:
        sender = pair.sender()
        pair.at_once(sender, 4)
        slow_down(pair, 0.5)

        async def one_hangs_up() -> list[Any]:
            sends = [asyncio.create_task(sender.sender.send_messages(text(str(number)))) for number in range(4)]
            await asyncio.sleep(0.2)
            sends[0].cancel()
            return await asyncio.gather(*sends, return_exceptions=True)

        results = stage.loop.run(one_hangs_up())
        assert isinstance(results[0], asyncio.CancelledError)
        assert [(one.route, one.attempts) for one in results[1:]] == [(Route.PRIMARY, 1)] * 3
        stage.clear()
        ids = Counter(message.message_id for message in pair.peek())
        assert max(ids.values()) == 1
        assert (sum(pair.stored), pair.events) == (0, [])


# ---- outages ----


def test_many_callers_get_through_an_outage(pair: Pair) -> None:
    sender = pair.sender()
    pair.at_once(sender, 8)
    pair.take_down()
    assert routes(pair.at_once(sender, 64)) == {Route.BACKLOG: 64}
    assert sum(pair.stored) == 64


def test_a_link_that_fails_to_open_while_others_work_only_stops_growth(pair: Pair) -> None:
    slow_down(pair)
    sender = pair.sender()
    sender.send_messages(text())
    pair.strike(FaultKind.REFUSE, on=frozenset({FaultPoint.ATTACH}))
    assert routes(pair.at_once(sender, 12)) == {Route.PRIMARY: 12}
    assert (pair.links, sum(pair.stored), pair.events) == (1, 0, [])


@pytest.mark.parametrize("failover_interval", [0, 60])
def test_a_connection_that_is_refused_at_once_while_a_call_is_under_way_is_no_evidence(
    stage: Stage, kind: str, failover_interval: int
) -> None:
    """As where a machine has run out of ports: what is connected works, and nothing else can connect."""
    with stage.pair(kind, failover_interval=failover_interval) as pair:
        slow_down(pair, 0.2)
        sender = pair.sender()
        sender.send_messages(text())
        stage.primary.call(
            stage.primary.namespace.faults.add, Fault(FaultKind.REFUSE, on=frozenset({FaultPoint.CONNECT}))
        )
        assert routes(pair.at_once(sender, 8)) == {Route.PRIMARY: 8}
        assert (pair.links, sum(pair.stored), pair.events) == (1, 0, [])
        stage.clear()


def test_a_refused_connection_counts_once_no_call_is_under_way(stage: Stage, kind: str) -> None:
    with stage.pair(kind, failover_interval=0) as pair:
        slow_down(pair)
        sender = pair.sender()
        pair.at_once(sender, 8)
        stage.wait_until(lambda: not sender._delivery._primary._opening)
        pair.take_down()
        assert routes(pair.at_once(sender, 8)) == {Route.BACKLOG: 8}
        assert pair.pairing.route(pair.pairing.entity(pair.path)).route is Route.BACKLOG
        stage.clear()


def test_after_a_failover_no_link_to_the_primary_is_left(pair: Pair) -> None:
    slow_down(pair)
    sender = pair.sender()
    pair.at_once(sender, 16)
    assert pair.links > 1
    pair.pairing.fail_over(pair.path)
    pair.stage.wait_until(lambda: pair.links == 0)
    assert sender.send_messages(text()).route is Route.BACKLOG
    pair.pairing.fail_back(pair.path)
    assert routes(pair.at_once(sender, 16)) == {Route.PRIMARY: 16}


def test_callers_that_wait_for_a_link_are_rerouted_at_once(stage: Stage, kind: str) -> None:
    with stage.pair(kind, max_links=1, attempt_timeout=30, failover_interval=60) as pair:
        sender = pair.sender()
        sender.send_messages(text())
        pair.strike(FaultKind.BLACKHOLE, on=frozenset({FaultPoint.SEND}))
        others = [call_in_background(pair, sender) for _ in range(4)]
        stage.wait_until(lambda: len(sender._delivery._primary._waiting) == 3)
        pair.pairing.fail_over(pair.path)
        stage.wait_until(lambda: sum(pair.stored) == 3)
        stage.clear()
        assert Counter(other.result(PATIENCE).route for other in others)[Route.BACKLOG] >= 3


# ---- connections of a client ----


def test_senders_share_the_connections_of_their_client(stage: Stage, kind: str) -> None:
    with stage.pair(kind, max_connections=2) as pair:
        slow_down(pair)
        senders = [pair.sender() for _ in range(4)]
        for sender in senders:
            assert routes(pair.at_once(sender, 6)) == {Route.PRIMARY: 6}
            assert pair.links <= 2 + 1  # one may still say good-bye
        assert pair.pairing.primary_connections.count <= 2
        for sender in senders:
            assert sender.send_messages(text()).route is Route.PRIMARY
        stage.clear()


def test_busy_senders_do_not_starve_one_that_has_no_connection(stage: Stage, kind: str) -> None:
    with stage.pair(kind, max_connections=1) as pair:
        slow_down(pair)
        busy, starved = pair.sender(), pair.sender()
        busy.send_messages(text())
        others = [call_in_background(pair, busy) for _ in range(20)]
        assert starved.send_messages(text()).route is Route.PRIMARY
        assert {other.result(PATIENCE).route for other in others} == {Route.PRIMARY}
        stage.clear()


def test_idle_links_are_closed_except_one(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(pair)
    sender = pair.sender()
    pair.at_once(sender, 16)
    pool = sender._delivery._primary
    links = pair.links
    assert links > 2
    pool.close_idle(pair.pairing.clock() + 30.0)
    assert pair.links == links
    pool.close_idle(pair.pairing.clock() + 61.0)
    pair.stage.wait_until(lambda: pair.links == 1)
    assert sender.send_messages(text()).route is Route.PRIMARY


def test_all_links_are_closed_at_the_same_time(pair: Pair) -> None:
    slow_down(pair)
    sender = pair.sender()
    pair.at_once(sender, 64)
    started = time.monotonic()
    sender.close()
    assert time.monotonic() - started < 5.0
    pair.stage.wait_until(lambda: pair.links == 0)
    assert pair.pairing.primary_connections.count == 0


def test_namespace_wide_slowness_is_not_an_outage_for_a_cold_burst(stage: Stage, kind: str) -> None:
    """Openings are slow, too: all callers wait for the first links."""
    with stage.pair(kind, failover_interval=60, attempt_timeout=10) as pair:
        pair.primary.call(pair.primary.namespace.faults.add, Fault(FaultKind.SLOW, delay=0.2))
        assert routes(pair.at_once(pair.sender(), 20)) == {Route.PRIMARY: 20}
        assert pair.events == []
        stage.clear()
