"""Bounds on a client's connections and parallel openings."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.pairing.options import SendAvailabilityOptions
from twinbus.pairing.sending.connection_slots import OPENING_SECONDS, Connections


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
    assert connections.ask_to_open(first, is_first=True)
    assert not connections.ask_to_open(second, is_first=True)
    assert not connections.ask_to_open(third, is_first=True)
    connections.opened(first)
    assert (second.given, third.given) == (1, 0)
    connections.opened(second)
    assert third.given == 1
    connections.opened(third)
    assert connections.ask_to_open(first, is_first=True)


def test_abandoned_turn_goes_to_the_next() -> None:
    connections = Connections(100, max_opening=1)
    opening, gone, left, last = Turn(), Turn(wants=False), Turn(), Turn()
    assert connections.ask_to_open(opening, is_first=True)
    for turn in (gone, left, last):
        assert not connections.ask_to_open(turn, is_first=True)
    connections.opened(left)
    connections.opened(opening)
    assert (left.given, last.given) == (0, 1)


def test_first_link_of_a_pool_opens_before_more_links_of_others() -> None:
    connections = Connections(100, max_opening=1)
    opening, growth, first = Turn(), Turn(), Turn()
    assert connections.ask_to_open(opening, is_first=True)
    assert not connections.ask_to_open(growth, is_first=False)
    assert not connections.ask_to_open(first, is_first=True)
    connections.opened(opening)
    assert (growth.given, first.given) == (0, 1)


def test_opening_that_gets_no_answer_makes_room_for_others() -> None:
    connections = Connections(100, max_opening=1)
    unanswered, healthy, last = Turn(), Turn(), Turn()
    assert connections.ask_to_open(unanswered, is_first=True)
    assert not connections.ask_to_open(healthy, is_first=True)
    connections.tick(OPENING_SECONDS - 0.5)
    assert healthy.given == 0
    connections.tick(0.5)
    assert healthy.given == 1
    assert not connections.ask_to_open(last, is_first=True)
    connections.opened(unanswered)  # its place was given away already
    assert last.given == 0
    connections.opened(healthy)
    assert last.given == 1


@pytest.mark.parametrize(("name", "most"), [("max_links", 256), ("max_connections", 5000)])
@pytest.mark.parametrize("value", [0, -1, "too many", 2.0, True, "8", None])
def test_bounds_are_validated(name: str, most: int, value: Any) -> None:
    if value == "too many":
        value = most + 1
    kind = ValueError if isinstance(value, int) and not isinstance(value, bool) else TypeError
    with pytest.raises(kind, match=name):
        SendAvailabilityOptions(**{name: value})
    assert getattr(SendAvailabilityOptions(**{name: most}), name) == most
