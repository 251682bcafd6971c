"""Reads the rows of a ledger, each exactly once.

Skips temporary files and files that a compacted one has replaced. Reports unreadable files and reads all others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import layout
from .ledger_errors import LedgerFilesChangedError, reason_of
from .schema import SCHEMA, VERSION, VERSION_KEY, pa, pc, pq
from .store import Store, open_store, require_ledger

_READ_ATTEMPTS = 3
#: Limits of a row group, which is read whole. Ours have about 100,000 rows; a small hostile file can claim billions.
MAX_GROUP_ROWS = 5_000_000
MAX_GROUP_BYTES = 2 << 30
#: Limit of a sidecar: about a million names.
MAX_CLAIMS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file or folder of a ledger that could not be read, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Day:
    """The files of one day."""

    folder: str
    selection: layout.Selection
    #: Sidecars without their compacted file, which have no effect.
    orphans: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Survey:
    """The files of a ledger. Reading them adds to `unreadable`."""

    days: list[Day] = field(default_factory=list)
    unreadable: list[UnreadableFile] = field(default_factory=list)


class NotALedgerFileError(Exception):
    """A file is not a readable ledger file; the text says why."""


def survey(store: Store, since: str | None = None, until: str | None = None) -> Survey:
    """List the files of the days from `since` to `until`, both included, such as "2026-11-16".

    Raises:
        LedgerNotFoundError: There is no ledger at this folder or URL.
        LedgerFilesChangedError: A file was compacted away meanwhile.
    """
    require_ledger(store)
    files = Survey()
    for folder in store.folders():
        day = layout.day_of(folder)
        if day is None:
            if not layout.is_hidden(folder):
                files.unreadable.append(UnreadableFile(folder, "not a folder of a ledger"))
        elif (since is None or since <= day) and (until is None or day <= until):
            files.days.append(_survey_day(store, folder, files.unreadable))
    foreign = [name for name in store.files("") if not layout.is_hidden(name) and name != layout.EXPIRED_MARKER]
    files.unreadable += [UnreadableFile(name, "not a file of a ledger") for name in foreign]
    return files


def _survey_day(store: Store, folder: str, unreadable: list[UnreadableFile]) -> Day:
    """List the files of one day, and add unknown files to `unreadable`."""
    names, sidecars, claims = [], [], {}
    for name in store.files(folder):
        parsed = layout.FileName.parse(name)
        if parsed is not None:
            names.append(name)
            if parsed.is_compacted:
                try:
                    claims[name] = claims_of(store, folder, name)
                except NotALedgerFileError as error:
                    unreadable.append(UnreadableFile(f"{folder}/{layout.sidecar_name(name)}", str(error)))
        elif (compacted := layout.parse_sidecar(name)) is not None:
            sidecars.append(str(compacted))
        elif not layout.is_hidden(name):
            unreadable.append(UnreadableFile(f"{folder}/{name}", "not a file of a ledger"))
    orphans = [layout.sidecar_name(name) for name in sidecars if name not in names]
    return Day(folder, layout.select(names, claims), orphans)


def claims_of(store: Store, folder: str, name: str) -> list[str]:
    """Return the files that a compacted file replaces; none if it has no sidecar.

    The sidecar is written before the compacted file and removed after it. A reader that has seen the compacted file
    therefore finds the sidecar, even if its listing lacked it, unless both were removed.

    Raises:
        NotALedgerFileError: The sidecar is too large.
        LedgerFilesChangedError: The compacted file was removed.
    """
    try:
        with store.open(folder, layout.sidecar_name(name)) as file:
            content = file.read(MAX_CLAIMS_BYTES + 1)
    except FileNotFoundError:
        try:
            store.open(folder, name).close()
        except FileNotFoundError as error:
            raise _files_changed(store, folder, name) from error
        return []
    if len(content) > MAX_CLAIMS_BYTES:
        raise NotALedgerFileError(f"more than {MAX_CLAIMS_BYTES:,} bytes")
    return layout.decode_claims(content)


def _files_changed(store: Store, folder: str, name: str) -> LedgerFilesChangedError:
    return LedgerFilesChangedError(
        f"{folder}/{name} was removed while the ledger at {store.place} was read, probably by a compaction:"
        " read the ledger again"
    )


class LedgerFile:
    """An open file of rows.

    Args:
        encoded: Text columns to read as dictionary-encoded columns.

    Raises:
        NotALedgerFileError: It cannot be read, or is not a file of a ledger.
        FileNotFoundError: It does not exist.
    """

    def __init__(self, store: Store, folder: str, name: str, *, encoded: Sequence[str] = ()) -> None:
        self._file = store.open(folder, name)
        try:
            self._parquet = pq.ParquetFile(self._file, read_dictionary=list(encoded) or None)
            self._check()
        except NotALedgerFileError:
            self._file.close()
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            self._file.close()
            raise NotALedgerFileError(f"corrupt: {reason_of(error)}") from error

    def _check(self) -> None:
        """Check version, row groups and columns. Raises `NotALedgerFileError`."""
        version = (self._parquet.metadata.metadata or {}).get(VERSION_KEY)
        if version is None:
            raise NotALedgerFileError("not a file of a ledger")
        if not version.isdigit() or int(version) > VERSION:
            raise NotALedgerFileError(f"written by a later release, version {version.decode(errors='replace')}")
        for number in range(self._parquet.num_row_groups):
            group = self._parquet.metadata.row_group(number)
            if group.num_rows > MAX_GROUP_ROWS or group.total_byte_size > MAX_GROUP_BYTES:
                raise NotALedgerFileError(
                    f"row group {number} has {group.num_rows:,} rows and {group.total_byte_size:,} bytes, more than"
                    f" {MAX_GROUP_ROWS:,} or {MAX_GROUP_BYTES:,}"
                )
        for column in self._parquet.schema_arrow:
            index = SCHEMA.get_field_index(column.name)
            column_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            if index >= 0 and column_type != SCHEMA.field(index).type:
                raise NotALedgerFileError(f"column {column.name} is {column_type}, not {SCHEMA.field(index).type}")
        for schema_field in SCHEMA:
            if not schema_field.nullable and schema_field.name not in self._parquet.schema_arrow.names:
                raise NotALedgerFileError(f"column {schema_field.name} is missing")

    def __enter__(self) -> LedgerFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def footer(self) -> Any:
        """The Parquet footer, a `pyarrow.parquet.FileMetaData`."""
        return self._parquet.metadata

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._parquet.metadata.num_rows)

    def tables(
        self, columns: Sequence[str] | None = None, *, within: tuple[int, int] | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows, one row group at a time. Columns that the file lacks are null.

        Args:
            within: Skip row groups without rows from the first to the second time, in microseconds.

        Raises:
            NotALedgerFileError: A row group is corrupt, or a required column has nulls.
        """
        schema = self._parquet.schema_arrow
        present = [name for name in columns or SCHEMA.names if name in schema.names]
        table_schema = pa.schema(
            [
                SCHEMA.field(name).with_type(schema.field(name).type) if name in present else SCHEMA.field(name)
                for name in columns or SCHEMA.names
            ]
        )
        for number in range(self._parquet.num_row_groups):
            if within is not None and not self._overlaps(number, *within):
                continue
            try:
                table = self._parquet.read_row_group(number, columns=present)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise NotALedgerFileError(f"corrupt: {reason_of(error)}") from error
            for name in present:
                if table[name].null_count and not SCHEMA.field(name).nullable:
                    raise NotALedgerFileError(f"column {name} has no value in some rows")
            arrays = [
                table[column.name] if column.name in present else pa.nulls(table.num_rows, column.type)
                for column in table_schema
            ]
            yield pa.Table.from_arrays(arrays, schema=table_schema)

    def _overlaps(self, row_group: int, first_us: int, last_us: int) -> bool:
        """Return whether a row group may have rows within these times."""
        group = self._parquet.metadata.row_group(row_group)
        ts_index = next(index for index in range(group.num_columns) if group.column(index).path_in_schema == "ts")
        statistics = group.column(ts_index).statistics
        if statistics is None or not statistics.has_min_max:
            return True
        return bool(statistics.min_raw <= last_us and first_us <= statistics.max_raw)


def tables_of(store: Store, files: Survey, *, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a survey's files, one table per row group.

    Raises:
        LedgerFilesChangedError: A file was compacted away meanwhile.
    """
    for day in files.days:
        yield from _tables_of_day(store, files, day, columns)


def _tables_of_day(store: Store, files: Survey, day: Day, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    """Yield the rows of one day, and add unreadable files to the survey."""
    for name in day.selection.live:
        try:
            with LedgerFile(store, day.folder, name) as file:
                yield from file.tables(columns)
        except FileNotFoundError as error:
            raise _files_changed(store, day.folder, name) from error
        except NotALedgerFileError as error:
            files.unreadable.append(UnreadableFile(f"{day.folder}/{name}", str(error)))


@dataclass(frozen=True, slots=True)
class Contents:
    """Rows of a ledger, and the files that could not be read."""

    table: pa.Table
    unreadable: list[UnreadableFile]


def read_ledger(
    url: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    since: str | None = None,
    until: str | None = None,
    where: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Contents:
    """Read the days from `since` to `until` into memory, filtered by `where`, a `pyarrow.compute` expression.

    Raises:
        LedgerNotFoundError: There is no ledger at this folder or URL.
        LedgerFilesChangedError: Files were compacted away in each of several attempts.
    """
    store = open_store(url, storage_options)

    def read() -> Contents:
        files = survey(store, since, until)
        tables = [table if where is None else table.filter(where) for table in tables_of(store, files, columns=columns)]
        empty = pa.schema([SCHEMA.field(name) for name in columns or SCHEMA.names]).empty_table()
        return Contents(pa.concat_tables([empty, *tables]), files.unreadable)

    return _retry_if_files_changed(read)


def newest(
    url: str | os.PathLike[str],
    limit: int,
    *,
    where: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Contents:
    """Return the newest `limit` rows that match `where`, oldest first. Reads only as many days as needed.

    Raises:
        LedgerNotFoundError: There is no ledger at this folder or URL.
        LedgerFilesChangedError: Files were compacted away in each of several attempts.
        ValueError: `limit` is less than 1.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit!r}")
    store = open_store(url, storage_options)

    def read() -> Contents:
        files = survey(store)
        newest_rows = SCHEMA.empty_table().replace_schema_metadata(None)
        for day in reversed(files.days):
            for table in _tables_of_day(store, files, day, None):
                newest_rows = pa.concat_tables([newest_rows, table if where is None else table.filter(where)])
                if newest_rows.num_rows > limit:
                    newest_rows = newest_rows.take(pc.sort_indices(newest_rows, [("ts", "descending")])[:limit])
            if newest_rows.num_rows >= limit:
                break
        return Contents(newest_rows.sort_by("ts"), files.unreadable)

    return _retry_if_files_changed(read)


def _retry_if_files_changed(read: Callable[[], Contents]) -> Contents:
    """Read again if a compaction removed files during the read, in at most `_READ_ATTEMPTS` attempts."""
    for _ in range(_READ_ATTEMPTS - 1):
        try:
            return read()
        except LedgerFilesChangedError:
            continue
    return read()
