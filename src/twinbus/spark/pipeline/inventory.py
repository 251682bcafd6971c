"""List a ledger's files through Spark, and look at the rows of those that are new."""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import Any
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from twinbus.ledger import layout
from twinbus.ledger.locations import escape_glob

from ..transformations.operations import file_facts, read_files
from .day_planning import IdRange, InputFile, Listing, Status
from .error_inspection import is_malformed, is_missing_path, reason_of
from .run_errors import LedgerReadError, LedgerUnreachableError

logger = logging.getLogger("twinbus.spark")

#: How often a file is read before a read error fails the run, and the pause between two attempts.
ATTEMPTS = 3
PAUSE_SECONDS = 2.0
#: A task that reads a whole file has it in memory.
MOST_FETCHED_BYTES = 256 * 1024 * 1024
#: Day and name of the file that says which days were removed on purpose.
_EXPIRED = (None, layout.EXPIRED_MARKER)


class LedgerFiles:
    """A ledger as Spark sees it.

    Args:
        url: The place as Spark takes it.
    """

    def __init__(self, spark: SparkSession, url: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._spark = spark
        self.url = url.rstrip("/")
        self._sleep = sleep

    def listing(self) -> Listing:
        """The files that are there now. Raises LedgerUnreachableError."""
        reader = self._spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        try:
            frame = reader.load(escape_glob(self.url))
            # Spark has no rows for files without content. The content of the others is not read.
            sizes = {self._place(unquote(path)): (0, 0) for path in frame.inputFiles()}
            for row in frame.select("path", "length", F.unix_micros("modificationTime").alias("modified")).collect():
                sizes[self._place(row.path)] = row.length, row.modified
        except PySparkException as error:
            reason = "there is no such folder" if is_missing_path(error) else reason_of(error)
            raise LedgerUnreachableError(f"Spark finds no ledger at {self.url}: {reason}") from error
        files: list[InputFile] = []
        has_notes = False
        for (day, name), (length, modified) in sizes.items():
            if name.endswith(layout.CLAIM_SUFFIX) or (day, name) == _EXPIRED:
                has_notes = True
            else:
                files.append(InputFile(day, name, length, modified))
        if not files and not has_notes:
            raise LedgerUnreachableError(f"there are no files of a ledger at {self.url}")
        return Listing(files, *self._notes()) if has_notes else Listing(files)

    def _notes(self) -> tuple[dict[date, dict[str, list[str]]], date | None]:
        """The files that compacted ones replace, by day; and before which day the ledger is expired."""
        glob = f"{{*{layout.CLAIM_SUFFIX},{layout.EXPIRED_MARKER}}}"
        reader = self._spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", glob)
        path = F.col("_metadata.file_path").alias("path")
        claims: defaultdict[date, dict[str, list[str]]] = defaultdict(dict)
        expired_before = None
        for row in reader.text(escape_glob(self.url), wholetext=True).select("value", path).collect():
            day, name = self._place(unquote(row.path))
            compacted = layout.parse_sidecar(name)
            if (day, name) == _EXPIRED:
                expired_before = date.fromisoformat(json.loads(row.value)["before"])
            elif day is not None and compacted is not None:
                claims[day][str(compacted)] = layout.decode_claims(row.value.encode())
        return claims, expired_before

    def _place(self, path: str) -> tuple[date | None, str]:
        """The day and the name of a file; outside the ledger's day folders no day, and the name with its folder."""
        above, folder, name = path.rsplit("/", 3)[1:]
        ledger = self.url.rpartition("/")[2]
        day = layout.day_of(folder) if above == ledger else None
        if day is not None:
            return date.fromisoformat(day), name
        return None, name if folder == ledger else f"{folder}/{name}"

    def paths(self, files: Iterable[InputFile]) -> list[str]:
        return [f"{self.url}/day={file.day}/{file.name}" for file in files]

    def rows(self, files: Sequence[InputFile]) -> DataFrame:
        """The rows of some files."""
        return read_files(self._spark, self.url, list(map(escape_glob, self.paths(files))))

    def survey(self, files: Sequence[InputFile]) -> list[InputFile]:
        """Look at the rows of new files; those that cannot be read become unreadable. Raises as `damaged`."""
        surveyed: list[InputFile] = []
        for group, facts in self._read(files, file_facts):
            if isinstance(facts, str):
                surveyed.append(group[0].left_out(Status.UNREADABLE, facts))
            else:
                by_file = {(row.day, row.file): row for row in facts}
                surveyed += [_surveyed(file, by_file.get((file.day, file.name))) for file in group]
        return surveyed

    def damaged(self, files: Sequence[InputFile]) -> list[InputFile]:
        """Read files from end to end; those of them whose content is wrong, as unreadable.

        Raises LedgerReadError for a file that cannot be read for another reason than its content, and Spark's error
        for one that has disappeared.
        """
        groups = self._read(files, lambda rows: rows.select(F.sum(F.xxhash64(*rows.columns))))
        return [group[0].left_out(Status.UNREADABLE, facts) for group, facts in groups if isinstance(facts, str)]

    def _read(
        self, files: Sequence[InputFile], compute: Callable[[DataFrame], DataFrame]
    ) -> Iterator[tuple[Sequence[InputFile], list[Any] | str]]:
        """Compute something from files, in groups that are halved until damaged files are alone.

        Yields each group with the result, or a damaged file with the reason.
        """
        groups = [(files, 1)] if files else []
        while groups:
            group, attempt = groups.pop()
            try:
                rows = compute(self.rows(group)).collect()
            except Exception as error:  # Spark's errors have no class in common over its versions
                if is_missing_path(error):
                    raise
                is_damaged, reason, file = is_malformed(error), reason_of(error), group[0]
                if len(group) > 1:
                    middle = len(group) // 2
                    groups += [(group[middle:], 1), (group[:middle], 1)]
                elif is_damaged and self._can_be_fetched(file):
                    yield group, reason
                elif attempt == ATTEMPTS:
                    name = f"day={file.day}/{file.name}"
                    raise LedgerReadError(f"{name} could not be read {ATTEMPTS} times: {reason}") from error
                else:
                    groups.append((group, attempt + 1))
                    is_damaged = False
                if not is_damaged:
                    logger.warning("Reading %d files of the ledger failed, trying again: %s", len(group), reason)
                    self._sleep(PAUSE_SECONDS)
            else:
                yield group, rows

    def _can_be_fetched(self, file: InputFile) -> bool:
        """Whether the bytes of a file can be read, so that its content is to blame and not the way to it.

        The text of an error alone does not tell: stores say `Invalid` of an expired token, too.
        """
        if file.bytes > MOST_FETCHED_BYTES:
            return True
        reader = self._spark.read.format("binaryFile")
        try:
            reader.load(list(map(escape_glob, self.paths([file])))).select(F.crc32("content")).collect()
        except Exception:  # Spark's errors have no class in common over its versions
            return False
        return True


def _surveyed(file: InputFile, facts: Any) -> InputFile:
    """The file with the facts of its rows, or as unreadable. A file without rows has no facts."""
    if not file.bytes:
        return file.left_out(Status.UNREADABLE, "it is empty")
    if facts is None:
        return file
    if facts.valid < facts.rows:
        wrong = f"{facts.rows - facts.valid:,} of its {facts.rows:,} rows"
        return file.left_out(Status.UNREADABLE, f"{wrong} lack op_id or ts, or are of another day than its folder's")
    ids = None if facts.ids is None else tuple(IdRange(*map(int, entry)) for entry in facts.ids)
    return replace(file, rows=facts.rows, first_time=facts.first_time, last_time=facts.last_time, ids=ids)
