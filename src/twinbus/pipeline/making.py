"""Makes rollups of some days with Spark, and writes them where nobody sees them until a snapshot names them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from twinbus.ledger.layout import DAY_US, end_of_day_us, folder_of
from twinbus.ledger.schema import pa

from .changes import whole_hours
from .files import LedgerView, spark_path
from .overlaps import Interval
from .results import ROLLUPS as FOLDER
from .results import DayResults, Results
from .rollup_tasks import Made, blocks_of, rolling
from .rollups import ROLLUPS
from .tables import HOUR_US, ROLLUP_SCHEMAS
from .tasks import run
from .waits import COLUMNS as WAITS_COLUMNS
from .waits import plan, waits

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class Making:
    """The rollups of one run."""

    def __init__(self, spark: SparkSession, view: LedgerView, results: Results, run: str) -> None:
        self._spark = spark
        self._view = view
        self._results = results
        self._run = run
        self._pieces = 0
        #: The hours that were made, by the time of their beginning.
        self._hours: set[int] = set()

    def make(self, hours: Mapping[str, Sequence[Interval]], before: Mapping[str, DayResults]) -> dict[str, DayResults]:
        """Make some hours of some days anew, and take the days' other hours from `before`."""
        folder = f"{FOLDER}/{self._run}/{self._pieces:04}"
        self._pieces += 1
        self._hours |= {hour for some in hours.values() for one in some for hour in range(one.first, one.last, HOUR_US)}
        blocks = [
            block
            for day, times in hours.items()
            if times
            for block in blocks_of(day, self._view.days[day], times, before[day].rollups if day in before else {})
        ]
        made: defaultdict[str, list[Made]] = defaultdict(list)
        task = rolling(self._view.store, self._results, folder, blocks)
        for one in run(self._spark, task, [block.rows for block in blocks]):
            made[one["day"]].append(Made(**one))
        return {day: self._day(day, folder, before.get(day), made.get(day)) for day in hours}

    def make_waits(self, days: Mapping[str, DayResults]) -> dict[str, DayResults]:
        """Make the times in the backlog anew that may have changed with the hours that were made.

        Args:
            days: All results as they are now.
        """
        made = sorted({folder_of(hour).removeprefix("day=") for hour in self._hours} & set(days))
        if not self._table("activity", {day: days[day] for day in made}).num_rows:
            return {}
        found = plan(self._hours, self._table("activity", days), self._table("waits", days))
        times, ends = (whole_hours(Interval(hour, hour) for hour in some) for some in (found.hours, found.ends))
        # Of days that are gone from the ledger nothing can be made.
        chosen = [day for day in days if day in self._view.days and _touches(day, times)]
        if not chosen:
            return {}
        later = [day for day in self._view.days if _touches(day, ends)]
        folder = f"{FOLDER}/{self._run}/{self._pieces:04}/waits"
        self._pieces += 1
        diverts = self._view.rows(self._spark, WAITS_COLUMNS, days=chosen, within=times)
        moves = self._view.rows(self._spark, WAITS_COLUMNS, days=later, within=ends)
        old = [path for day in chosen for path in days[day].rollups.get("waits", ())]
        self._write(folder, "waits", waits(diverts, moves), old, times)
        return {
            day: replace(
                days[day],
                rollups={**days[day].rollups, "waits": self._results.files_below(f"{folder}/day={day}")},
            )
            for day in chosen
        }

    def _table(self, name: str, days: Mapping[str, DayResults]) -> pa.Table:
        paths = [path for day in days.values() for path in day.rollups.get(name, ())]
        return self._results.table(paths, ROLLUP_SCHEMAS[name])

    def _write(self, folder: str, name: str, made: DataFrame, old: Sequence[str], times: Sequence[Interval]) -> None:
        """Write the hours that were made, and the others as they were."""
        from pyspark.sql import functions as f

        names = ROLLUP_SCHEMAS[name].names
        time = names[0]
        if old:
            paths = [spark_path(self._results.url, path) for path in old]
            kept = self._spark.read.schema(made.schema).option("recursiveFileLookup", "true").parquet(*paths)
            made = made.unionByName(kept.where(~_is_in(time, times)))
        (
            # Not by way of a timestamp: the day must not depend on the session's time zone.
            made.withColumn("day", f.expr(f"date_add(date'1970-01-01', cast({time} div {DAY_US} as int))"))
            # One file for each day: reports read them one by one.
            .repartition("day")
            .sortWithinPartitions("day", *names)
            .write.partitionBy("day")
            .parquet(self._results.path(folder))
        )

    def _day(self, name: str, folder: str, before: DayResults | None, made: Sequence[Made] | None) -> DayResults:
        """What is known of a day now; nothing was made of it if its rows are the same in other files."""
        day, results = self._view.days[name], self._results
        inventory = f"{folder}/inventory/{name}.parquet"
        results.write_bytes(inventory, day.inventory())
        if before is not None and made is None:
            rollups, rows, dropped = dict(before.rollups), before.rows, before.dropped
        else:
            blocks = made or ()
            rollups = {one: [block.files[one] for block in blocks if one in block.files] for one in ROLLUPS}
            rollups["waits"] = before.rollups.get("waits", ()) if before is not None else ()
            rows, dropped = sum(block.rows for block in blocks), sum(block.dropped for block in blocks)
        return DayResults(
            rollups=rollups,
            inventory=inventory,
            files=len(day.live),
            bytes=sum(one.size for one in day.live),
            rows_in_files=day.rows,
            rows=rows,
            dropped=dropped,
            first_us=min((one.first_us for one in day.live), default=None),
            last_us=max((one.last_us for one in day.live), default=None),
        )


def _touches(day: str, times: Sequence[Interval]) -> bool:
    last = end_of_day_us(day) - 1
    return any(one.first <= last and last - DAY_US < one.last for one in times)


def _is_in(column: str, times: Sequence[Interval]) -> Column:
    from pyspark.sql import functions as f

    found = f.lit(False)
    for one in times:
        found = found | f.col(column).between(*one)
    return found
