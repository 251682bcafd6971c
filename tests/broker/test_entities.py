"""Entities as a namespace keeps them."""

from __future__ import annotations

from dataclasses import replace

from twinbus.broker import Namespace, QueueDescription
from twinbus.broker.durations import TICKS_PER_SECOND


async def test_a_changed_lock_duration_holds_for_dead_letters_too() -> None:
    async with Namespace("contoso") as namespace:
        created = await namespace.create(QueueDescription("orders", max_delivery_count=3))
        updated = await namespace.update(replace(created.description, lock_duration=30 * TICKS_PER_SECOND))
        dead_letter = updated.queue.dead_letter
        assert dead_letter is not None
        assert dead_letter.limits.lock_ms == updated.queue.limits.lock_ms == 30_000
        assert dead_letter.limits.max_delivery_count > updated.queue.limits.max_delivery_count
