"""Uncertain lock durations and differing clocks must not expire messages early."""

from __future__ import annotations

import pytest
from tests.emulator.contract.bus import let_pass
from tests.syphon.bus import eventually, message
from tests.syphon.pumping import Pair, numbered

from twinbus.amqp.codec import sections
from twinbus.amqp.codec.types import Long, Symbol, Timestamp
from twinbus.emulator import DEFAULT
from twinbus.envelope import aliases
from twinbus.syphon.receiving.restorer import LOCK_SECONDS, Restorer
from twinbus.syphon.terms import Terms

LONG = 300  # seconds, the longest lock of the service


@pytest.mark.parametrize("known", [None, LONG])
async def test_a_message_in_a_queue_with_long_locks_does_not_expire_too_early(known: float | None) -> None:
    async with Pair(DEFAULT, lock_seconds=LONG) as pair:
        await pair.create("orders")
        await pair.put(numbered("orders", [1], seconds=100))
        await let_pass(pair.secondary, pair.clock, 50)
        # If locks lasted a minute, its lock would mean that it is 290 seconds old.
        report = await pair.drain(lock_seconds=known)
        assert (report.total.moved, report.total.expired) == (1, 0)


async def test_message_expires_when_the_lock_duration_is_unknown() -> None:
    async with Pair(DEFAULT) as pair:
        await pair.create("orders")
        await pair.put(numbered("orders", [1], seconds=100))
        await let_pass(pair.secondary, pair.clock, 100 + LONG)
        report = await pair.drain(lock_seconds=None)
        assert (report.total.moved, report.total.expired) == (0, 1)


async def test_lock_duration_is_estimated_from_a_fresh_message() -> None:
    async with Pair(DEFAULT) as pair:
        await pair.create("orders")
        await pair.put(numbered("orders", [1], seconds=30))
        await let_pass(pair.secondary, pair.clock, 35)
        restorer = Restorer("remaining")
        (old,) = (one.encoded() for one in pair.backlog.peek(0, 1))
        assert not restorer.restore(_locked(old, pair, 35), 0.0).expired
        # Delivered at once: its lock began when it was enqueued.
        assert not restorer.restore(_locked(old, pair, 0), 20.0).expired
        assert restorer.restore(_locked(old, pair, 35), 20.1 + 35).expired


def _locked(payload: bytes, pair: Pair, waited: int) -> bytes:
    """A message delivered `waited` seconds after it was enqueued, under a lock of a minute."""
    parts = sections.split_sections(payload)
    entries = dict(sections.map_entries(parts.message_annotations))
    enqueued = sections.entry_value(entries["x-opt-enqueued-time"])
    until = Timestamp(enqueued + 1000 * (waited + LOCK_SECONDS))
    entries["x-opt-locked-until"] = sections.entry(Symbol("x-opt-locked-until"), until)
    written = sections.map_section(sections.MESSAGE_ANNOTATIONS, list(entries.values()))
    return written + parts.properties + parts.application_properties + parts.body


async def test_local_clock_does_not_expire_messages() -> None:
    async with Pair(DEFAULT) as pair:
        await pair.create("orders")
        pair.clock.ahead = -800.0  # by the local clock everything is 800 seconds old
        pair.secondary.clock_was_set()
        await pair.put(numbered("orders", [1], seconds=60))
        async with pair.running(lock_seconds=None):
            await pair.until("orders", 1)
            await eventually(lambda: pair.is_backlog_empty)


def test_nothing_expires_without_lock_annotations() -> None:
    facts = {"x-opt-enqueued-time": Timestamp(1), "x-opt-sequence-number": Long(1)}
    annotations = [sections.entry(Symbol(name), value) for name, value in facts.items()]
    properties = [sections.entry(aliases.PATH, "orders"), sections.entry(aliases.TIME_TO_LIVE, Long(10_000))]
    payload = (
        sections.map_section(sections.MESSAGE_ANNOTATIONS, annotations)
        + sections.map_section(sections.APPLICATION_PROPERTIES, properties)
        + sections.split_sections(message()).body
    )
    assert not Restorer("remaining").restore(payload, 1e6).expired


@pytest.mark.parametrize("seconds", [0, 0.5, 301, -1])
def test_lock_duration_out_of_bounds_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="lock_seconds must be from 1 to 300"):
        Terms(lock_seconds=seconds)
