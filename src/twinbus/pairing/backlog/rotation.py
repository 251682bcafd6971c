"""Which backlog queue a message goes to: a random one that works.

The rotation belongs to the pairing, so that every sender learns at once when a queue has left it. What a sender does
with it is its own: it picks a queue at random and stays, to balance load between clients that don't know each other.
`error_classification.retires_queue` decides which errors retire a queue.
Pure: the time is passed in. Not thread-safe: the caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from twinbus.servicebus.entity_paths import entity_key


@dataclass(frozen=True, slots=True)
class Retirement:
    """Since when a queue is out of the rotation, and why.

    A barred queue would lose messages: no cool-down brings it back, and it is not tried as a last resort either.
    """

    since: float
    error: BaseException
    is_barred: bool = False


class Rotation:
    """The backlog queues 0 to `count` - 1; one that failed is left out until its cool-down is over."""

    def __init__(self, count: int, cooldown: float) -> None:
        self.count = count
        self.cooldown = cooldown
        # In the order of retirement, the longest retired first.
        self._retired: dict[int, Retirement] = {}

    @property
    def in_rotation(self) -> tuple[int, ...]:
        return tuple(index for index in range(self.count) if index not in self._retired)

    @property
    def retired(self) -> dict[int, Retirement]:
        """The queues out of rotation, the longest retired first."""
        return dict(self._retired)

    def is_in_rotation(self, index: int) -> bool:
        return 0 <= index < self.count and index not in self._retired

    def retire(self, index: int, now: float, error: BaseException, *, is_barred: bool = False) -> bool:
        """Take a queue out, or start its cool-down again; true if it was in rotation until now.

        A barred queue stays barred, whatever else fails there, until `restore`.
        """
        if not 0 <= index < self.count:
            raise IndexError(f"there is no backlog queue {index}: they are 0 to {self.count - 1}")
        previous = self._retired.get(index)
        if previous is not None and previous.is_barred and not is_barred:
            return False
        self._retired.pop(index, None)
        self._retired[index] = Retirement(now, error, is_barred)
        return previous is None

    def restore(self, index: int) -> bool:
        """Take a queue back at once, also a barred one; true if it was retired until now."""
        return self._retired.pop(index, None) is not None

    def tick(self, now: float) -> list[int]:
        """Take back the queues whose cool-down is over, and return them."""
        restored = [index for index, ends in self._cool_downs() if now >= ends]
        for index in restored:
            del self._retired[index]
        return restored

    def next_time(self) -> float | None:
        """When `tick` will have something to take back; None if there is no such queue."""
        return min((ends for _, ends in self._cool_downs()), default=None)

    def _cool_downs(self) -> Iterator[tuple[int, float]]:
        """The retired queues that come back by themselves, and when."""
        return ((index, one.since + self.cooldown) for index, one in self._retired.items() if not one.is_barred)

    def choose(self, random: Random, tried: Collection[int] = ()) -> int | None:
        """A queue at random among those in rotation, without those already tried; None if there is none."""
        left = [index for index in self.in_rotation if index not in tried]
        return random.choice(left) if left else None

    def last_resort(self, tried: Collection[int] = ()) -> int | None:
        """If all queues are retired, the one that has been so for longest, unless it was already tried.

        Never a barred one: an error that the caller sees is better than a message that is lost there.
        """
        if len(self._retired) < self.count:
            return None
        longest = next((index for index, one in self._retired.items() if not one.is_barred), None)
        return None if longest in tried else longest

    def choose_for_session(self, destination: str, session: str, tried: Collection[int] = ()) -> int | None:
        """The queue of a session: the first of its sequence that is in rotation, else the last resort."""
        for index in session_sequence(destination, session, self.count):
            if self.is_in_rotation(index) and index not in tried:
                return index
        return self.last_resort(tried)


class SenderChoice:
    """The queue that one sender has picked. It keeps it until that queue is retired."""

    def __init__(self, rotation: Rotation, random: Random) -> None:
        self._rotation = rotation
        self._random = random
        self._index: int | None = None

    @property
    def settled(self) -> int | None:
        """The queue that it has picked, if there is nothing to think about. To ask this no lock is needed."""
        return None if self._rotation._retired else self._index

    def next(self, tried: Collection[int] = ()) -> int | None:
        """The queue to try now, after those of the same send that were tried in vain.

        Never one of `tried`; None means that the send has to give up.
        """
        kept = self._index
        if kept is not None and kept not in tried and self._rotation.is_in_rotation(kept):
            return kept
        chosen = self._rotation.choose(self._random, tried)
        if chosen is None:
            # Not kept: as soon as a queue is back in rotation the sender picks among those.
            return self._rotation.last_resort(tried)
        self._index = chosen
        return chosen


def session_sequence(destination: str, session: str, count: int) -> Iterator[int]:
    """In which order the queues are tried for a session: from the one that its hash names, upwards and around.

    The same in every process and version, as long as the number of queues is the same.
    """
    key = f"{entity_key(destination)}\0{session}".encode("utf-8", "surrogatepass")
    first = int.from_bytes(blake2b(key, digest_size=8).digest(), "big") % count
    return ((first + step) % count for step in range(count))
