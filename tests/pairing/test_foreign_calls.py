"""Functions of the application that raise, hang or exit are logged once, counted and harmless."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from tests.client.threads import ThreadedTwins, eventually

from twinbus import (
    Condition,
    EntityState,
    Event,
    FailoverPolicy,
    PairedServiceBusClient,
    Route,
    SendAvailabilityOptions,
)
from twinbus.emulator import DEFAULT, Fault, FaultKind
from twinbus.emulator import FaultPoint as At
from twinbus.ledger.recorder import MemoryRecorder, Operation, OperationKind
from twinbus.pairing import background, foreign_calls
from twinbus.pairing.events import PingSent
from twinbus.pairing.pairing_state import Pairing

TIMEOUT = 10.0  # of a send; what blocks does so for far longer
BLOCKED = 60.0


def raise_error(_: Any) -> None:
    raise ValueError("a bug in the application")


def exit_the_process(_: Any) -> None:
    raise SystemExit(3)


def interrupt(_: Any) -> None:
    raise KeyboardInterrupt


class Blocking:
    """A function that does not return until released."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def __call__(self, _: Any) -> None:
        self.let_go.wait(BLOCKED)


class ForeignRecorder:
    """A recorder of the application."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        self._function = function

    def record(self, operation: Operation) -> None:
        self._function(operation)


@pytest.fixture(scope="module")
def twins() -> Iterator[ThreadedTwins]:
    with ThreadedTwins.running(DEFAULT) as running:
        running.queue("orders")
        yield running
        running.clear()


def client(twins: ThreadedTwins, recorder: Any = None, **changed: Any) -> PairedServiceBusClient:
    given = {
        "backlog_queue_count": 1,
        "failover_interval": 0,
        "ping_primary_interval": 1,
        "attempt_timeout": 5,
        "primary_name": "contoso",
        **changed,
    }
    options = SendAvailabilityOptions(**given)
    return PairedServiceBusClient(*twins.texts, options, recorder=recorder, **twins.client_options)


def go_through_an_outage(twins: ThreadedTwins, paired: PairedServiceBusClient) -> None:
    """Send before, during and after an outage, each call within its timeout."""
    sender = paired.get_queue_sender("orders")

    def send() -> Route:
        return sender.send_messages(ServiceBusMessage("x"), timeout=TIMEOUT).route

    assert send() is Route.PRIMARY
    twins.strike(Fault(FaultKind.REJECT, entity="orders", on=frozenset({At.SEND})))
    assert send() is Route.BACKLOG
    assert send() is Route.BACKLOG
    twins.clear()
    eventually(lambda: paired.status().entities[0].state is EntityState.PROBATION)
    assert send() is Route.PRIMARY


@pytest.mark.parametrize("misbehave", [raise_error, exit_the_process, interrupt, Blocking])
@pytest.mark.parametrize("role", ["recorder", "callback"])
def test_misbehaving_function_does_not_affect_an_outage(
    twins: ThreadedTwins,
    role: str,
    misbehave: Callable[[Any], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(foreign_calls, "SLOW_SECONDS", 0.1)
    misbehave = Blocking() if misbehave is Blocking else misbehave
    paired = client(twins, ForeignRecorder(misbehave) if role == "recorder" else None)
    if role == "callback":
        paired.on_event(misbehave)
    with paired:
        go_through_an_outage(twins, paired)
        assert paired.status().backlog_is_ready
        if isinstance(misbehave, Blocking):
            eventually(lambda: getattr(paired.status().application_errors, role) == 1)
        else:
            eventually(lambda: getattr(paired.status().application_errors, role) >= 3)
        started = time.monotonic()
    assert time.monotonic() - started < BLOCKED / 2
    assert paired.status().condition is Condition.CLOSED
    if isinstance(misbehave, Blocking):
        misbehave.let_go.set()
        assert caplog.text.count(f"A {role} of the application does not return") == 1
    else:
        assert caplog.text.count(f"A {role} of the application raised") == 1
    eventually(lambda: not [one for one in threading.enumerate() if one.name == f"twinbus-{role}"])


@pytest.mark.parametrize("misbehave", [raise_error, exit_the_process, interrupt, Blocking()])
def test_failing_policy_falls_back_to_the_default(
    twins: ThreadedTwins, misbehave: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with client(twins, policy=FailoverPolicy(misbehave)) as paired:
        go_through_an_outage(twins, paired)
        assert paired.status().application_errors.policy >= 1
    if isinstance(misbehave, Blocking):
        misbehave.let_go.set()
    assert caplog.text.count("A policy of the application") == 1


def test_a_policy_of_the_application_decides(twins: ThreadedTwins) -> None:
    asked: list[BaseException] = []

    def never(error: BaseException) -> bool:
        asked.append(error)
        return False

    with client(twins, policy=FailoverPolicy(never)) as paired, paired.get_queue_sender("orders") as sender:
        twins.strike(Fault(FaultKind.REJECT, entity="orders", on=frozenset({At.SEND})))
        with pytest.raises(ServiceBusError) as raised:
            sender.send_messages(ServiceBusMessage("x"))
        twins.clear()
        assert raised.value in asked
        assert paired.status().application_errors.policy == 0


def test_values_for_a_slow_recorder_are_dropped_and_counted(
    twins: ThreadedTwins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_calls, "MAX_WAITING", 2)
    blocking = Blocking()
    with client(twins, ForeignRecorder(blocking)) as paired:
        sender = paired.get_queue_sender("orders")
        for _ in range(10):
            sender.send_messages(ServiceBusMessage("x"), timeout=TIMEOUT)
        errors = paired.status().application_errors
        assert errors.dropped == errors.recorder >= 7
        blocking.let_go.set()


def test_stuck_call_is_reported_even_without_new_values(twins: ThreadedTwins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_calls, "SLOW_SECONDS", 0.1)
    monkeypatch.setattr(background, "TIDY_EVERY", 0.1)
    blocking = Blocking()
    with client(twins) as paired:
        paired.on_event(blocking)
        paired.fail_over("orders")
        eventually(lambda: paired.status().application_errors.callback == 1)
        blocking.let_go.set()


def test_a_callback_may_close_the_client(twins: ThreadedTwins, caplog: pytest.LogCaptureFixture) -> None:
    paired, is_closed = client(twins), threading.Event()

    def close(_: Event) -> None:
        paired.close()
        is_closed.set()

    paired.start()
    paired.on_event(close)
    paired.fail_over("orders")
    assert is_closed.wait(TIMEOUT)
    assert "of the application" not in caplog.text


def test_a_recorder_of_the_application_has_all_rows_after_a_close(twins: ThreadedTwins) -> None:
    kept = MemoryRecorder()
    with client(twins, ForeignRecorder(kept.record)) as paired:
        sender = paired.get_queue_sender("orders")
        ids = [sender.send_messages(ServiceBusMessage("x")).message_ids[0] for _ in range(50)]
    assert [one.message_id for one in kept.operations if one.operation is OperationKind.SEND] == ids


def test_built_in_recorders_need_no_thread_but_subclasses_do() -> None:
    class Chatty(MemoryRecorder):
        def record(self, operation: Operation) -> None:
            super().record(operation)

    own, overriding = MemoryRecorder(), Chatty()
    assert Pairing(SendAvailabilityOptions(), "contoso", recorder=own).recorder is own
    assert Pairing(SendAvailabilityOptions(), "contoso", recorder=overriding).recorder is not overriding


@pytest.mark.parametrize("recorder", [object(), "a folder"])
def test_invalid_recorder_is_refused(twins: ThreadedTwins, recorder: Any) -> None:
    with pytest.raises(TypeError, match="recorder must have a method record"):
        client(twins, recorder)


def test_events_come_in_order_and_none_after_the_end() -> None:
    pairing = Pairing(SendAvailabilityOptions(), "contoso")
    seen: list[Event] = []
    end = pairing.on_event(seen.append)
    published = [PingSent(entity=str(number)) for number in range(100)]
    for one in published:
        pairing.publish(one)
    eventually(lambda: len(seen) == 100)
    end()
    pairing.publish(PingSent(entity="late"))
    assert seen == published
