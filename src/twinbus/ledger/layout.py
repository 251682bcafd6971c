"""Names a ledger's files and folders, and selects the files to read. Pure: touches no files.

    <ledger>/day=2026-11-16/20261116T034240.123456Z-5f0c9a1b2d3e4f60-4711-12.parquet

The day is that of the rows, in UTC. The name holds the time of writing, a random writer id, the process id and a
sequence number, so writers can share a ledger without coordination. A `.compacted.parquet` file holds the rows of
several files. Its sidecar, the text file `.compacted.parquet.replaces`, lists the names of these files, one per line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

DAY_US = 86_400_000_000
#: Age at which a temporary file counts as left behind by a killed writer: no writer takes this long for one file.
OLD_TEMP_US = 3_600 * 1_000_000
#: First time that is out of range: dates end with the year 9999.
END_OF_TIME_US = 253_402_300_800 * 1_000_000

#: Suffix of a sidecar, the file that lists which files a compacted file replaces.
CLAIM_SUFFIX = ".replaces"
#: Name of the file that says which days were removed on purpose.
EXPIRED_MARKER = "expired.json"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"(\d{8}T\d{6}\.\d{6})Z-([0-9a-f]{16})-(\d{1,19})-(\d{1,19})(\.compacted)?\.parquet", re.ASCII)
_TEMP = re.compile(r"\.(.+)\.tmp")
_FOLDER = re.compile(r"day=(\d{4}-\d{2}-\d{2})", re.ASCII)
_TIME = "%Y%m%dT%H%M%S.%f"


@dataclass(frozen=True, slots=True)
class FileName:
    """The name of a ledger's file."""

    written_us: int
    writer: str
    pid: int
    number: int
    is_compacted: bool = False

    def __str__(self) -> str:
        # Not strftime: on some platforms it does not pad years before 1000 with zeros.
        written_at = (_EPOCH + timedelta(microseconds=self.written_us)).isoformat(timespec="microseconds")
        time = written_at.removesuffix("+00:00").replace("-", "").replace(":", "")
        compacted = ".compacted" if self.is_compacted else ""
        return f"{time}Z-{self.writer}-{self.pid}-{self.number}{compacted}.parquet"

    @classmethod
    def parse(cls, name: str) -> FileName | None:
        """Return the parts of a name; None if it is not the name of a ledger's file."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        time, writer, pid, number, compacted = match.groups()
        try:
            written_at = datetime.strptime(time, _TIME).replace(tzinfo=UTC)
        except ValueError:
            return None
        written_us = (written_at - _EPOCH) // timedelta(microseconds=1)
        return cls(written_us, writer, int(pid), int(number), bool(compacted))


def is_compacted(name: str) -> bool:
    """Return whether it is the name of a compacted file."""
    parsed = FileName.parse(name)
    return parsed is not None and parsed.is_compacted


def temp_name(name: str) -> str:
    """Return the name of a file until it is complete. It begins with a dot, so that all readers skip it."""
    return f".{name}.tmp"


def parse_temp(name: str) -> FileName | None:
    """Return the ledger file that a temporary file, or temporary sidecar, was written for; None for other names."""
    match = _TEMP.fullmatch(name)
    return None if match is None else FileName.parse(match[1]) or parse_sidecar(match[1])


def sidecar_name(compacted: str) -> str:
    """Return the name of a compacted file's sidecar. It is not hidden: Spark's text reader must find it."""
    return f"{compacted}{CLAIM_SUFFIX}"


def parse_sidecar(name: str) -> FileName | None:
    """Return the compacted file that a sidecar belongs to; None if it is not the name of a sidecar."""
    file = FileName.parse(name.removesuffix(CLAIM_SUFFIX)) if name.endswith(CLAIM_SUFFIX) else None
    return file if file is not None and file.is_compacted else None


def encode_claims(names: Iterable[str]) -> bytes:
    """Return the content of a sidecar: one name per line."""
    return "".join(f"{name}\n" for name in sorted(names)).encode()


def decode_claims(content: bytes) -> list[str]:
    """Return the names in a sidecar. Invalid UTF-8 is replaced, as in Spark, and then matches no file."""
    return [line for line in content.decode(errors="replace").split("\n") if line]


def is_hidden(name: str) -> bool:
    """Return whether readers skip this name by convention, such as `_SUCCESS`."""
    return name.startswith((".", "_"))


def folder_of(ts: int) -> str:
    """Return the folder for a row of this time, in microseconds since the epoch."""
    return f"day={(_EPOCH + timedelta(days=ts // DAY_US)).date().isoformat()}"


def day_of(folder: str) -> str | None:
    """Return the day of a folder, such as "2026-11-16"; None if it is not the folder of a day."""
    match = _FOLDER.fullmatch(folder)
    if match is None:
        return None
    day = match[1]
    try:
        datetime.strptime(day, "%Y-%m-%d")
    except ValueError:
        return None
    return day


def end_of_day_us(day: str) -> int:
    """Return the end of a day, in microseconds since the epoch."""
    return (datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) + DAY_US


@dataclass(frozen=True, slots=True)
class Selection:
    """The files of a folder, by whether to read them."""

    #: Files to read: together they hold every row once.
    live: list[str] = field(default_factory=list)
    #: Maps each replaced file to the compacted file that holds its rows.
    replaced: dict[str, str] = field(default_factory=dict)
    #: Compacted files to ignore: an earlier one already holds some of their rows.
    void: list[str] = field(default_factory=list)


def select(names: Iterable[str], claims: Mapping[str, Iterable[str]]) -> Selection:
    """Return which files of a folder to read. `claims` maps each compacted file to the names it replaces.

    A compacted file without claims replaces nothing. One with claims counts from the moment it is visible, so readers
    never see a row twice or miss one. If two claim the same file, the first by name counts, unless the second replaces
    the first as well. Therefore compaction needs no lock.
    """
    listed = sorted(names)
    owner: dict[str, str] = {}
    void: list[str] = []
    for name in sorted(claims):
        claimed = set(claims[name])
        earlier = {owner[replaced] for replaced in claimed if replaced in owner}
        if earlier <= claimed:
            owner.update(dict.fromkeys(claimed, name))
        else:
            void.append(name)
    void_names = set(void)
    return Selection(
        live=[name for name in listed if name not in owner and name not in void_names],
        replaced={name: owner[name] for name in listed if name in owner},
        void=[name for name in listed if name in void_names],
    )
