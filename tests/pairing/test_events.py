"""Events are typed, and no subscriber can affect a send: SPEC section 8."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime

import pytest

from twinbus.pairing import events
from twinbus.pairing.events import (
    BacklogQueueRestored,
    BacklogQueueRetired,
    BacklogReady,
    BacklogWarning,
    Diverted,
    Event,
    EventBus,
    FailedOver,
    Faulted,
    LedgerAvailable,
    LedgerUnavailable,
    Moved,
    NamespacesLookSwapped,
    OversizeWarning,
    PingFailed,
    PingSent,
    PumpStopped,
    Recovered,
    StarvedWarning,
    Suspected,
    SuspicionCleared,
    check_callback,
)

ERROR = RuntimeError("gone")
EVENTS = [
    Suspected(entity="orders", error=ERROR),
    SuspicionCleared(entity="orders"),
    FailedOver(entity="orders", error=ERROR),
    PingSent(entity="orders"),
    PingFailed(entity="orders", error=ERROR, next_ping_in=60.0),
    Recovered(entity="orders"),
    BacklogQueueRetired(queue="contoso/x-servicebus-transfer/0", error=ERROR),
    BacklogQueueRestored(queue="contoso/x-servicebus-transfer/0"),
    Diverted(entity="orders", queue="contoso/x-servicebus-transfer/0", count=1),
    Moved(entity="orders", queue="contoso/x-servicebus-transfer/0", count=1),
    PumpStopped(queue="contoso/x-servicebus-transfer/0", error=ValueError("x")),
    LedgerUnavailable(message="No space left on device", stops_syphon=True),
    LedgerAvailable(),
    Faulted(error=ERROR),
    OversizeWarning(entity="orders", size=262_000, limit=262_144, overhead=200),
    BacklogWarning(message="other lock duration", queue="contoso/x-servicebus-transfer/0"),
    BacklogReady(),
    StarvedWarning(lag=3.0),
    NamespacesLookSwapped(
        primary="standby.example", secondary="contoso.example", queue="contoso/x-servicebus-transfer/0", message="look"
    ),
]


def test_every_event_has_an_example_in_this_file() -> None:
    kinds = {one for one in vars(events).values() if isinstance(one, type) and issubclass(one, Event)}
    assert {type(one) for one in EVENTS} == kinds - {Event}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_event_has_a_utc_time_and_is_immutable(event: Event) -> None:
    assert event.at.tzinfo is UTC
    assert abs((datetime.now(UTC) - event.at).total_seconds()) < 3600
    with pytest.raises(FrozenInstanceError):
        event.at = datetime.now(UTC)  # type: ignore[misc]


def test_all_subscribers_get_every_event_in_order() -> None:
    bus, first, second = EventBus(), [], []  # type: ignore[var-annotated]
    bus.subscribe(first.append)
    bus.subscribe(second.append)
    for event in EVENTS:
        bus.publish(event)
    assert first == second == EVENTS


def test_unsubscribed_callback_gets_no_events() -> None:
    bus, seen, other = EventBus(), [], []  # type: ignore[var-annotated]
    unsubscribe = bus.subscribe(seen.append)
    bus.subscribe(other.append)
    bus.publish(EVENTS[0])
    unsubscribe()
    unsubscribe()
    bus.publish(EVENTS[1])
    assert seen == EVENTS[:1]
    assert other == EVENTS[:2]


def test_one_of_two_subscriptions_of_the_same_callback_can_be_ended() -> None:
    bus, seen = EventBus(), []  # type: ignore[var-annotated]
    unsubscribe = bus.subscribe(seen.append)
    bus.subscribe(seen.append)
    unsubscribe()
    bus.publish(EVENTS[0])
    assert seen == EVENTS[:1]


def test_raising_callback_is_logged_and_others_still_run(caplog: pytest.LogCaptureFixture) -> None:
    bus, seen = EventBus(), []  # type: ignore[var-annotated]

    def broken(event: Event) -> None:
        raise ValueError("a bug in the application")

    bus.subscribe(broken)
    bus.subscribe(seen.append)
    with caplog.at_level(logging.ERROR, "twinbus"):
        bus.publish(EVENTS[0])
    assert seen == EVENTS[:1]
    assert "Suspected" in caplog.text
    assert "a bug in the application" in caplog.text


def test_a_callback_may_end_its_own_subscription() -> None:
    bus, seen = EventBus(), []

    def once(event: Event) -> None:
        seen.append(event)
        unsubscribe()

    unsubscribe = bus.subscribe(once)
    bus.publish(EVENTS[0])
    bus.publish(EVENTS[1])
    assert seen == EVENTS[:1]


def test_coroutine_function_is_refused_as_callback() -> None:
    async def callback(event: Event) -> None: ...

    with pytest.raises(TypeError, match="callback must be a plain function"):
        check_callback(callback)  # type: ignore[arg-type]


def test_non_callable_callback_is_refused() -> None:
    with pytest.raises(TypeError, match="callback must be a plain function"):
        check_callback(None)  # type: ignore[arg-type]
