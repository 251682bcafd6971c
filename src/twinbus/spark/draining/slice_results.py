"""Add up the facts that the tasks of slices report. Pure."""

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
    """One slice: what was moved, and what its pumps reported at the end."""

    moved: int = 0
    bytes: int = 0
    oldest_ms: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    malformed: int = 0
    #: Messages that were moved, dead-lettered or deferred: the next slice does not have to.
    settled: int = 0
    #: Deferred messages, by destination.
    deferred: dict[str, int] = field(default_factory=dict)
    held: int = 0
    #: Destinations without a token.
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

    def _add(self, figure: Figure) -> None:
        match figure.outcome:
            case facts.MOVED | facts.EXPIRED_THERE | facts.REFUSED:
                self._add_settled(figure)
            case facts.MALFORMED:
                self.malformed += figure.messages
                self.settled += figure.messages
            case facts.DEFERRED:
                self.settled += figure.messages
            case words.LEFT_DEFERRED:
                self.deferred[figure.destination] = self.deferred.get(figure.destination, 0) + figure.messages
            case words.HELD:
                self.held += figure.messages
            case words.NO_TOKEN:
                self.unknown.add(figure.destination)
            case words.UNFINISHED:
                self.is_finished = False
            case words.REPEATED:
                self.repeated += figure.messages
            case words.FAILED:
                self.is_finished, self.failure = False, figure.detail or figure.outcome
            case words.LEDGER_FAILED:
                self.is_finished, self.ledger_failure = False, figure.detail or figure.outcome

    def _add_settled(self, figure: Figure) -> None:
        tally = self.tallies.setdefault(figure.destination, Tally())
        setattr(tally, figure.outcome, getattr(tally, figure.outcome) + figure.messages)
        self.settled += figure.messages
        if figure.outcome == facts.MOVED:
            self.moved += figure.messages
            self.bytes += figure.bytes
            self.oldest_ms = max(self.oldest_ms, figure.max_age_ms or 0)


@dataclass(frozen=True, slots=True)
class SparkReport:
    """The result of a drain on Spark.

    `repeated` tasks are second attempts: the first one was lost with its figures, so more was moved than the figures
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
        """Add a slice. It had every queue with messages, so its numbers of deferred ones replace the earlier ones."""
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
        """The queues are empty."""
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
