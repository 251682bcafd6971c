"""Bounds on a client's connections and parallel openings."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.sending.connection_slots import Connections


class Pool:
    """A stub link pool."""

    def __init__(self, idle_since: float | None = None, connections: Connections | None = None) -> None:
        self._since = idle_since
        self._connections = connections
        self.grown = 0

    def idle_since(self) -> float | None:
        return self._since

    def evict(self) -> None:
        self._since = None
        assert self._connections is not None
        self._connections.release()

    def close_idle(self, now: float) -> None: ...

    def grow(self) -> None:
        self.grown += 1


class Turn:
    """A waiter for an opening."""

    def __init__(self, wants: bool = True) -> None:
        self.wants = wants
        self.given = 0

    def give(self, value: None) -> bool:
        self.given += self.wants
        return self.wants


def test_growth_ends_at_the_bound() -> None:
    connections, pool = Connections(2), Pool()
    assert [connections.reserve(pool, 0.0, is_first=False) for _ in range(3)] == [True, True, False]
    connections.release()
    assert connections.reserve(pool, 0.0, is_first=False)
    assert connections.count == 2


def test_pool_without_a_link_gets_the_connection_of_the_longest_idle_link() -> None:
    connections = Connections(2)
    older, newer = Pool(1.0, connections), Pool(2.0, connections)
    for pool in (newer, older):
        connections.join(pool)
        assert connections.reserve(pool, 0.0, is_first=True)
    assert not connections.reserve(Pool(), 3.0, is_first=False)  # growth takes nothing away
    assert connections.reserve(Pool(), 3.0, is_first=True)
    assert (older.idle_since(), newer.idle_since(), connections.count) == (None, 2.0, 2)


def test_pool_without_a_connection_grows_when_one_is_free() -> None:
    connections, busy, starved = Connections(1), Pool(), Pool()
    assert connections.reserve(busy, 0.0, is_first=True)
    assert not connections.reserve(starved, 5.0, is_first=True)
    assert connections.starved_since() == 5.0
    connections.release()
    assert starved.grown == 1
    assert connections.reserve(starved, 6.0, is_first=True)
    assert connections.starved_since() == float("inf")


def test_openings_take_turns_in_order() -> None:
    connections = Connections(100, max_opening=1)
    first, second, third = Turn(), Turn(), Turn()
    assert connections.ask_to_open(first)
    assert not connections.ask_to_open(second)
    assert not connections.ask_to_open(third)
    connections.opened()
    assert (second.given, third.given) == (1, 0)
    connections.opened()
    assert third.given == 1
    connections.opened()
    assert connections.ask_to_open(first)


def test_abandoned_turn_goes_to_the_next() -> None:
    connections = Connections(100, max_opening=1)
    assert connections.ask_to_open(Turn())
    gone, left, last = Turn(wants=False), Turn(), Turn()
    for turn in (gone, left, last):
        assert not connections.ask_to_open(turn)
    connections.give_up_opening(left)
    connections.opened()
    assert (left.given, last.given) == (0, 1)


@pytest.mark.parametrize(("name", "most"), [("max_links", 256), ("max_connections", 5000)])
@pytest.mark.parametrize("value", [0, -1, "too many", 2.0, True, "8", None])
def test_bounds_are_validated(name: str, most: int, value: Any) -> None:
    if value == "too many":
        value = most + 1
    kind = ValueError if isinstance(value, int) and not isinstance(value, bool) else TypeError
    with pytest.raises(kind, match=name):
        SendAvailabilityOptions(**{name: value})
    assert getattr(SendAvailabilityOptions(**{name: most}), name) == most
