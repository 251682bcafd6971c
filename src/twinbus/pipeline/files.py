"""Which files of a ledger count, what their footers say, and how Spark reads their rows: each row once.

Files whose footers were read before are not opened again. What cannot be read is set aside with its reason.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

from twinbus.ledger import layout
from twinbus.ledger.errors import ExtraMissing, LedgerChanged, reason_of
from twinbus.ledger.reading import LedgerFile, NotALedgerFile, SetAside
from twinbus.ledger.schema import SCHEMA, pa, pq
from twinbus.ledger.store import Store, open_store, require_ledger

from .overlaps import Extent, Interval, at_most, find_overlaps

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Footers that are read at the same time.
READERS = 16
#: More intervals make a filter that takes longer than what it spares.
MOST_INTERVALS = 40
#: Before and after all ids.
LEAST_ID, LAST_ID = "0" * 32, "f" * 32

INVENTORY = pa.schema(
    [
        ("name", pa.string()),
        ("size", pa.int64()),
        ("tag", pa.string()),
        ("rows", pa.int64()),
        ("first_us", pa.int64()),
        ("last_us", pa.int64()),
        ("first_id", pa.string()),
        ("last_id", pa.string()),
        ("replaces", pa.list_(pa.string())),
        ("refused", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of one file."""

    name: str
    size: int
    #: Changes when the file does: the store's tag of it, or its time.
    tag: str
    rows: int = 0
    #: The ranges of its rows' times and ids, both ends included.
    first_us: int = 0
    last_us: int = 0
    first_id: str = LEAST_ID
    last_id: str = LAST_ID
    #: The files whose rows a compacted one holds.
    replaces: Sequence[str] = ()
    #: Why it cannot be read; None if it can.
    refused: str | None = None

    @property
    def identity(self) -> tuple[str, int, str]:
        return self.name, self.size, self.tag

    @property
    def extent(self) -> Extent:
        return Extent(Interval(self.first_us, self.last_us), self.first_id, self.last_id)


@dataclass(frozen=True, slots=True)
class DayFiles:
    """The files of one day."""

    folder: str
    #: All that have the name of a ledger's file.
    listed: Sequence[FileFacts]
    #: Those to be read, in the order of their names: together they hold every row, most of them once.
    live: Sequence[FileFacts]

    @property
    def rows(self) -> int:
        """Of the files that count; repeated ones included."""
        return sum(one.rows for one in self.live)

    @property
    def fingerprint(self) -> str:
        """Changes when the files that count do."""
        digest = hashlib.blake2b(digest_size=16)
        for one in self.live:
            digest.update(repr(one.identity).encode())
        return digest.hexdigest()

    @classmethod
    def of(cls, folder: str, listed: Sequence[FileFacts]) -> DayFiles:
        # A compacted file that cannot be read claims nothing, as if it had never been written.
        usable = [one for one in listed if one.refused is None or not _is_compacted(one.name)]
        claims = {one.name: one.replaces for one in usable if one.replaces}
        names = [one.name for one in usable]
        live = set(layout.select(names, claims).live)
        return cls(folder, listed, [one for one in listed if one.name in live and one.refused is None])

    def inventory(self) -> bytes:
        """The list of its files, to be read by `facts_of`."""
        columns = {name: [getattr(one, name) for one in self.listed] for name in INVENTORY.names}
        file = BytesIO()
        pq.write_table(pa.table(columns, INVENTORY), file, compression="zstd")
        return file.getvalue()


def facts_of(inventory: bytes) -> list[FileFacts]:
    """What an inventory says."""
    return [FileFacts(**row) for row in pq.read_table(BytesIO(inventory)).to_pylist()]


@dataclass(slots=True)
class LedgerView:
    """A ledger as it was when it was looked at."""

    url: str
    store: Store
    #: By day, as 2026-11-16, in order.
    days: dict[str, DayFiles]
    #: What is no part of a ledger at all.
    strays: list[SetAside] = field(default_factory=list)

    @property
    def set_aside(self) -> list[SetAside]:
        """What could not be read, and why."""
        refused = [
            SetAside(f"{day.folder}/{one.name}", one.refused)
            for day in self.days.values()
            for one in _refused(day)
            if one.refused is not None
        ]
        return sorted([*self.strays, *refused], key=lambda one: one.path)

    def rows(
        self,
        spark: SparkSession,
        columns: Sequence[str],
        *,
        days: Iterable[str] | None = None,
        within: Sequence[Interval] = (),
    ) -> DataFrame:
        """The rows of these days, all unless they are given, as a DataFrame. Rows with the same `op_id` come once.

        Args:
            columns: Of the ledger; a file that lacks one has nulls there.
            within: Only rows of these times, `MOST_INTERVALS` at most.
        """
        chosen = [self.days[day] for day in (self.days if days is None else days)]
        files = [(day.folder, one) for day in chosen for one in day.live if _touches(one, within)]
        shared, times = self._overlaps(chosen, within)
        certain = [(folder, one) for folder, one in files if (folder, one.name) not in shared]
        doubtful = [(folder, one) for folder, one in files if (folder, one.name) in shared]
        found = self._read(spark, certain, columns, within)
        if doubtful:
            found = found.union(self._read(spark, doubtful, columns, within, outside=times))
            again = self._read(spark, doubtful, [*dict.fromkeys(["op_id", *columns])], within, inside=times)
            # The same row is the same in all columns. To compare only ids, and take any of the rest, takes far longer.
            found = found.union(again.distinct().select(*columns))
        return found

    def _overlaps(
        self, chosen: Sequence[DayFiles], within: Sequence[Interval]
    ) -> tuple[set[tuple[str, str]], list[Interval]]:
        """The files, by folder and name, and the times, in which rows may be there twice."""
        names: set[tuple[str, str]] = set()
        times: list[Interval] = []
        for day in chosen:
            files = [one for one in day.live if _touches(one, within)]
            found = find_overlaps([one.extent for one in files])
            names |= {(day.folder, files[at].name) for at in found.files}
            times += found.times
        return names, at_most(times, MOST_INTERVALS)

    def _read(
        self,
        spark: SparkSession,
        files: Sequence[tuple[str, FileFacts]],
        columns: Sequence[str],
        within: Sequence[Interval],
        *,
        inside: Sequence[Interval] | None = None,
        outside: Sequence[Interval] | None = None,
    ) -> DataFrame:
        if inside is not None:
            files = [pair for pair in files if _touches(pair[1], inside)]
        if not files:
            return spark.createDataFrame([], spark_schema(columns))
        paths = [spark_path(self.url, folder, one.name) for folder, one in files]
        # The schema is given, so that Spark need not open files to learn it; and no folder becomes a column.
        schema = spark_schema([*dict.fromkeys(["ts", *columns])])
        frame = spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*paths)
        if within:
            frame = frame.where(ts_in(within))
        if inside is not None:
            frame = frame.where(ts_in(inside))
        if outside is not None:
            frame = frame.where(ts_in(_complement(outside)))
        return frame.select(*columns)

    def check(self, days: Iterable[str] | None = None) -> list[SetAside]:
        """Read files of these days from end to end, and set aside what turns out to be damaged; what was found.

        For when Spark has failed: it stops at the first damaged file, and footers do not tell.
        """
        found: list[SetAside] = []
        for name in list(self.days if days is None else days):
            day = self.days[name]
            with ThreadPoolExecutor(READERS) as pool:
                reasons = list(pool.map(lambda one, folder=day.folder: _damage(self.store, folder, one), day.live))
            damaged = {one.name: reason for one, reason in zip(day.live, reasons, strict=True) if reason}
            if damaged:
                listed = [replace(one, refused=damaged.get(one.name, one.refused)) for one in day.listed]
                self.days[name] = DayFiles.of(day.folder, listed)
                found += [SetAside(f"{day.folder}/{one}", reason) for one, reason in damaged.items()]
        return found


def survey(
    url: str | os.PathLike[str],
    known: Mapping[str, Sequence[FileFacts]] | None = None,
    *,
    only: Collection[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> LedgerView:
    """Look which files a ledger has.

    Args:
        known: What earlier looks have found, by day: those files are not opened again unless they have changed.
        only: Look at these days only, as 2026-11-16.

    Raises:
        LedgerNotFound: There is nothing at this place.
        LedgerChanged: A file was compacted away meanwhile.
    """
    store = open_store(url, options)
    require_ledger(store)
    listing = _Listing(url, options)
    view = LedgerView(listing.url, store, {})
    for folder in store.folders():
        day = layout.day_of(folder)
        if day is None:
            if not layout.is_hidden(folder):
                view.strays.append(SetAside(folder, "not a folder of a ledger"))
        elif only is None or day in only:
            files = _look(store, listing, folder, (known or {}).get(day, ()), view.strays)
            if files.listed:
                view.days[day] = files
    stray = [name for name in store.files("") if not layout.is_hidden(name)]
    view.strays += [SetAside(name, "not a file of a ledger") for name in stray]
    return view


def survey_url(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> str:
    """The ledger's URL as Spark takes it."""
    return _Listing(url, options).url


def _look(store: Store, listing: _Listing, folder: str, known: Sequence[FileFacts], strays: list[SetAside]) -> DayFiles:
    before = {one.identity: one for one in known}
    listed: list[FileFacts] = []
    for name, size, tag in listing.files(folder):
        if layout.FileName.parse(name) is not None:
            listed.append(before.get((name, size, tag)) or FileFacts(name, size, tag, rows=-1))
        elif not layout.is_hidden(name):
            strays.append(SetAside(f"{folder}/{name}", "not a file of a ledger"))
    with ThreadPoolExecutor(READERS) as pool:
        facts = pool.map(lambda one: one if one.rows >= 0 else _open(store, folder, one), listed)
        return DayFiles.of(folder, list(facts))


def _open(store: Store, folder: str, file: FileFacts) -> FileFacts:
    """What the footer of a file says."""
    try:
        with LedgerFile(store, folder, file.name) as opened:
            replaces = opened.replaces if _is_compacted(file.name) else ()
            footer = opened.footer
    except FileNotFoundError as error:
        raise LedgerChanged(f"{folder}/{file.name} is gone") from error
    except NotALedgerFile as error:
        return replace(file, rows=0, refused=str(error))
    except OSError as error:
        return replace(file, rows=0, refused=f"cannot be read: {reason_of(error)}")
    start = layout.end_of_day_us(folder.removeprefix("day=")) - layout.DAY_US
    first, last = _range(footer, "ts") or (start, start + layout.DAY_US - 1)
    if not start <= first <= last < start + layout.DAY_US:
        return replace(file, rows=0, refused="it has rows of other days than its folder's")
    first_id, last_id = (one.hex() for one in _range(footer, "op_id") or (b"\0" * 16, b"\xff" * 16))
    return replace(
        file,
        rows=footer.num_rows,
        first_us=first,
        last_us=last,
        first_id=first_id,
        last_id=last_id,
        replaces=tuple(replaces),
    )


def _range(footer: Any, column: str) -> tuple[Any, Any] | None:
    """The least and the greatest value of a column; None if the footer does not tell."""
    at = next((at for at in range(footer.num_columns) if footer.schema.column(at).path == column), None)
    if at is None or not footer.num_row_groups:
        return None
    found = [footer.row_group(number).column(at).statistics for number in range(footer.num_row_groups)]
    if not all(one is not None and one.has_min_max for one in found):
        return None
    return min(one.min_raw for one in found), max(one.max_raw for one in found)


def _damage(store: Store, folder: str, file: FileFacts) -> str | None:
    """Why a file cannot be read to its end; None if it can."""
    try:
        with LedgerFile(store, folder, file.name) as opened:
            for _ in opened.tables():
                pass
    except FileNotFoundError as error:
        raise LedgerChanged(f"{folder}/{file.name} is gone") from error
    except NotALedgerFile as error:
        return str(error)
    return None


def _refused(day: DayFiles) -> list[FileFacts]:
    """The files of a day that cannot be read, and whose rows are in no other."""
    replaced = {name for one in day.live for name in one.replaces}
    return [one for one in day.listed if one.refused is not None and one.name not in replaced]


def _is_compacted(name: str) -> bool:
    parsed = layout.FileName.parse(name)
    return parsed is not None and parsed.is_compacted


class _Listing:
    """The names, sizes and tags of a ledger's files."""

    def __init__(self, url: str | os.PathLike[str], options: Mapping[str, Any] | None) -> None:
        try:
            from fsspec.core import url_to_fs
            from fsspec.implementations.local import LocalFileSystem
        except ImportError as error:
            raise ExtraMissing from error
        text = os.fspath(url)
        self._fs, root = url_to_fs(text, **(options or {}))
        self._root = root.rstrip("/")
        self.url = local_url(self._root) if isinstance(self._fs, LocalFileSystem) else text.rstrip("/")

    def files(self, folder: str) -> list[tuple[str, int, str]]:
        self._fs.invalidate_cache()
        try:
            entries = self._fs.ls(f"{self._root}/{folder}", detail=True)
        except FileNotFoundError:
            return []
        found = [one for one in entries if one["type"] == "file"]
        return sorted((one["name"].rpartition("/")[2], int(one["size"] or 0), _tag(one)) for one in found)


def _tag(entry: Mapping[str, Any]) -> str:
    """What changes when the content does, by whatever name a store has for it."""
    for key in ("etag", "ETag", "md5Hash", "generation", "mtime", "last_modified", "LastModified", "created"):
        if entry.get(key) is not None:
            return str(entry[key])
    return ""


# ---- for Spark ----

_SPARK_TYPES = {
    pa.binary(16): "binary",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.string(): "string",
    pa.int8(): "tinyint",
    pa.int32(): "int",
    pa.int64(): "bigint",
}


def spark_schema(columns: Sequence[str]) -> str:
    """Columns of the ledger, as Spark's DDL."""
    return ", ".join(f"`{name}` {_SPARK_TYPES[SCHEMA.field(name).type]}" for name in columns)


def local_url(path: str) -> str:
    """The URL of a folder of this machine as Hadoop reads it: nothing is escaped."""
    return f"file://{path}" if path.startswith("/") else f"file:///{path}"


def spark_path(*parts: str) -> str:
    """A path for Spark to read, which takes some characters for a pattern unless they are escaped."""
    return "".join(f"\\{one}" if one in "{}[]*?\\" else one for one in "/".join(parts))


def ts_in(times: Sequence[Interval]) -> Column:
    """Whether a row's time lies in one of these intervals. Spark leaves out parts of files by it."""
    from pyspark.sql import functions as f

    condition = f.lit(False)
    for one in times:
        first, last = (f.timestamp_micros(f.lit(value)) for value in one)
        condition = condition | f.col("ts").between(first, last)
    return condition


def _touches(file: FileFacts, times: Sequence[Interval]) -> bool:
    return not times or any(file.first_us <= one.last and one.first <= file.last_us for one in times)


def _complement(times: Sequence[Interval]) -> list[Interval]:
    """The times before, between and after these, which are in order and apart."""
    ends = [-1, *(one.last for one in times)]
    starts = [*(one.first for one in times), layout.END_OF_TIME_US]
    return [Interval(end + 1, start - 1) for end, start in zip(ends, starts, strict=True) if end + 1 < start]
