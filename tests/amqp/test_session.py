"""The pure functions of the session module."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.client.session import runs, unsettled_disposition
from twinbus.amqp.codec import performatives as amqp
from twinbus.amqp.codec.encoding import encode
from twinbus.amqp.codec.frames import split_frames
from twinbus.amqp.codec.performatives import decode_performative, described

NUMBERS = st.integers(0, 2**32 - 1)


@given(st.sets(st.integers(0, 60) | NUMBERS))
def test_runs_cover_exactly_the_numbers(numbers: set[int]) -> None:
    found = runs(numbers)
    covered = [number for first, last in found for number in range(first, last + 1)]
    assert covered == sorted(numbers)
    assert all(later[0] > earlier[1] + 1 for earlier, later in itertools.pairwise(found)), "as few as can be"


@given(
    st.integers(0, 65535),
    NUMBERS,
    NUMBERS,
    st.sampled_from([amqp.Accepted(), amqp.Released(), amqp.Rejected(amqp.Error("x:no", "d" * 400, {}))]),
)
def test_unsettled_disposition_round_trips(channel: int, first: int, last: int, state: object) -> None:
    buffer = bytearray(unsettled_disposition(channel, first, last, encode(described(state))))
    ((_, number, body),) = split_frames(buffer, 65536)
    assert number == channel
    performative, end = decode_performative(body, 0)
    assert end == len(body)
    assert performative == amqp.Disposition(amqp.ROLE_RECEIVER, first, last, False, state)
