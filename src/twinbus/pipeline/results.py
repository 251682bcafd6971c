"""The store of results: what runs of the pipeline have found in a ledger, for reports to read without Spark.

    <results>/snapshots/0000000012.json   one for each finished run; the highest number counts
    <results>/rollups/<run>/…             tables of that run (`twinbus.pipeline.rollups`)
    <results>/reconciliation/<run>/…      tables of reconciliation

A reader takes the newest snapshot and reads only what it names, so a run that dies leaves nothing to be seen, and a run
that is repeated replaces whole. What no snapshot names is removed a day later. `docs/pipeline.md` is the contract.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

from twinbus.ledger.errors import ExtraMissing
from twinbus.ledger.reading import SetAside
from twinbus.ledger.schema import pa, pq
from twinbus.ledger.store import open_store

from .errors import PipelineError
from .files import local_url

#: Of the snapshots' form. A store of a later one is refused.
VERSION = 1
SNAPSHOTS, ROLLUPS, RECONCILIATION, CHECKPOINTS = "snapshots", "rollups", "reconciliation", "checkpoints"
#: How long what no snapshot names any more is kept: longer than anybody reads, and than a run takes.
KEEP = timedelta(days=1)
#: Files that are read at the same time: stores answer slowly, and answer many at once.
READERS = 8

_SNAPSHOT = re.compile(r"(\d{10})\.json", re.ASCII)
_RUN = re.compile(r"(\d{8}T\d{6}\.\d{6})Z-[0-9a-f]{8}", re.ASCII)
_TIME = "%Y%m%dT%H%M%S.%f"


class Outrun(PipelineError):  # noqa: N818 - what happened
    """Another run has published its snapshot first."""


class ResultsOfLaterRelease(PipelineError):  # noqa: N818 - what they are
    """The results were written by a later release of twinbus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayResults:
    """What is known of one day of the ledger (UTC)."""

    #: The files of each rollup, by its name: `usage`, `latency`, `activity`, `waits`. Paths below the store.
    rollups: Mapping[str, Sequence[str]]
    #: The list of the ledger's files that the rollups were made from.
    inventory: str
    #: The ledger's files that counted, their bytes, and their rows, repeated ones included.
    files: int
    bytes: int
    rows_in_files: int
    #: Rows, each counted once.
    rows: int
    #: Rows that the ledger itself says it lacks.
    dropped: int
    #: The times of the first and the last row, in microseconds since the epoch; None if there is none.
    first_us: int | None
    last_us: int | None
    #: The ledger has no files of this day any more; the rollups are kept.
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What there is to know after a run."""

    #: Identifies the run that has published it: its start and a random part.
    run: str
    number: int = 0
    #: Of twinbus and of Spark.
    versions: Mapping[str, str] = field(default_factory=dict)
    #: By day, as 2026-11-16, in order.
    days: Mapping[str, DayResults] = field(default_factory=dict)
    #: What lies in the ledger and could not be read.
    set_aside: Sequence[SetAside] = ()
    #: What reconciliation has found, and the files it needs again: its own business, in JSON's types.
    reconciliation: Mapping[str, Any] | None = None

    @property
    def dropped(self) -> int:
        """Rows that the ledger says it lacks."""
        return sum(day.dropped for day in self.days.values())

    def paths(self, rollup: str, since: str | None = None, until: str | None = None) -> list[str]:
        """The files of a rollup for the days from `since` to `until`, both included."""
        return [
            path
            for name, day in self.days.items()
            if (since is None or since <= name) and (until is None or name <= until)
            for path in day.rollups.get(rollup, ())
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "run": self.run,
            "versions": dict(self.versions),
            "days": {name: asdict(day) for name, day in self.days.items()},
            "set_aside": [asdict(one) for one in self.set_aside],
            "reconciliation": self.reconciliation,
        }

    @classmethod
    def from_json(cls, number: int, given: Mapping[str, Any]) -> Snapshot:
        """Raises ResultsOfLaterRelease."""
        if given["version"] > VERSION:
            raise ResultsOfLaterRelease(
                f"the results were written by a later release of twinbus ({given['versions'].get('twinbus')})"
            )
        return cls(
            number=number,
            run=given["run"],
            versions=given["versions"],
            days={name: DayResults(**given["days"][name]) for name in sorted(given["days"])},
            set_aside=tuple(SetAside(**one) for one in given["set_aside"]),
            reconciliation=given["reconciliation"],
        )


def new_run(now: datetime | None = None) -> str:
    """A name for a run, and for its folders."""
    return f"{(now or datetime.now(UTC)).strftime(_TIME)}Z-{uuid.uuid4().hex[:8]}"


def default_results(ledger: str | os.PathLike[str]) -> str:
    """Where the results of a ledger are if nobody says otherwise: beside it."""
    return os.fspath(ledger).rstrip("/\\") + "-results"


class Results:
    """A store of results, in a folder or at a URL that fsspec knows. Nothing is connected or made until it is used."""

    def __init__(self, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
        """Raises ValueError for a URL where files do not appear whole, ExtraMissing without fsspec."""
        open_store(url)  # refuses what cannot be
        try:
            from fsspec.core import url_to_fs
            from fsspec.implementations.local import LocalFileSystem
        except ImportError as error:
            raise ExtraMissing from error
        text = os.fspath(url)
        self._fs, root = url_to_fs(text, **(options or {}))
        self._root = root.rstrip("/")
        self._is_local = isinstance(self._fs, LocalFileSystem)
        self.url = local_url(self._root) if self._is_local else text.rstrip("/")

    @classmethod
    def open(cls, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Results:
        return cls(url, options)

    def path(self, *parts: str) -> str:
        """The URL of something in the store, for Spark."""
        return "/".join([self.url, *parts])

    # ---- snapshots ----

    def highest(self) -> int:
        """The number of the newest snapshot; 0 if there is none."""
        return max(self._numbers(), default=0)

    def latest(self) -> Snapshot | None:
        """The newest snapshot that is whole; None if there is none.

        Raises:
            ResultsOfLaterRelease: A later release of twinbus has written it.
        """
        for number in sorted(self._numbers(), reverse=True):
            # One may have just been removed. Where folders know no links one may be seen while it is being written.
            with suppress(FileNotFoundError, json.JSONDecodeError):
                return Snapshot.from_json(number, json.loads(self.read_bytes(_snapshot_path(number))))
        return None

    def publish(self, snapshot: Snapshot, *, after: int) -> Snapshot:
        """Make it the newest one.

        Args:
            after: What `highest` was when the run began.

        Raises:
            Outrun: Another run has published meanwhile; nothing was changed.
        """
        numbered = replace(snapshot, number=after + 1)
        text = json.dumps(numbered.to_json(), ensure_ascii=False, indent=1)
        try:
            self._create(_snapshot_path(numbered.number), text.encode())
        except FileExistsError:
            raise Outrun("another run has published its results first") from None
        return numbered

    def _numbers(self) -> list[int]:
        found = (_SNAPSHOT.fullmatch(name) for name in self.names(SNAPSHOTS))
        return [int(one[1]) for one in found if one is not None]

    def _create(self, path: str, data: bytes) -> None:
        """Write a file that must not exist yet; it appears whole. Raises FileExistsError."""
        if not self._is_local:
            self._fs.pipe_file(self._full(path), data, mode="create")
            return
        final = Path(self._full(path))
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}.tmp")
        try:
            _write_durably(temporary, data)
            try:
                os.link(temporary, final)
            except FileExistsError:
                raise
            except OSError:  # mounted object stores know no links
                with final.open("xb") as file:
                    file.write(data)
        finally:
            temporary.unlink(missing_ok=True)

    # ---- files ----

    def names(self, folder: str) -> list[str]:
        """The names in a folder of the store, in order; none if there is no such folder."""
        return [path.rpartition("/")[2] for path in self._entries(folder)]

    def files_below(self, folder: str) -> list[str]:
        """The Parquet files in a folder of the store and in the folders below it, in order."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(self._full(folder))
        except FileNotFoundError:
            return []
        inside = [path[len(self._root) :].lstrip("/") for path in found]
        return sorted(
            path for path in inside if path.endswith(".parquet") and not path.rpartition("/")[2].startswith(".")
        )

    def read_bytes(self, path: str) -> bytes:
        data: bytes = self._fs.cat_file(self._full(path))
        return data

    def open_file(self, path: str) -> IO[bytes]:
        """Read a file, or parts of it."""
        opened: IO[bytes] = self._fs.open(self._full(path), "rb")
        return opened

    def write_bytes(self, path: str, data: bytes | memoryview) -> None:
        """Write a file under a new name, of a folder of this run."""
        self._fs.makedirs(self._full(path).rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(self._full(path), data)

    def table(self, paths: Sequence[str], schema: pa.Schema) -> pa.Table:
        """The rows of these files; only the columns of `schema` are read."""

        def read(path: str) -> pa.Table:
            with self.open_file(path) as file:
                return pq.ParquetFile(file).read(columns=schema.names).select(schema.names).cast(schema)

        with ThreadPoolExecutor(READERS) as pool:
            return pa.concat_tables([schema.empty_table(), *pool.map(read, paths)])

    def sweep(self, now: datetime | None = None, keep: timedelta = KEEP) -> int:
        """Remove what nobody needs any more: old snapshots, and folders of runs that no snapshot left names.

        How many were removed. A run that is still at work is younger than `keep`.
        """
        old = (now or datetime.now(UTC)) - keep
        kept = self.latest()
        if kept is None:
            return 0
        removed = 0
        for number in sorted(self._numbers()):
            if number < kept.number and self._published_before(number, old):
                self._remove(_snapshot_path(number))
                removed += 1
        named = self._named_runs()
        for kind in (ROLLUPS, RECONCILIATION):
            for run in self.names(kind):
                started = _started(run)
                if started is not None and started < old and run not in named:
                    self._remove(f"{kind}/{run}")
                    removed += 1
        return removed

    def _named_runs(self) -> set[str]:
        """The runs whose folders a snapshot needs: whatever looks like the name of a run in one of them."""
        named: set[str] = set()
        for number in self._numbers():
            with suppress(FileNotFoundError):
                named.update(one[0] for one in _RUN.finditer(self.read_bytes(_snapshot_path(number)).decode()))
        return named

    def _published_before(self, number: int, time: datetime) -> bool:
        # A snapshot was in use until the next one came; the next one's run began before that.
        with suppress(FileNotFoundError, json.JSONDecodeError):
            after = Snapshot.from_json(number + 1, json.loads(self.read_bytes(_snapshot_path(number + 1))))
            started = _started(after.run)
            return started is not None and started < time
        return False

    def _entries(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()  # other processes write here too
        try:
            found: Iterable[str] = self._fs.ls(self._full(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rstrip("/") for path in found)

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm(self._full(path), recursive=True)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"


def _snapshot_path(number: int) -> str:
    return f"{SNAPSHOTS}/{number:010}.json"


def _started(run: str) -> datetime | None:
    found = _RUN.fullmatch(run)
    return None if found is None else datetime.strptime(found[1], _TIME).replace(tzinfo=UTC)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
