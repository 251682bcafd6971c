"""What a task does for rollups: read some hours of a day, sum them up, and write them beside the hours that stay.

It holds one row group at a time, and of one slice what may be there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np

from twinbus.ledger.layout import DAY_US, end_of_day_us
from twinbus.ledger.reading import LedgerFile
from twinbus.ledger.recorder import Stage
from twinbus.ledger.schema import pa, pc
from twinbus.ledger.store import Store

from .codes import Array
from .events import first_rows
from .files import DayFiles
from .overlaps import Interval, find_overlaps
from .results import Results
from .rollups import ENCODED, ROLLUPS, Rolling, columns_of
from .slices import MOST_ROWS, cuts
from .tables import HOUR_US, ROLLUP_SCHEMAS
from .tasks import Task, write_table


@dataclass(frozen=True, slots=True)
class Block:
    """Some whole hours of a day."""

    #: As 2026-11-16.
    day: str
    times: Interval
    #: Those of its times that are to be made anew.
    anew: Sequence[Interval]
    folder: str
    #: The files that have rows of these hours; those among them that may have rows in common, and at which times.
    files: Sequence[str]
    shared: Sequence[str]
    doubtful: Sequence[Interval]
    #: What is looked through for repeated rows at a time.
    slices: Sequence[Interval]
    #: What was made of the day before, by rollup; paths below the results.
    before: Mapping[str, Sequence[str]]
    #: About as many.
    rows: int


@dataclass(frozen=True, slots=True)
class Made:
    """What a task has made of a block."""

    day: str
    #: What was written, by rollup; paths below the results.
    files: Mapping[str, str]
    #: Rows of the ledger, each counted once, and how many it says it lacks.
    rows: int
    dropped: int


def blocks_of(
    day: str, files: DayFiles, anew: Sequence[Interval], before: Mapping[str, Sequence[str]], most: int = MOST_ROWS
) -> list[Block]:
    """A day in blocks of about so many rows, at least an hour each."""
    last = end_of_day_us(day) - 1
    first = last - DAY_US + 1
    ends = {at - at % HOUR_US + HOUR_US - 1 for at in cuts(files.live, -(-files.rows // most))} | {last}
    overlaps = find_overlaps([one.extent for one in files.live])
    shared = [files.live[at].name for at in sorted(overlaps.files)]
    found = []
    for end in sorted(ends):
        times = Interval(first, end)
        wanted = [one for one in (_common(times, one) for one in anew) if one is not None]
        doubtful = [one for one in (_common(times, one) for one in overlaps.times) if one is not None]
        live = [one for one in files.live if one.first_us <= end and first <= one.last_us]
        parts = -(-sum(one.rows for one in live) // most) if doubtful else 1
        bounds = [first - 1, *(at for at in cuts(live, parts) if first <= at < end), end]
        slices = [Interval(after + 1, until) for after, until in pairwise(bounds)]
        names = [one.name for one in live]
        found.append(
            Block(
                day=day,
                times=times,
                anew=wanted,
                folder=files.folder,
                files=names,
                shared=[one for one in shared if one in names],
                doubtful=doubtful,
                slices=slices,
                before=before,
                rows=files.rows // len(ends),
            )
        )
        first = end + 1
    return found


def _common(one: Interval, other: Interval) -> Interval | None:
    found = Interval(max(one.first, other.first), min(one.last, other.last))
    return found if found.first <= found.last else None


def rolling(
    ledger: Store, results: Results, folder: str, blocks: Sequence[Block], rollups: Sequence[str] = ROLLUPS
) -> Task:
    """The task that makes the rollups of a block, by its number, as `Made` in JSON's types."""
    return lambda number: asdict(roll_up(ledger, results, folder, blocks[number], rollups))


def roll_up(ledger: Store, results: Results, folder: str, block: Block, rollups: Sequence[str] = ROLLUPS) -> Made:
    """Make the rollups of one block, and write them."""
    rolled = Rolling(rollups)
    if block.anew:
        for times in block.slices:
            for rows in _rows(ledger, block, times, columns_of(rollups)):
                rolled.add(rows)
    for name in rollups:
        if block.before.get(name):
            made = results.table(block.before[name], ROLLUP_SCHEMAS[name])
            time = made[0].to_numpy()
            is_kept = _is_in(time, [block.times]) & ~_is_in(time, block.anew)
            rolled.keep(name, made.filter(pa.array(is_kept)))
    tables = {name: table for name, table in rolled.tables().items() if len(table)}
    files = {name: write_table(results, f"{folder}/{name}/day={block.day}", [table]) for name, table in tables.items()}
    usage = tables.get("usage", ROLLUP_SCHEMAS["usage"].empty_table())
    gaps = usage.filter(pc.equal(usage["stage"], int(Stage.LEDGER)))
    return Made(block.day, files, pc.sum(usage["rows"]).as_py() or 0, pc.sum(gaps["count"]).as_py() or 0)


def _rows(ledger: Store, block: Block, times: Interval, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of some times that are to be made anew, each once."""
    doubtful: list[pa.Table] = []
    for name in block.files:
        wanted = [*columns, "op_id"] if name in block.shared else columns
        with LedgerFile(ledger, block.folder, name, encoded=ENCODED) as file:
            for table in file.tables(wanted, within=times):
                us = table["ts"].cast(pa.int64()).to_numpy()
                is_here = _is_in(us, [times]) & _is_in(us, block.anew)
                if name in block.shared:
                    is_doubtful = _is_in(us, block.doubtful)
                    doubtful.append(table.filter(pa.array(is_here & is_doubtful)))
                    is_here &= ~is_doubtful
                yield (table if is_here.all() else table.filter(pa.array(is_here))).select(columns)
    if doubtful:
        found = pa.concat_tables(doubtful)
        yield found.take(pa.array(first_rows(found["op_id"].combine_chunks()))).select(columns)


def _is_in(us: Array, times: Sequence[Interval]) -> Array:
    found = np.zeros(len(us), bool)
    for one in times:
        found |= (one.first <= us) & (us <= one.last)
    return found
