"""The choice of the backlog queue: SPEC sections 1, 3, 7 and 8."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from twinbus.pairing.backlog.rotation import Rotation, SenderChoice, session_sequence

COOLDOWN = 60.0
ERROR = OSError("unreachable")
# The queue of the sessions "", "1", "2" and "ä" of "orders" among ten, from another implementation of BLAKE2b.
GOLDEN = [0, 9, 3, 9]


def rotation_of(count: int, retired: tuple[int, ...] = ()) -> Rotation:
    """Return a rotation whose queues were retired at 0, 1, 2, … in the given order."""
    rotation = Rotation(count, COOLDOWN)
    for at, index in enumerate(retired):
        rotation.retire(index, float(at), ERROR)
    return rotation


# ---- SPEC 1: a backlog queue is chosen at random ----


def test_a_backlog_queue_is_chosen_at_random() -> None:
    rotation, random = rotation_of(10), Random(1)
    chosen = Counter(SenderChoice(rotation, random).next() for _ in range(5000))
    assert sorted(index for index in chosen if index is not None) == list(range(10))
    # 500 are expected for each; five standard deviations are about 106.
    assert all(390 < times < 610 for times in chosen.values())


def test_two_senders_choose_independently_of_each_other() -> None:
    rotation = rotation_of(1000)
    assert SenderChoice(rotation, Random(1)).next() != SenderChoice(rotation, Random(2)).next()


def test_each_sender_picks_its_queue_and_stays() -> None:
    """SPEC 3: each sender object picks its backlog queue at random, and stays."""
    choice = SenderChoice(rotation_of(10), Random(3))
    assert len({choice.next() for _ in range(100)}) == 1


# ---- SPEC 1: if a send fails, the queue leaves the rotation, and every sender learns of it ----


def test_every_sender_learns_at_once_that_a_queue_has_left_the_rotation() -> None:
    rotation = rotation_of(3)
    senders = [SenderChoice(rotation, Random(seed)) for seed in range(50)]
    before = [sender.next() for sender in senders]
    assert rotation.retire(1, 0.0, ERROR)
    after = [sender.next() for sender in senders]
    assert 1 in before
    assert 1 not in after
    # The other senders kept their queues.
    assert all(now == then for then, now in zip(before, after, strict=True) if then != 1)


def test_sender_of_a_retired_queue_picks_another_and_stays() -> None:
    rotation = rotation_of(3)
    choice = SenderChoice(rotation, Random(4))
    first = choice.next()
    assert first is not None
    rotation.retire(first, 0.0, ERROR)
    second = choice.next()
    assert second not in (first, None)
    rotation.tick(COOLDOWN)
    assert rotation.is_in_rotation(first)
    assert choice.next() == second


def test_failed_queue_is_not_tried_again_in_the_same_send() -> None:
    choice = SenderChoice(rotation_of(3), Random(5))
    tried: list[int] = []
    while (index := choice.next(tried)) is not None:
        assert index not in tried
        tried.append(index)
    assert sorted(tried) == [0, 1, 2]


def test_retiring_says_whether_the_queue_was_still_in_rotation() -> None:
    rotation = rotation_of(2)
    assert rotation.retire(0, 0.0, ERROR) is True
    assert rotation.retire(0, 1.0, ERROR) is False


def test_retirement_has_error_and_time() -> None:
    newer = TimeoutError("again")
    rotation = rotation_of(3, retired=(2, 0))
    rotation.retire(2, 9.0, newer)
    assert list(rotation.retired) == [0, 2]
    assert (rotation.retired[2].since, rotation.retired[2].error) == (9.0, newer)
    assert rotation.in_rotation == (1,)


def test_a_restored_queue_is_back_before_its_cool_down_is_over() -> None:
    rotation = rotation_of(2, retired=(0,))
    assert rotation.restore(0) is True
    assert rotation.in_rotation == (0, 1)
    assert rotation.restore(0) is False
    assert rotation.next_time() is None


def test_barred_queue_returns_only_when_it_is_restored() -> None:
    rotation = rotation_of(2)
    assert rotation.retire(0, 0.0, ERROR, is_barred=True) is True
    assert rotation.next_time() is None
    assert rotation.tick(1e9) == []
    assert rotation.retire(0, 1.0, TimeoutError("late")) is False
    assert rotation.retired[0].error is ERROR
    assert rotation.tick(1e9) == []
    assert rotation.restore(0) is True


def test_a_barred_queue_is_not_even_a_last_resort() -> None:
    rotation = rotation_of(2)
    rotation.retire(1, 0.0, ERROR, is_barred=True)
    rotation.retire(0, 1.0, ERROR)
    assert rotation.last_resort() == 0
    assert SenderChoice(rotation, Random(1)).next() == 0
    rotation.retire(0, 2.0, ERROR, is_barred=True)
    assert SenderChoice(rotation, Random(1)).next() is None
    assert rotation.choose_for_session("orders", "a") is None


@pytest.mark.parametrize("index", [-1, 3])
def test_a_queue_that_does_not_exist_cannot_retire(index: int) -> None:
    with pytest.raises(IndexError, match=f"there is no backlog queue {index}: they are 0 to 2"):
        rotation_of(3).retire(index, 0.0, ERROR)


# ---- SPEC 7: it returns after a cool-down ----


def test_a_queue_returns_after_its_cool_down() -> None:
    rotation = rotation_of(2, retired=(0,))
    assert rotation.next_time() == COOLDOWN
    assert rotation.tick(COOLDOWN - 0.001) == []
    assert not rotation.is_in_rotation(0)
    assert rotation.tick(COOLDOWN) == [0]
    assert rotation.in_rotation == (0, 1)
    assert rotation.next_time() is None
    assert rotation.tick(COOLDOWN) == []


def test_queue_that_fails_again_restarts_its_cool_down() -> None:
    rotation = rotation_of(2, retired=(0,))
    rotation.retire(0, 50.0, ERROR)
    assert rotation.tick(COOLDOWN) == []
    assert rotation.tick(50.0 + COOLDOWN) == [0]


# ---- SPEC 7: if all are retired, the one retired longest ago is tried before giving up ----


def test_if_all_are_retired_the_one_retired_longest_ago_is_tried() -> None:
    choice = SenderChoice(rotation_of(3, retired=(1, 2, 0)), Random(6))
    assert choice.next() == 1
    assert choice.next(tried=[1]) is None


def test_failed_last_resort_goes_to_the_end_of_the_queue() -> None:
    rotation = rotation_of(3, retired=(1, 2, 0))
    rotation.retire(1, 10.0, ERROR)
    assert rotation.last_resort() == 2


def test_while_one_queue_is_in_rotation_there_is_no_last_resort() -> None:
    assert rotation_of(3, retired=(1, 2)).last_resort() is None


def test_a_sender_leaves_its_last_resort_for_a_queue_that_has_returned() -> None:
    rotation = rotation_of(2, retired=(0, 1))
    choice = SenderChoice(rotation, Random(7))
    assert choice.next() == 0
    rotation.retire(0, 10.0, ERROR)
    rotation.tick(COOLDOWN + 1.0)
    assert rotation.in_rotation == (1,)
    assert choice.next() == 1


# ---- SPEC 8: order="session" chooses by hash of destination and session ----

sessions = st.text(max_size=20)
counts = st.integers(1, 20)


@given(st.text(max_size=20), sessions, counts)
def test_the_sequence_of_a_session_visits_every_queue_once(destination: str, session: str, count: int) -> None:
    assert sorted(session_sequence(destination, session, count)) == list(range(count))


@given(sessions, counts)
def test_the_queue_of_a_session_does_not_depend_on_the_spelling_of_the_destination(session: str, count: int) -> None:
    assert list(session_sequence("Orders", session, count)) == list(session_sequence("/orders/", session, count))


def test_sessions_are_spread_over_the_queues() -> None:
    chosen = Counter(next(session_sequence("orders", f"session {number}", 10)) for number in range(5000))
    assert sorted(chosen) == list(range(10))
    assert all(390 < times < 610 for times in chosen.values())


def test_same_session_id_of_two_destinations_is_independent() -> None:
    same = sum(
        next(session_sequence("orders", str(number), 10)) == next(session_sequence("events", str(number), 10))
        for number in range(1000)
    )
    assert 40 < same < 200  # one in ten by chance


def test_destination_and_session_boundaries_are_unambiguous() -> None:
    one = [next(session_sequence("a", f"b{number}", 1000)) for number in range(20)]
    other = [next(session_sequence("ab", f"{number}", 1000)) for number in range(20)]
    assert one != other


def test_the_queue_of_a_session_is_the_same_in_every_process_and_version() -> None:
    """These numbers must never change: messages of a session may already wait in that queue."""
    assert [next(session_sequence("orders", session, 10)) for session in ("", "1", "2", "ä")] == GOLDEN
    code = "from twinbus.pairing.backlog.rotation import session_sequence as s; print(next(s('orders', '1', 10)))"
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(elsewhere.stdout) == GOLDEN[1]


def test_session_of_a_retired_queue_takes_the_next_index_and_wraps_around() -> None:
    first = next(session_sequence("orders", "s", 3))
    rotation = Rotation(3, COOLDOWN)
    assert rotation.choose_for_session("orders", "s") == first
    rotation.retire(first, 0.0, ERROR)
    assert rotation.choose_for_session("orders", "s") == (first + 1) % 3
    assert rotation.choose_for_session("orders", "s", tried=[(first + 1) % 3]) == (first + 2) % 3
    rotation.tick(COOLDOWN)
    assert rotation.choose_for_session("orders", "s") == first


def test_session_has_a_last_resort() -> None:
    rotation = rotation_of(3, retired=(1, 2, 0))
    assert rotation.choose_for_session("orders", "s") == 1
    assert rotation.choose_for_session("orders", "s", tried=[1]) is None


# ---- all of it at once ----


class RotationRules(RuleBasedStateMachine):
    """Random failures and restores, seen by several senders, against a plain record of failures."""

    @initialize(count=st.integers(1, 5), seed=st.integers())
    def start(self, count: int, seed: int) -> None:
        self.now = 0.0
        self.count = count
        self.rotation = Rotation(count, COOLDOWN)
        self.senders = [SenderChoice(self.rotation, Random(seed + number)) for number in range(3)]
        self.kept: list[int | None] = [None, None, None]
        self.failures: list[tuple[float, int]] = []  # when, which queue; in order

    def out(self) -> list[int]:
        """Return the queues that failed less than a cool-down ago, earliest first."""
        last = {index: (at, order) for order, (at, index) in enumerate(self.failures)}
        return sorted((i for i, (at, _) in last.items() if self.now < at + COOLDOWN), key=lambda i: last[i])

    @rule(seconds=st.integers(0, 50))
    def time_passes(self, seconds: int) -> None:
        before = self.out()
        self.now += seconds
        assert sorted(self.rotation.tick(self.now)) == sorted(set(before) - set(self.out()))

    @rule(sender=st.integers(0, 2), failing=st.sets(st.integers(0, 4)))
    def send(self, sender: int, failing: set[int]) -> None:
        """Make one send that tries queues until one accepts."""
        tried: list[int] = []
        while True:
            chosen = self.senders[sender].next(tried)
            out = self.out()
            if chosen is None:
                assert len(out) == self.count
                assert out[0] in tried
                return
            assert chosen not in tried
            if len(out) == self.count:
                assert chosen == out[0]
            else:
                assert chosen not in out
                kept = self.kept[sender]
                assert chosen == kept or kept is None or kept in out
                self.kept[sender] = chosen
            if chosen not in failing:
                return
            tried.append(chosen)
            self.failures.append((self.now, chosen))
            assert self.rotation.retire(chosen, self.now, ERROR) == (chosen not in out)

    @invariant()
    def everybody_sees_the_same(self) -> None:
        out = self.out()
        assert list(self.rotation.retired) == out
        assert self.rotation.in_rotation == tuple(index for index in range(self.count) if index not in out)
        assert self.rotation.last_resort() == (out[0] if len(out) == self.count else None)


TestRotationRules = RotationRules.TestCase
