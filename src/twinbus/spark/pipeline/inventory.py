"""List a ledger's files through Spark, and look at the rows of those that are new."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import date
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from twinbus.ledger import layout
from twinbus.ledger.locations import escape_glob

from ..transformations.operations import file_facts, read_files
from .day_planning import InputFile, Listing, Status
from .error_inspection import is_malformed, is_missing_path, reason_of
from .run_errors import LedgerChangedError, LedgerReadError, LedgerUnreachableError

logger = logging.getLogger("twinbus.spark")

#: How often files are read before a read error fails the run, and the pause between two attempts.
ATTEMPTS = 3
PAUSE_SECONDS = 2.0
#: A task that reads a whole file has it in memory.
MOST_FETCHED_BYTES = 256 * 1024 * 1024


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
            # The content of the files is not read.
            modified = F.unix_micros("modificationTime").alias("modified")
            rows = [(row.path, row.length, row.modified) for row in frame.select("path", "length", modified).collect()]
            paths = [unquote(path) for path in frame.inputFiles()]
        except PySparkException as error:
            reason = "there is no such folder" if is_missing_path(error) else reason_of(error)
            raise LedgerUnreachableError(f"Spark finds no ledger at {self.url}: {reason}") from error
        # Spark has no rows for files without content.
        seen = {_folder_and_name(path) for path, _, _ in rows}
        rows += [(path, 0, 0) for path in paths if _folder_and_name(path) not in seen]
        files, markers, claims = [], [], []
        for path, length, changed in rows:
            folder, name = _folder_and_name(path)
            text = layout.day_of(folder)
            day = None if text is None else date.fromisoformat(text)
            if name.endswith(layout.CLAIM_SUFFIX):
                claims.append(path)
            elif day is None and name == layout.EXPIRED_MARKER:
                markers.append(path)
            else:
                place = name if day or folder == self.url.rpartition("/")[2] else f"{folder}/{name}"
                files.append(InputFile(day, place, length, changed))
        if not files and not markers:
            raise LedgerUnreachableError(f"there are no files of a ledger at {self.url}")
        return Listing(files, self._claims() if claims else {}, self._expired_before() if markers else None)

    def _claims(self) -> dict[tuple[date, str], list[str]]:
        reader = self._spark.read.option("recursiveFileLookup", "true").option(
            "pathGlobFilter", f"*{layout.CLAIM_SUFFIX}"
        )
        path = F.col("_metadata.file_path")
        found: dict[tuple[date, str], list[str]] = {}
        for row in reader.text(escape_glob(self.url)).select("value", path.alias("path")).collect():
            folder, name = _folder_and_name(row.path)
            day = layout.day_of(folder.replace("%3D", "="))
            if day is not None and row.value:
                key = date.fromisoformat(day), name.removesuffix(layout.CLAIM_SUFFIX)
                found.setdefault(key, []).append(row.value)
        return found

    def _expired_before(self) -> date | None:
        rows = (
            self._spark.read.option("wholetext", "true")
            .text(escape_glob(f"{self.url}/{layout.EXPIRED_MARKER}"))
            .collect()
        )
        return date.fromisoformat(json.loads(rows[0].value)["before"]) if rows else None

    def paths(self, files: Iterable[InputFile]) -> list[str]:
        return [f"{self.url}/day={one.day}/{one.name}" for one in files]

    def rows(self, files: Sequence[InputFile]) -> DataFrame:
        """The rows of some files."""
        return read_files(self._spark, self.url, list(map(escape_glob, self.paths(files))))

    def survey(self, files: Sequence[InputFile]) -> list[InputFile]:
        """Look at the rows of new files; those that cannot be read become unreadable.

        Raises LedgerReadError for a file that could not be read for another reason than its content, and
        LedgerChangedError if one disappeared.
        """
        found: list[InputFile] = []
        unreadable = self._unreadable(files, _looked_at, found)
        return [_checked(one) for one in found] + unreadable

    def damaged(self, files: Sequence[InputFile]) -> list[InputFile]:
        """Read files from end to end; those of them whose content is wrong, as unreadable."""
        return self._unreadable(files, _read_whole, [])

    def _unreadable(
        self,
        files: Sequence[InputFile],
        read: Callable[[LedgerFiles, Sequence[InputFile]], list[InputFile]],
        found: list[InputFile],
    ) -> list[InputFile]:
        """Read files in groups that are halved until those are alone that cannot be read."""
        groups, unreadable = [list(files)] if files else [], []
        while groups:
            group = groups.pop()
            error = self._attempt(group, read, found)
            if error is None:
                continue
            if len(group) > 1:
                middle = len(group) // 2
                groups += [group[middle:], group[:middle]]
            elif isinstance(error, _WrongContentError):
                unreadable.append(replace(group[0], status=Status.UNREADABLE, reason=str(error)))
            else:
                name = f"day={group[0].day}/{group[0].name}"
                raise LedgerReadError(f"{name} could not be read {ATTEMPTS} times: {reason_of(error)}") from error
        return unreadable

    def _can_be_fetched(self, one: InputFile) -> bool:
        """Whether the bytes of a file can be read, so that its content is to blame and not the way to it.

        The text of an error alone does not tell: stores say `Invalid` of an expired token, too.
        """
        if one.bytes > MOST_FETCHED_BYTES:
            return True
        reader = self._spark.read.format("binaryFile")
        try:
            reader.load([escape_glob(path) for path in self.paths([one])]).select(F.crc32("content")).collect()
        except Exception:  # Spark's errors have no class in common over its versions
            return False
        return True

    def _attempt(
        self,
        group: Sequence[InputFile],
        read: Callable[[LedgerFiles, Sequence[InputFile]], list[InputFile]],
        found: list[InputFile],
    ) -> Exception | None:
        """Read a group; why it could not be read, or None. A read error is retried."""
        for attempt in range(ATTEMPTS):
            try:
                found += read(self, group)
            except Exception as error:  # Spark's errors have no class in common over its versions
                if is_missing_path(error):
                    raise LedgerChangedError(f"files of the ledger disappeared: {reason_of(error)}") from error
                if is_malformed(error):
                    if len(group) > 1:
                        return error
                    if self._can_be_fetched(group[0]):
                        return _WrongContentError(reason_of(error))
                if attempt == ATTEMPTS - 1:
                    return error
                logger.warning("Reading %d files of the ledger failed, trying again: %s", len(group), reason_of(error))
                self._sleep(PAUSE_SECONDS)
            else:
                return None
        raise AssertionError("the last attempt returns")


class _WrongContentError(Exception):
    """A file could be fetched, and its content cannot be read."""


def _folder_and_name(path: str) -> tuple[str, str]:
    folder, name = path.rsplit("/", 2)[1:]
    return folder, name


def _looked_at(ledger: LedgerFiles, group: Sequence[InputFile]) -> list[InputFile]:
    facts = {(row.day, row.file): row for row in file_facts(ledger.rows(group)).collect()}
    found = []
    for one in group:
        row = facts.get((one.day, one.name))
        if row is None:
            found.append(one)  # it has no rows
            continue
        if row.known < row.rows:
            reason = f"{row.rows - row.known:,} of its {row.rows:,} rows lack op_id or ts"
            found.append(replace(one, status=Status.UNREADABLE, reason=reason))
            continue
        ids = None if row.ids is None else tuple((one.writer, int(one.lowest), int(one.highest)) for one in row.ids)
        found.append(replace(one, rows=row.rows, first_time=row.first_time, last_time=row.last_time, ids=ids))
    return found


def _read_whole(ledger: LedgerFiles, group: Sequence[InputFile]) -> list[InputFile]:
    rows = ledger.rows(group)
    rows.select(F.sum(F.xxhash64(*rows.columns))).collect()
    return []


def _checked(one: InputFile) -> InputFile:
    """A file must have content, and rows of its folder's day only."""
    if one.status is not Status.READ:
        return one
    if not one.bytes:
        return replace(one, status=Status.UNREADABLE, reason="it is empty")
    if one.first_time is None or one.last_time is None or one.day is None:
        return one
    end = layout.end_of_day_us(one.day.isoformat())
    if end - layout.DAY_US <= one.first_time and one.last_time < end:
        return one
    return replace(one, status=Status.UNREADABLE, reason="it has rows of other days than its folder's")
