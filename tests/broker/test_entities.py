"""Entities as a namespace keeps them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from twinbus.broker import Namespace, QueueDescription
from twinbus.broker.durations import TICKS_PER_SECOND
from twinbus.broker.entities import MAX_KEY
from twinbus.broker.store import StoreError


async def test_a_changed_lock_duration_holds_for_dead_letters_too() -> None:
    async with Namespace("contoso") as namespace:
        created = await namespace.create(QueueDescription("orders", max_delivery_count=3))
        updated = await namespace.update(replace(created.description, lock_duration=30 * TICKS_PER_SECOND))
        dead_letter = updated.queue.dead_letter
        assert dead_letter is not None
        assert dead_letter.limits.lock_ms == updated.queue.limits.lock_ms == 30_000
        assert dead_letter.limits.max_delivery_count > updated.queue.limits.max_delivery_count


async def test_when_all_keys_were_given_creating_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    async with Namespace("contoso", data=tmp_path) as namespace:
        await namespace.create(QueueDescription("orders"))
        namespace.entities._next_key = MAX_KEY  # as after two million creations
        await namespace.create(QueueDescription("last"))
        with pytest.raises(StoreError, match="2,097,151 entities"):
            await namespace.create(QueueDescription("one-more"))
        assert namespace.entities.resolve("last") is not None
    async with Namespace("contoso", data=tmp_path) as namespace:
        assert namespace.entities.resolve("last") is not None
        with pytest.raises(StoreError, match="2,097,151 entities"):
            await namespace.create(QueueDescription("one-more"))
