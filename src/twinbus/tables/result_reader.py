"""Read the result tables without Spark, from a folder or from any URL that fsspec knows.

    <results>/<table>/day=YYYY-MM-DD/*.parquet   the tables of `table_schemas.TABLES`; `day` is in the path only
    <results>/_inputs/{0,1}/*.parquet            files of the ledger that the last two runs listed
    <results>/_generation/*.parquet              one row: which run wrote the tables, and whether it is complete

A run replaces partitions while others read. So a reader of several files reads `_generation` before and after
(`read_consistent`), and starts again if a run changed the tables in between.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

from twinbus.ledger.ledger_errors import ExtraMissingError, reason_of
from twinbus.ledger.locations import without_secrets
from twinbus.ledger.schema import pa, pq

from .arrow_schemas import TIMESTAMP, arrow_schema, micros
from .table_errors import (
    DamagedTableError,
    NoResultsError,
    ResultsBusyError,
    ResultsFormatError,
    ResultsVersionError,
    StorageError,
)
from .table_schemas import GENERATION, INPUTS, TABLES, VERSION, Table

#: Files that are read at the same time: object stores are slow, but serve many requests at once.
READERS = 8
#: Smaller files are fetched in one request, larger ones are read in parts.
WHOLE_FILE_BYTES = 8 * 1024 * 1024
#: Seconds to wait for a run that is writing, and longest pause between two attempts.
PATIENCE = 60.0
LONGEST_PAUSE = 5.0

COMPLETE = "complete"
PARQUET = "parquet"

_DAY = "day="
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Folders by which other formats are recognised, below a table.
_FOREIGN = {"_delta_log": "delta", "metadata": "iceberg"}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The row of `_generation`: the last run that wrote the tables."""

    version: int
    number: int
    run: str
    state: str
    format: str
    started: datetime | None
    finished: datetime | None
    reconciled: bool
    drained: bool
    patience_us: int
    horizon_days: int
    days: Sequence[Mapping[str, Any]] | None
    twinbus: str
    spark: str

    @property
    def is_complete(self) -> bool:
        return self.state == COMPLETE


class _VanishedError(DamagedTableError):
    """A listed file is gone, usually because a run replaced it."""


class Results:
    """The result tables in one folder. Nothing is read until a method is called."""

    def __init__(self, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
        """Open a folder or URL; `options` go to fsspec's file system.

        Raises:
            ValueError: The path is empty, the protocol is unknown, or the options do not fit the file system.
            ImportError: The package for this protocol is not installed.
        """
        try:
            from fsspec.core import url_to_fs
            from fsspec.implementations.local import LocalFileSystem
        except ImportError as error:
            raise ExtraMissingError from error
        text = os.fspath(url)
        if not text:
            raise ValueError("the path of the results must not be empty")
        try:
            self._fs, root = url_to_fs(text, **(options or {}))
        except TypeError as error:
            raise ValueError(f"{without_secrets(text)}: the storage options do not fit: {_first_line(error)}") from None
        self._root = root.rstrip("/")
        #: The folder or URL without secrets, for messages.
        self.place = without_secrets(text).rstrip("/")
        is_local = isinstance(self._fs, LocalFileSystem)
        #: The same as a URL.
        self.url = f"file:///{self._root.lstrip('/')}" if is_local else self.place

    def exists(self) -> bool:
        """Whether there are tables, complete or not."""
        known = {GENERATION.name, INPUTS.name, *TABLES}
        return not known.isdisjoint(self._names(""))

    def generation(self) -> Generation | None:
        """Return the last run that wrote the tables; None if `_generation` is missing or being replaced.

        Raises:
            ResultsVersionError: The tables have a version that this release does not read.
            ResultsFormatError: The tables are not Parquet.
            DamagedTableError: The file cannot be read.
            StorageError: The store cannot be read.
        """
        for name in self._names(GENERATION.name):
            if name in _FOREIGN:
                raise self._wrong_format(_FOREIGN[name])
        try:
            rows = [row for path, size in self._files(GENERATION) for row in self._raw_rows(path, size)]
        except _VanishedError:
            return None
        if len(rows) != 1:
            return None
        row, path = rows[0], f"{self.place}/{GENERATION.name}"
        version, release = row.get("version"), row.get("twinbus")
        if not isinstance(version, int):
            raise _damaged(path, "has no version")
        if version != VERSION:
            age = "a later" if version > VERSION else "an earlier"
            todo = "upgrade twinbus" if version > VERSION else "remove them and run `twinbus pipeline run` again"
            raise ResultsVersionError(
                f"{self.place}: the results were written by {age} release of twinbus ({release}), version {version} of"
                f" the tables; this release reads version {VERSION}: {todo}"
            )
        if row.get("format") != PARQUET:
            raise self._wrong_format(str(row.get("format")))
        try:
            times = {name: _moment(row[name]) for name in ("started", "finished")}
            return Generation(**{name: row[name] for name in GENERATION.names} | times)
        except KeyError as error:
            raise _damaged(path, f"has no column {error.args[0]}") from None

    def read(
        self,
        table: Table,
        *,
        since: date | None = None,
        until: date | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the rows of a table for the days from `since` to `until`, inclusive; none if the folder is missing.

        Args:
            columns: Only these columns; all by default.

        Raises:
            DamagedTableError: A file is missing, cannot be read, or lacks a column.
            StorageError: The store cannot be read.
        """
        schema = _schema(table, columns)
        parts = self.map_files(table, lambda rows: rows, since=since, until=until, columns=columns)
        return pa.concat_tables([schema.empty_table(), *parts])

    def map_files(
        self,
        table: Table,
        reduce: Callable[[pa.Table], _T],
        *,
        since: date | None = None,
        until: date | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[_T]:
        """Return the results of `reduce` for the rows of each file, by day, for tables larger than memory.

        `reduce` is called in several threads. Arguments and errors are those of `read`.
        """
        schema = _schema(table, columns)
        files = list(self._files(table, since, until))
        if not files:
            return []

        def work(file: tuple[str, int | None]) -> _T:
            return reduce(self._rows(table, *file, schema))

        with ThreadPoolExecutor(min(READERS, len(files)), "twinbus-tables") as pool:
            return list(pool.map(work, files))

    def _files(
        self, table: Table, since: date | None = None, until: date | None = None
    ) -> Iterator[tuple[str, int | None]]:
        """Yield the data files of a table with their sizes, sorted; paths are relative to the results."""
        for path, size in sorted(self._find(table.name).items()):
            if not path.endswith(".parquet"):
                continue
            if is_partitioned(table):
                day = _day_of(path)
                if day is None:
                    raise _damaged(f"{self.place}/{path}", "is not in a folder such as day=2026-11-01")
                if (since is not None and day < since) or (until is not None and day > until):
                    continue
            yield path, size

    def _find(self, folder: str) -> dict[str, int | None]:
        """Return all files below a folder that are not hidden, with their sizes."""
        path = f"{self._root}/{folder}"
        try:
            self._fs.invalidate_cache()  # other processes write here too
            listing = self._fs.find(path, detail=True)
        except FileNotFoundError:
            if self._is_there(path):
                raise _VanishedError(_damage(f"{self.place}/{folder}", "changed while it was listed")) from None
            return {}
        except Exception as error:
            raise _storage_error(f"{self.place}/{folder}", error) from error
        root = self._root.strip("/")
        inside = {
            name.strip("/").removeprefix(root).lstrip("/"): info.get("size")
            for name, info in listing.items()
            if info.get("type", "file") == "file"
        }
        return {name: size for name, size in inside.items() if not _is_hidden(name)}

    def _names(self, folder: str) -> set[str]:
        """Return the names of files and folders directly in a folder."""
        path = f"{self._root}/{folder}".rstrip("/")
        try:
            self._fs.invalidate_cache()
            paths = self._fs.ls(path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except Exception as error:
            raise _storage_error(f"{self.place}/{folder}".rstrip("/"), error) from error
        return {path.rstrip("/").rpartition("/")[2] for path in paths}

    def _is_there(self, path: str) -> bool:
        try:
            return bool(self._fs.exists(path))
        except Exception as error:
            raise _storage_error(self.place, error) from error

    def _rows(self, table: Table, path: str, size: int | None, schema: pa.Schema) -> pa.Table:
        """Return the rows of one file, in the columns of `schema`."""
        shown = f"{self.place}/{path}"
        stored = [name for name in schema.names if not (name == "day" and is_partitioned(table))]

        def read(file: pq.ParquetFile) -> pa.Table:
            missing = sorted(set(stored) - set(file.schema_arrow.names))
            if missing:
                raise _damaged(shown, f"has no column {missing[0]}")
            rows = file.read(columns=stored, use_threads=False)
            count = file.metadata.num_rows
            if "day" in schema.names and "day" not in stored:
                rows = rows.append_column("day", pa.repeat(pa.scalar(_day_of(path), pa.date32()), count))
            return rows.select(schema.names).cast(schema)

        return self._with_file(path, size, read)

    def _raw_rows(self, path: str, size: int | None) -> list[dict[str, Any]]:
        """Return the rows of a small file with all its columns; timestamps in microseconds since the epoch."""

        def read(file: pq.ParquetFile) -> list[dict[str, Any]]:
            rows = file.read(use_threads=False)
            for index, field in enumerate(rows.schema):
                if pa.types.is_timestamp(field.type):
                    rows = rows.set_column(index, field.name, micros(rows[field.name].cast(TIMESTAMP)))
            plain: list[dict[str, Any]] = rows.to_pylist()
            return plain

        return self._with_file(path, size, read)

    def _with_file(self, path: str, size: int | None, read: Callable[[pq.ParquetFile], _T]) -> _T:
        shown, full = f"{self.place}/{path}", f"{self._root}/{path}"
        try:
            if size is not None and size <= WHOLE_FILE_BYTES:
                source = pa.BufferReader(self._fs.cat_file(full))
            else:
                source = self._fs.open(full, "rb")
        except FileNotFoundError:
            raise _VanishedError(_damage(shown, "is missing")) from None
        except Exception as error:
            raise _storage_error(shown, error) from error
        try:
            with source:
                # By default Spark writes timestamps in 96 bits.
                return read(pq.ParquetFile(source, coerce_int96_timestamp_unit="us"))
        except FileNotFoundError:
            raise _VanishedError(_damage(shown, "is missing")) from None
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise _damaged(shown, f"cannot be read ({_first_line(error)})") from error

    def _wrong_format(self, name: str) -> ResultsFormatError:
        return ResultsFormatError(
            f"{self.place}: the results are in the format {name!r}; without Spark only Parquet is read: read them with"
            " `twinbus.spark.read_table`, or run `twinbus pipeline run` with `--format parquet`"
        )


def read_consistent(
    results: Results,
    read: Callable[[Generation], _T],
    *,
    patience: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    on_wait: Callable[[], None] | None = None,
) -> _T:
    """Return what `read` returns, if no run changed the tables in the meantime.

    Waits for a run that is writing, and calls `read` again if the tables have changed.

    Args:
        patience: Seconds after which to give up; `PATIENCE` by default.
        on_wait: Called once, before the first pause.

    Raises:
        NoResultsError: There are no results.
        ResultsBusyError: A run was writing the whole time, or was interrupted.
        TablesError: The tables cannot be read, see `Results.read`.
    """
    end = clock() + (PATIENCE if patience is None else patience)
    pause = 0.1
    while True:
        problem: ResultsBusyError | DamagedTableError
        before = None
        try:
            before = results.generation()
            if before is None and not results.exists():
                raise NoResultsError(f"there are no results at {results.place}: run `twinbus pipeline run` first")
            if before is not None and before.is_complete:
                value = read(before)
                after = results.generation()
                if after == before:
                    return value
                before = after
            problem = _busy(results, before)
        except DamagedTableError as error:
            problem = error
            if before is not None and not isinstance(error, _VanishedError) and results.generation() == before:
                raise
        left = end - clock()
        if left <= 0:
            raise problem
        if on_wait is not None:
            on_wait()
            on_wait = None
        sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)


def open_results(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Results:
    """Return the results in a folder or at a URL, or those of the ledger there.

    Raises:
        NoResultsError: There are no results.
        StorageError: The folder or object store cannot be read.
        ValueError, ImportError: As for `Results`.
    """
    places = []
    for place in (os.fspath(url), default_results(url)):
        results = Results(place, options)
        if results.exists():
            return results
        places.append(results.place)
    raise NoResultsError(f"there are no results at {', nor at '.join(places)}: run `twinbus pipeline run` first")


def default_results(ledger: str | os.PathLike[str]) -> str:
    """Return the default place of the results of a ledger: beside it."""
    return os.fspath(ledger).rstrip("/\\") + "-results"


def is_partitioned(table: Table) -> bool:
    """Whether a table has a folder for each day; tables of bookkeeping have none."""
    return not table.name.startswith("_")


def _schema(table: Table, columns: Sequence[str] | None) -> pa.Schema:
    whole = arrow_schema(table)
    return whole if columns is None else pa.schema([whole.field(name) for name in columns])


def _day_of(path: str) -> date | None:
    """Return the day of `<table>/day=YYYY-MM-DD/<file>`; None if the path has another form."""
    parts = path.split("/")
    if len(parts) != 3 or not parts[1].startswith(_DAY):
        return None
    try:
        day = date.fromisoformat(parts[1].removeprefix(_DAY))
    except ValueError:
        return None
    return day if day.isoformat() == parts[1].removeprefix(_DAY) else None


def _is_hidden(path: str) -> bool:
    """Whether a part of the path below the folder of the table begins with `_` or `.`."""
    return any(part.startswith(("_", ".")) for part in path.split("/")[1:])


def _busy(results: Results, generation: Generation | None) -> ResultsBusyError:
    todo = "wait until it has finished; if it was interrupted, run `twinbus pipeline run` again"
    if generation is None:
        return ResultsBusyError(f"{results.place}: a run is writing the results (`_generation` is missing): {todo}")
    began = f"{generation.started:%Y-%m-%d %H:%M:%S} UTC" if generation.started else "an unknown time"
    if generation.is_complete:
        return ResultsBusyError(f"{results.place}: runs changed the results while they were read: try again")
    return ResultsBusyError(f"{results.place}: a run that began at {began} is writing the results: {todo}")


def _damage(path: str, reason: str) -> str:
    return f"the results are damaged: {path} {reason}; remove them and run `twinbus pipeline run` again"


def _damaged(path: str, reason: str) -> DamagedTableError:
    return DamagedTableError(_damage(path, reason))


def _storage_error(path: str, error: Exception) -> StorageError:
    # Some file systems check their options only on first use.
    reason = f"the storage options do not fit: {_first_line(error)}" if type(error) is TypeError else reason_of(error)
    return StorageError(f"{path}: cannot be read: {reason}")


def _first_line(error: BaseException) -> str:
    return (next(iter(str(error).splitlines()), "") or type(error).__name__)[:200]


def _moment(us: int | None) -> datetime | None:
    return None if us is None else _EPOCH + timedelta(microseconds=us)
