"""What slices have come to: the facts of their tasks, added up. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from twinbus.syphon.drain_report import DrainReport, Tally
from twinbus.syphon.settlement import facts

from . import task_words as words


class Figure(NamedTuple):
    """Facts of the same kind, added up by Spark."""

    queue: str
    destination: str
    outcome: str
    detail: str | None
    messages: int
    bytes: int
    max_age_ms: int | None


@dataclass(slots=True)
class SliceResult:
    """One slice: what moved, and what its pumps said at the end."""

    moved: int = 0
    bytes: int = 0
    oldest_ms: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    malformed: int = 0
    #: Messages that were dealt with in any way that is not undone by the next slice.
    settled: int = 0
    #: Deferred messages, by destination.
    deferred: dict[str, int] = field(default_factory=dict)
    held: int = 0
    #: Destinations that there was no token for.
    unknown: set[str] = field(default_factory=set)
    is_finished: bool = True
    repeated: int = 0
    failure: str | None = None
    ledger_failure: str | None = None

    @classmethod
    def of(cls, figures: Iterable[Figure]) -> SliceResult:
        result = cls()
        for figure in figures:
            result._add(figure)
        return result

    def _add(self, one: Figure) -> None:
        match one.outcome:
            case facts.MOVED | facts.EXPIRED_THERE | facts.REFUSED:
                self._add_settled(one)
            case facts.MALFORMED:
                self.malformed += one.messages
                self.settled += one.messages
            case facts.DEFERRED:
                self.settled += one.messages
            case words.LEFT_DEFERRED:
                self.deferred[one.destination] = self.deferred.get(one.destination, 0) + one.messages
            case words.HELD:
                self.held += one.messages
            case words.NO_TOKEN:
                self.unknown.add(one.destination)
            case words.UNFINISHED:
                self.is_finished = False
            case words.REPEATED:
                self.repeated += one.messages
            case words.FAILED:
                self.is_finished, self.failure = False, one.detail or one.outcome
            case words.LEDGER_FAILED:
                self.is_finished, self.ledger_failure = False, one.detail or one.outcome

    def _add_settled(self, one: Figure) -> None:
        tally = self.tallies.setdefault(one.destination, Tally())
        setattr(tally, one.outcome, getattr(tally, one.outcome) + one.messages)
        self.settled += one.messages
        if one.outcome == facts.MOVED:
            self.moved += one.messages
            self.bytes += one.bytes
            self.oldest_ms = max(self.oldest_ms, one.max_age_ms or 0)


@dataclass(frozen=True, slots=True)
class SparkReport:
    """What came of a drain on Spark.

    `repeated` tasks had begun before and were lost with what they could have told: then more was moved than the figures
    say. The ledger has every move.
    """

    drain: DrainReport
    slices: int
    bytes: int
    oldest_ms: int
    repeated: int

    def to_json(self) -> dict[str, Any]:
        """The contract of `twinbus syphon --spark --json`: that of `twinbus syphon --json`, and more."""
        return {
            **self.drain.to_json(),
            "slices": self.slices,
            "bytes": self.bytes,
            "oldest_seconds": round(self.oldest_ms / 1000, 3),
            "repeated_tasks": self.repeated,
        }


@dataclass(slots=True)
class Account:
    """The slices of a drain so far."""

    slices: int = 0
    moved: int = 0
    bytes: int = 0
    oldest_ms: int = 0
    malformed: int = 0
    held: int = 0
    repeated: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    #: Deferred messages, by destination.
    deferred: dict[str, int] = field(default_factory=dict)

    def add(self, result: SliceResult) -> None:
        """A slice has ended. Every queue with something in it was a part of it, so what is deferred is what it says."""
        self.slices += 1
        self.moved += result.moved
        self.bytes += result.bytes
        self.oldest_ms = max(self.oldest_ms, result.oldest_ms)
        self.malformed += result.malformed
        self.repeated += result.repeated
        self.held, self.deferred = result.held, result.deferred
        for path, tally in result.tallies.items():
            self.tallies.setdefault(path, Tally()).add(tally)

    def nothing_left(self) -> None:
        """The queues were looked at, and are empty."""
        self.held, self.deferred = 0, {}

    def report(self, seconds: float, missing: Iterable[str]) -> SparkReport:
        destinations = {path: Tally(**asdict(tally)) for path, tally in self.tallies.items()}
        for path, count in self.deferred.items():
            destinations.setdefault(path, Tally()).deferred = count
        total = Tally()
        for tally in destinations.values():
            total.add(tally)
        drain = DrainReport(destinations, self.malformed, self.held, seconds, tuple(missing), total)
        return SparkReport(drain, self.slices, self.bytes, self.oldest_ms, self.repeated)
