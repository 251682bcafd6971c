"""Brings results up to date with a ledger: finds what has changed, makes those hours anew, and publishes.

There is no state but the results themselves, and they are a function of the ledger's rows: whatever happens to a run,
the next one ends with the same results.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from twinbus import __version__
from twinbus.ledger.errors import LedgerChanged
from twinbus.ledger.reading import SetAside

from .changes import changed_hours, pieces
from .errors import PipelineError
from .files import DayFiles, LedgerView, facts_of, survey
from .making import Making
from .overlaps import Interval
from .results import Outrun, Results, Snapshot, new_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("twinbus.pipeline")

#: How often a run starts over because another one was faster, or files were compacted away.
ATTEMPTS = 3
#: How often Spark may fail in one run because of damaged files, which are then set aside.
DAMAGES = 3

#: Is told what is being done, and how many rows of how many are.
Tell = Callable[[str, int, int], None]
#: Says what reconciliation finds, before a run is published: given Spark, the ledger, the store, what it said last
#: time, and the name of the run, below whose folder its tables go.
Reconcile = Callable[["SparkSession", LedgerView, Results, "Mapping[str, Any] | None", str], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Ingested:
    """What a run has done."""

    #: The results as they are now.
    snapshot: Snapshot
    #: The days that were made anew, and the rows of their files.
    days: Sequence[str]
    rows: int
    #: False if nothing had changed.
    is_published: bool


def ingest(
    spark: SparkSession,
    ledger: str | os.PathLike[str],
    results: Results,
    *,
    only: Collection[str] | None = None,
    reconcile: Reconcile | None = None,
    tell: Tell = lambda what, done, total: None,
    options: Mapping[str, Any] | None = None,
) -> Ingested:
    """Bring the results up to date. Publishes nothing if nothing has changed.

    Args:
        only: Look at these days only, as 2026-11-16. Not with `reconcile`, which has to know all.
        options: For fsspec's file system of the ledger.

    Raises:
        ValueError: Both `only` and `reconcile` are given.
        LedgerNotFound: There is nothing at this place.
        PipelineError: Others published, or changed the ledger, again and again.
    """
    if only is not None and reconcile is not None:
        raise ValueError("only must not be given with reconcile, which has to know all days")
    for _ in range(ATTEMPTS):
        try:
            return _Run(spark, ledger, results, only, reconcile, tell, options).go()
        except (Outrun, LedgerChanged) as error:
            logger.info("Starting over: %s", error)
    raise PipelineError(f"others were faster {ATTEMPTS} times; try again when they are done")


class _Run:
    """One attempt."""

    def __init__(
        self,
        spark: SparkSession,
        ledger: str | os.PathLike[str],
        results: Results,
        only: Collection[str] | None,
        reconcile: Reconcile | None,
        tell: Tell,
        options: Mapping[str, Any] | None,
    ) -> None:
        self._spark = spark
        self._results = results
        self._only = only
        self._reconcile = reconcile
        self._tell = tell
        self._run = new_run()
        self._base = results.highest()
        self._before = results.latest()
        #: What results there are, and the files they were made from; both grow with the work.
        self._days = dict(self._before.days) if self._before else {}
        self._files = {
            name: DayFiles.of(f"day={name}", facts_of(results.read_bytes(day.inventory)))
            for name, day in self._days.items()
            if self._is_looked_at(name)
        }
        tell("looking for files", 0, 0)
        known = {day: files.listed for day, files in self._files.items()}
        self._view = survey(ledger, known, only=only, options=options)
        self._making = Making(spark, self._view, results, self._run)
        #: The days that Spark reads now.
        self._at_work: Sequence[str] = ()

    def go(self) -> Ingested:
        made: dict[str, int] = {}
        for damages in range(DAMAGES + 1):
            try:
                made |= self._update()
                found = self._reconciled(is_new=bool(made))
                break
            except Exception as error:  # Spark's errors have no class in common over its versions
                damaged = self._view.check(self._at_work) if damages < DAMAGES else []
                if not damaged:
                    raise
                logger.warning("Spark could not read %d files (%s)", len(damaged), type(error).__name__)
        snapshot = self._snapshot(found)
        if self._before is not None and _is_same(self._before, snapshot):
            return Ingested(self._before, (), 0, is_published=False)
        published = self._results.publish(snapshot, after=self._base)
        return Ingested(published, sorted(made), sum(made.values()), is_published=True)

    def _update(self) -> dict[str, int]:
        """Make what has changed anew; the rows of each day that was."""
        changed = {name: day for name, day in self._view.days.items() if self._hours(name) is not None}
        rows = {name: day.rows for name, day in changed.items()}
        done, total = 0, sum(rows.values())
        for piece in pieces(changed):
            self._tell("making rollups", done, total)
            self._at_work = piece
            hours = {name: self._hours(name) or [] for name in piece}
            self._days |= self._making.make(hours, {name: self._days[name] for name in piece if name in self._days})
            self._files |= {name: changed[name] for name in piece}
            done += sum(rows[name] for name in piece)
        self._tell("making rollups", done, total)
        self._at_work = tuple(self._view.days)
        if changed:
            self._days |= self._making.make_waits(self._days)
        return rows

    def _hours(self, name: str) -> list[Interval] | None:
        """The hours of a day that are to be made anew, perhaps none; None if its files are as they were."""
        day, before = self._view.days[name], self._files.get(name)
        return None if before is not None and before.listed == day.listed else changed_hours(before, day)

    def _reconciled(self, *, is_new: bool) -> Mapping[str, Any] | None:
        before = self._before.reconciliation if self._before else None
        if self._reconcile is None:
            return None if is_new else before  # what was found in other rows must not stand beside these
        self._tell("reconciling", 0, 0)
        return self._reconcile(self._spark, self._view, self._results, before, self._run)

    def _snapshot(self, reconciliation: Mapping[str, Any] | None) -> Snapshot:
        days = {
            # Days that were removed from the ledger keep their results.
            name: replace(day, is_gone=name not in self._view.days) if self._is_looked_at(name) else day
            for name, day in sorted(self._days.items())
        }
        return Snapshot(
            run=self._run,
            versions={"twinbus": __version__, "spark": self._spark.version},
            days=days,
            set_aside=self._set_aside(),
            reconciliation=reconciliation,
        )

    def _set_aside(self) -> tuple[SetAside, ...]:
        before = self._before.set_aside if self._before else ()
        # Of days that were not looked at nothing new is known.
        kept = [one for one in before if one.path.startswith("day=") and not self._is_looked_at(one.path[4:14])]
        return tuple(sorted([*kept, *self._view.set_aside], key=lambda one: one.path))

    def _is_looked_at(self, day: str) -> bool:
        return self._only is None or day in self._only


def _is_same(before: Snapshot, now: Snapshot) -> bool:
    """Whether there is nothing new to tell."""
    return (
        dict(before.days) == dict(now.days)
        and list(before.set_aside) == list(now.set_aside)
        and before.reconciliation == now.reconciliation
    )
