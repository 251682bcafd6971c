"""Reads a ledger: every row once, whatever else lies in its folders.

Files that are being written, were left behind by a killed writer or were replaced by a compacted one do not count. What
cannot be read as a ledger's file is set aside and named, and the rest is read.
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

_ATTEMPTS = 3
#: A row group is read whole. Ours have a hundred thousand rows or so; a small file can claim to have billions.
MAX_GROUP_ROWS = 5_000_000
MAX_GROUP_BYTES = 2 << 30
#: Of a sidecar: about a million names.
MAX_CLAIMS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """Something in a ledger's folder that is not read, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Day:
    """The files of one day."""

    folder: str
    selection: layout.Selection
    #: Sidecars without their compacted file, which claim nothing.
    orphans: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Survey:
    """What there is in a ledger. Reading adds to `unreadable` what turns out to be unreadable."""

    days: list[Day] = field(default_factory=list)
    unreadable: list[UnreadableFile] = field(default_factory=list)


class NotALedgerFileError(Exception):
    """A file cannot be read as a ledger's; the text says why."""


def survey(store: Store, since: str | None = None, until: str | None = None) -> Survey:
    """Find the files of the days from `since` to `until`, both included, as 2026-11-16.

    Raises:
        LedgerNotFoundError: There is nothing at this place.
        LedgerFilesChangedError: A file was compacted away meanwhile.
    """
    require_ledger(store)
    found = Survey()
    for folder in store.folders():
        day = layout.day_of(folder)
        if day is None:
            if not layout.is_hidden(folder):
                found.unreadable.append(UnreadableFile(folder, "not a folder of a ledger"))
        elif (since is None or since <= day) and (until is None or day <= until):
            found.days.append(_survey_day(store, folder, found.unreadable))
    known = layout.EXPIRED_MARKER
    stray = [name for name in store.files("") if not layout.is_hidden(name) and name != known]
    found.unreadable += [UnreadableFile(name, "not a file of a ledger") for name in stray]
    return found


def _survey_day(store: Store, folder: str, unreadable: list[UnreadableFile]) -> Day:
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
    """The files that a compacted one replaces; none if it has no sidecar.

    The sidecar is written before the compacted file and removed after it. So whoever has seen the compacted file finds
    the sidecar, whether or not it was in the same listing, unless both are gone.

    Raises:
        NotALedgerFileError: The sidecar is too large.
        LedgerFilesChangedError: The compacted file is gone.
    """
    try:
        with store.open(folder, layout.sidecar_name(name)) as file:
            content = file.read(MAX_CLAIMS_BYTES + 1)
    except FileNotFoundError:
        try:
            store.open(folder, name).close()
        except FileNotFoundError as error:
            raise LedgerFilesChangedError(f"{folder}/{name} is gone") from error
        return []
    if len(content) > MAX_CLAIMS_BYTES:
        raise NotALedgerFileError(f"more than {MAX_CLAIMS_BYTES:,} bytes")
    return layout.decode_claims(content)


class LedgerFile:
    """One open file.

    Raises:
        NotALedgerFileError: It cannot be read, or is something else.
        FileNotFoundError: It is gone.
    """

    def __init__(self, store: Store, folder: str, name: str, *, encoded: Sequence[str] = ()) -> None:
        """`encoded` are columns of texts to be read as numbers and a dictionary."""
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
            at = SCHEMA.get_field_index(column.name)
            found = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            if at >= 0 and found != SCHEMA.field(at).type:
                raise NotALedgerFileError(f"column {column.name} is {found}, not {SCHEMA.field(at).type}")
        for wanted in SCHEMA:
            if not wanted.nullable and wanted.name not in self._parquet.schema_arrow.names:
                raise NotALedgerFileError(f"column {wanted.name} is missing")

    def __enter__(self) -> LedgerFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    @property
    def footer(self) -> Any:
        """What Parquet tells of the file: a `pyarrow.parquet.FileMetaData`."""
        return self._parquet.metadata

    @property
    def rows(self) -> int:
        return int(self._parquet.metadata.num_rows)

    def tables(
        self, columns: Sequence[str] | None = None, *, within: tuple[int, int] | None = None
    ) -> Iterator[pa.Table]:
        """The rows, a row group at a time; columns that an older file lacks are null.

        Args:
            within: Leave out row groups that have no rows from this time to that, in microseconds.
        """
        schema = self._parquet.schema_arrow
        there = [name for name in columns or SCHEMA.names if name in schema.names]
        wanted = pa.schema(
            [
                SCHEMA.field(name).with_type(schema.field(name).type) if name in there else SCHEMA.field(name)
                for name in columns or SCHEMA.names
            ]
        )
        for number in range(self._parquet.num_row_groups):
            if within is not None and not self._touches(number, *within):
                continue
            try:
                table = self._parquet.read_row_group(number, columns=there)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise NotALedgerFileError(f"corrupt: {reason_of(error)}") from error
            for name in there:
                if table[name].null_count and not SCHEMA.field(name).nullable:
                    raise NotALedgerFileError(f"column {name} has no value in some rows")
            arrays = [
                table[column.name] if column.name in there else pa.nulls(table.num_rows, column.type)
                for column in wanted
            ]
            yield pa.Table.from_arrays(arrays, schema=wanted)

    def _touches(self, row_group: int, first_us: int, last_us: int) -> bool:
        group = self._parquet.metadata.row_group(row_group)
        at = next(at for at in range(group.num_columns) if group.column(at).path_in_schema == "ts")
        known = group.column(at).statistics
        if known is None or not known.has_min_max:
            return True
        return bool(known.min_raw <= last_us and first_us <= known.max_raw)


def tables_of(
    store: Store, found: Survey, *, columns: Sequence[str] | None = None, newest_first: bool = False
) -> Iterator[pa.Table]:
    """The rows of a survey, some at a time.

    Raises:
        LedgerFilesChangedError: A file was compacted away meanwhile.
    """
    for day in reversed(found.days) if newest_first else found.days:
        yield from _tables_of_day(store, found, day, columns)


def _tables_of_day(store: Store, found: Survey, day: Day, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    for name in day.selection.live:
        try:
            with LedgerFile(store, day.folder, name) as file:
                yield from file.tables(columns)
        except FileNotFoundError as error:
            raise LedgerFilesChangedError(f"{day.folder}/{name} is gone") from error
        except NotALedgerFileError as error:
            found.unreadable.append(UnreadableFile(f"{day.folder}/{name}", str(error)))


@dataclass(frozen=True, slots=True)
class Contents:
    """Rows of a ledger, and what of it could not be read."""

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
    """Read the days from `since` to `until` into memory; `where` is an expression of `pyarrow.compute`.

    Raises:
        LedgerNotFoundError: There is nothing at this place.
    """
    store = open_store(url, storage_options)

    def read() -> Contents:
        found = survey(store, since, until)
        tables = [table if where is None else table.filter(where) for table in tables_of(store, found, columns=columns)]
        nothing = pa.schema([SCHEMA.field(name) for name in columns or SCHEMA.names]).empty_table()
        return Contents(pa.concat_tables([nothing, *tables]), found.unreadable)

    return _read_again_if_changed(read)


def newest(
    url: str | os.PathLike[str],
    limit: int,
    *,
    where: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Contents:
    """The newest `limit` rows that fulfil `where`, oldest first. Days that are not needed are not read.

    Raises:
        LedgerNotFoundError: There is nothing at this place.
        ValueError: `limit` is less than 1.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit!r}")
    store = open_store(url, storage_options)

    def read() -> Contents:
        found = survey(store)
        kept = SCHEMA.empty_table().replace_schema_metadata(None)
        for day in reversed(found.days):
            for table in _tables_of_day(store, found, day, None):
                kept = pa.concat_tables([kept, table if where is None else table.filter(where)])
                if kept.num_rows > limit:
                    kept = kept.take(pc.sort_indices(kept, [("ts", "descending")])[:limit])
            if kept.num_rows >= limit:
                break
        return Contents(kept.sort_by("ts"), found.unreadable)

    return _read_again_if_changed(read)


def _read_again_if_changed(read: Callable[[], Contents]) -> Contents:
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except LedgerFilesChangedError:
            continue
    return read()
